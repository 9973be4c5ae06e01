// A study: one folder per arm under one directory, every arm paired with its baseline.
#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "emulation/backend.hpp"
#include "src/config/config.hpp"

namespace fp8lab {

/// One of several processes that share the runs of a study among them.
struct StudyRank {
  int place = 0;  ///< from 0
  int count = 1;  ///< of them all
};

struct StudyOptions {
  std::filesystem::path directory;
  int jobs = 1;
  int threads = 0;                  ///< of each arm; 0: processors / jobs
  std::optional<std::string> only;  ///< this run alone, an arm or a shared one
  std::optional<StudyRank> rank;    ///< whatever no other rank has taken, one run at a time
  const std::atomic<bool>* stop = nullptr;
  /// For what is checked before the first run starts; called in the meantime only.
  std::function<std::unique_ptr<Backend>(const std::string& name)> make_backend;
  std::function<void(const std::string&)> say;  ///< a line for what begins or ends
  /// Every two seconds a line for the runs at work (StudyProgress); null: none. Not for ranks,
  /// which do not know what the others are at.
  std::function<void(const std::string&)> progress;
};

/// An arm as it will be run.
struct PlannedArm {
  std::string name;
  RunConfig config;
  bool is_baseline = false;
  std::string baseline_arm;  ///< to compare with; empty: none, and for a baseline
  std::string shared_run;    ///< to start from; empty: none
  std::vector<Assignment> axes;
};

struct StudyPlan {
  std::vector<PlannedArm> arms;   ///< in order, without the shared stages
  std::vector<RunConfig> shared;  ///< runs of the shared stages; none where the study has none
};

/// Also decides which arms are baselines and which arm is compared with which.
StudyPlan plan_study(const StudyConfig& study);

struct StudyResult {
  std::int64_t complete = 0, failed = 0, interrupted = 0;
};

/// Runs what is not complete yet, `jobs` at a time, and rewrites study.h5 after it. The shared
/// stages run first, in DIRECTORY/shared or one folder for each value of the shared axes. A run
/// that fails stops no other, but for the arms that start from it.
///
/// One process runs a whole study, or any number of them one run each (`only`), of which one
/// trains the shared stages that they start from while the others wait for it, or any number of
/// them share it as ranks. A rank ends when none of them has anything left to do; the first one's
/// result is that of the whole study, every other's that of its own runs.
///
/// Throws Error, before anything starts, naming the process that works on the same already; when a
/// run in the directory was made under settings other than those asked for, naming run and
/// difference; and when `only` names no run of the plan.
StudyResult run_study(const StudyConfig& study, const StudyPlan& plan, const StudyOptions& options);

}  // namespace fp8lab
