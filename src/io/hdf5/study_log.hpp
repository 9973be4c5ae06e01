// study.h5: the runs of a study, and which of them are compared with which. It contains facts only:
// `analysis` computes every statistic over runs.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "src/io/hdf5/study_design.hpp"

namespace fp8lab {

/// One run of the study.
struct ArmRecord {
  std::string name;                ///< name of the arm: unique, no '/'
  std::filesystem::path run_file;  ///< relative to the directory of study.h5
  std::string recipe;
  std::uint64_t seed = 0;
  std::string config_hash;                  ///< hash of the resolved configuration, RunConfig::hash
  std::map<std::string, std::string> axes;  ///< axis key -> TOML value
  bool is_baseline = false;                 ///< every stage runs the baseline recipe
  std::string baseline_arm;                 ///< arm to compare with; empty: none
  bool complete = false;
  std::int64_t last_step = 0;           ///< 0: no run file yet
  std::uint64_t final_weight_hash = 0;  ///< 0: not complete
};

/// The contents of study.h5 except for the linked run files.
struct StudyTable {
  std::string name;
  std::string title;
  std::string config_text;  ///< TOML of the study
  std::string config_hash;
  std::string baseline;  ///< recipe of the baselines
  std::vector<ArmRecord> arms;
  std::optional<StatedDesign> design;
};

/// Replaces `study_h5` atomically; README.md of this folder describes its layout. The run files
/// need not exist yet. Throws Error for arms whose name is unusable or repeated, or that are paired
/// with an arm that is not a baseline; RuntimeFailure if the disk fails.
void write_study(const std::filesystem::path& study_h5, const StudyTable& table);

/// Returns the design stated in a study file; nothing if it states none, or if there is no such
/// file. Throws Error if the file is damaged.
std::optional<StatedDesign> read_stated_design(const std::filesystem::path& study_h5);

/// Returns the run files that a study links to, relative to its folder; also reads the first
/// schema. Reads the whole file. Throws Error if it is not a study file, is damaged, or names a run
/// file outside its folder.
std::vector<std::filesystem::path> read_study_links(const std::filesystem::path& study_h5);

}  // namespace fp8lab
