// study.h5: links to the run files of a study and the tables that compare them.
#pragma once

#include <cstdint>
#include <filesystem>
#include <limits>
#include <map>
#include <string>
#include <vector>

namespace fp8lab {

inline constexpr double kNotMeasured = std::numeric_limits<double>::quiet_NaN();

/// One arm at the end of one stage; NaN: not measured, for example a stage the arm has not reached.
struct StageResult {
  double train_loss = kNotMeasured;   ///< nats/token, smoothed, end of the stage
  double eval_loss = kNotMeasured;    ///< nats/token, last held-out evaluation of the stage
  double exact_match = kNotMeasured;  ///< fraction
  std::int64_t exact_match_count = 0;
  double gap = kNotMeasured;  ///< eval_loss minus that of the baseline arm
};

/// One run of the study and how it compares with its baseline: the arm with the baseline recipe and
/// otherwise the same axes.
struct ArmResult {
  std::string name;                ///< unique, no '/'
  std::filesystem::path run_file;  ///< relative to the directory of study.h5
  std::string recipe;
  std::uint64_t seed = 0;
  std::map<std::string, std::string> axes;  ///< axis key -> TOML value
  std::string baseline_arm;                 ///< empty: none, or this is a baseline
  bool complete = false;
  bool diverged = false;
  std::int64_t last_step = 0;
  std::int64_t spikes = 0;
  std::int64_t first_step_beyond_noise = -1;  ///< -1: never, or no noise band
  double final_gap = kNotMeasured;            ///< nats/token, smoothed training loss at the end
  double max_gap = kNotMeasured;              ///< nats/token
  double gap_area = kNotMeasured;             ///< nats/token * step
  double grad_norm_ratio = kNotMeasured;      ///< mean over the steps, this arm over the baseline
  std::uint64_t final_weight_hash = 0;
  std::vector<StageResult> stages;  ///< one per StudyTable::stage_names
};

/// Everything in study.h5 but the runs.
struct StudyTable {
  std::string name;
  std::string title;
  std::string config_text;  ///< TOML of the study
  std::string config_hash;
  std::string baseline;  ///< recipe that gaps are taken against
  std::vector<std::string> stage_names;
  std::vector<ArmResult> arms;
};

/// Replaces `study_h5` in one step; its layout is in README.md of this folder. The run files need
/// not exist yet. Throws Error for arms without a usable or with a repeated name or with another
/// number of stages than the table, RuntimeFailure when the disk fails.
void write_study(const std::filesystem::path& study_h5, const StudyTable& table);

/// The run files that a study links to, relative to its folder. Throws Error when the file is no
/// study file, or damaged.
std::vector<std::filesystem::path> read_study_links(const std::filesystem::path& study_h5);

}  // namespace fp8lab
