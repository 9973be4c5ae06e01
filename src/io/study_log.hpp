// study.h5: which runs a study has, and which of them is compared with which. Facts only: every
// statistic over runs is computed by `analysis`.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "src/io/study_design.hpp"

namespace fp8lab {

/// One run of the study.
struct ArmRecord {
  std::string name;                ///< of the arm: unique, no '/'
  std::filesystem::path run_file;  ///< relative to the directory of study.h5
  std::string recipe;
  std::uint64_t seed = 0;
  std::string config_hash;                  ///< of the resolved configuration, RunConfig::hash
  std::map<std::string, std::string> axes;  ///< axis key -> TOML value
  bool is_baseline = false;                 ///< every stage runs the baseline recipe
  std::string baseline_arm;                 ///< arm to compare with; empty: none
  bool complete = false;
  std::int64_t last_step = 0;           ///< 0: no run file yet
  std::uint64_t final_weight_hash = 0;  ///< 0: not complete
};

/// Everything in study.h5 but the run files that it links to.
struct StudyTable {
  std::string name;
  std::string title;
  std::string config_text;  ///< TOML of the study
  std::string config_hash;
  std::string baseline;  ///< recipe of the baselines
  std::vector<ArmRecord> arms;
  std::optional<StatedDesign> design;
};

/// Replaces `study_h5` in one step; its layout is in README.md of this folder. The run files need
/// not exist yet. Throws Error for arms without a usable or with a repeated name, or paired with
/// what is no baseline; RuntimeFailure when the disk fails.
void write_study(const std::filesystem::path& study_h5, const StudyTable& table);

/// The design that a study file states; nothing where it states none, or there is no such file.
/// Throws Error when the file is damaged.
std::optional<StatedDesign> read_stated_design(const std::filesystem::path& study_h5);

/// The run files that a study links to, in its folder and relative to it, also of the first schema.
/// Reads the whole file. Throws Error when it is no study file, is damaged, or names a run file
/// outside its folder.
std::vector<std::filesystem::path> read_study_links(const std::filesystem::path& study_h5);

}  // namespace fp8lab
