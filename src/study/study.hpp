// A study: one folder per arm under one directory, and a baseline for every
// arm to be compared with.
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

/// One of several processes that share the runs of a study.
struct StudyRank {
  int place = 0;  ///< index, from 0
  int count = 1;  ///< number of ranks
};

struct StudyOptions {
  std::filesystem::path directory;
  int jobs = 1;
  int threads = 0;                  ///< threads of each arm; 0: processors / jobs
  std::optional<std::string> only;  ///< name of the only run to train, an arm or a shared run
  std::optional<StudyRank> rank;    ///< takes runs that no other rank has taken, one at a time
  const std::atomic<bool>* stop = nullptr;
  /// Creates backends for the checks before the first run starts; not called afterwards.
  std::function<std::unique_ptr<Backend>(const std::string& name)> make_backend;
  std::function<void(const std::string&)> say;  ///< receives a line when something begins or ends
  /// Receives a line about the running runs every two seconds (StudyProgress); null: no such lines.
  /// Not used for ranks, which do not know the progress of the others.
  std::function<void(const std::string&)> progress;
};

/// An arm with its resolved configuration.
struct PlannedArm {
  std::string name;
  RunConfig config;
  bool is_baseline = false;
  std::string baseline_arm;  ///< arm to compare with; empty: none, or a baseline itself
  std::string shared_run;    ///< shared run to start from; empty: none
  std::vector<Assignment> axes;
};

struct StudyPlan {
  std::vector<PlannedArm> arms;   ///< in order, without the shared stages
  std::vector<RunConfig> shared;  ///< runs of the shared stages; empty if the study has none
};

/// Plans the runs, and decides which arms are baselines and which arm is compared with which.
StudyPlan plan_study(const StudyConfig& study);

struct StudyResult {
  std::int64_t complete = 0, failed = 0, interrupted = 0;
};

/// Trains the runs that are not complete, `jobs` at a time, and rewrites study.h5 afterwards. The
/// shared stages are trained first, in DIRECTORY/shared or in one folder for each value of the
/// shared axes. A failed run stops no other, except the arms that start from it.
///
/// A study can be run by one process; by any number of processes with one run each (`only`), one of
/// which trains the shared stages while the others wait; or by any number of ranks. A rank ends
/// when no rank has work left. The first rank returns the result of the whole study, every other
/// rank that of its own runs.
///
/// Throws Error before anything starts: if another process works on the same runs (names the
/// process), if a run in the directory was made under other settings than those of the study (names
/// the run and the difference), or if `only` names no run of the plan.
StudyResult run_study(const StudyConfig& study, const StudyPlan& plan, const StudyOptions& options);

}  // namespace fp8lab
