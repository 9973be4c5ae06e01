// Design parameters that a study states before it starts, so that its verdicts cannot
// be fitted to its results.
#pragma once

#include <cstdint>
#include <string>

namespace fp8lab {

/// The parameters by which `analysis` judges arms (analysis/README.md, "How to read a verdict").
struct StudyDesign {
  double margin = 0.005;   ///< fraction of the baseline's loss within which an arm is equivalent
  double alpha = 0.05;     ///< probability of any false verdict, over all arms and looks
  double power = 0.9;      ///< probability of the correct verdict
  std::int64_t looks = 1;  ///< number of times that the study is judged
  bool operator==(const StudyDesign&) const = default;
};

/// A design as stored in study.h5.
struct StatedDesign {
  StudyDesign design;
  std::string stated;           ///< UTC time at which the design was first written
  std::int64_t arms_begun = 0;  ///< arms with a run file at that time; 0: stated beforehand
};

}  // namespace fp8lab
