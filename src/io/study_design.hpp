// What a study states before it starts, so that its verdicts do not follow from its results.
#pragma once

#include <cstdint>
#include <string>

namespace fp8lab {

/// The numbers that `analysis` judges arms by (analysis/README.md, "How to read a verdict").
struct StudyDesign {
  double margin = 0.005;   ///< fraction of the baseline's loss within which an arm is equivalent
  double alpha = 0.05;     ///< chance of a false verdict, over all arms and looks
  double power = 0.9;      ///< chance of the verdict that is true
  std::int64_t looks = 1;  ///< times that the study is judged
  bool operator==(const StudyDesign&) const = default;
};

/// A design as study.h5 holds it.
struct StatedDesign {
  StudyDesign design;
  std::string stated;           ///< UTC time at which it was written for the first time
  std::int64_t arms_begun = 0;  ///< that had a run file then; 0: it was stated beforehand
};

}  // namespace fp8lab
