#include "src/train/checkpoint/doctor.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <optional>

#include "emulation/base/error.hpp"
#include "emulation/base/input_error.hpp"
#include "src/config/reading/document_kind.hpp"
#include "src/config/reading/hub_cache.hpp"
#include "src/io/files/atomic_file.hpp"
#include "src/io/files/file_kind.hpp"
#include "src/io/files/file_lock.hpp"
#include "src/io/hdf5/hdf5.hpp"
#include "src/io/hdf5/run_log.hpp"
#include "src/io/hdf5/run_reader.hpp"
#include "src/io/hdf5/run_schema.hpp"
#include "src/io/hdf5/study_log.hpp"
#include "src/model/dialects/folder_writer.hpp"
#include "src/train/checkpoint/checkpoint.hpp"
#include "src/train/checkpoint/identity.hpp"

namespace fp8lab {
namespace {

namespace fs = std::filesystem;

constexpr const char* kRunFile = "run.h5";
constexpr const char* kCheckpoint = "checkpoint.safetensors";
constexpr const char* kStudyFile = "study.h5";

/// Reads every row, which compares every checksum.
RunStatus read_everything(const fs::path& file) {
  const RunData run = read_run(file);
  for (const StatisticField& field : statistic_fields()) read_statistic(file, field.name);
  read_samples(file);
  return read_run_status(file);
}

class RunExamination {
 public:
  RunExamination(fs::path directory, bool repair)
      : directory_(std::move(directory)), repair_(repair) {}

  std::vector<Finding> run() {
    const fs::path file = directory_ / kRunFile, checkpoint = directory_ / kCheckpoint;
    std::optional<FileLock> lock = FileLock::try_acquire_with_folder(file);
    if (!lock) {
      add(file, Health::busy, "a process is writing this run");
      return std::move(findings_);
    }
    remove_leftovers();
    const bool has_checkpoint = is_present(checkpoint);
    if (!is_present(file)) {
      add(checkpoint, Health::damaged,
          "has no run.h5 beside it; put that back, or start a run elsewhere with --init-from");
      return std::move(findings_);
    }
    for (const fs::path& one : {file, checkpoint}) {
      if (!is_present(one) || is_file(one)) continue;
      add(one, Health::damaged, "is no regular file; put a copy back");
      return std::move(findings_);
    }
    std::optional<RunStatus> status;
    try {
      status = read_everything(file);
    } catch (const Error& error) {
      add(file, Health::damaged,
          fmt::format("{}; put a copy back{}", error.what(),
                      has_checkpoint
                          ? ", or start a run elsewhere with --init-from " + checkpoint.string()
                          : ""));
    }
    if (status) describe(file, *status, std::move(*lock));
    examine_checkpoint(checkpoint, status);
    return std::move(findings_);
  }

 private:
  void add(const fs::path& file, Health health, std::string text) {
    findings_.push_back({file, health, std::move(text)});
  }

  void remove_leftovers() {
    for (const fs::path& left : temporaries(directory_ / kCheckpoint)) {
      add(left, repair_ ? Health::repaired : Health::fixable,
          fmt::format("half a checkpoint of a killed run{}", repair_ ? ", removed" : ""));
    }
    if (repair_) remove_temporaries(directory_ / kCheckpoint);
  }

  void describe(const fs::path& file, const RunStatus& status, FileLock lock) {
    const std::string steps = fmt::format("{} steps, {}", status.last_step,
                                          status.complete ? "complete" : "not complete");
    if (status.meta.version < RunMeta().version) {
      add(file, Health::whole, steps + "; of a version without checksums");
    } else if (Hdf5File::was_closed(file)) {
      add(file, Health::whole, steps);
    } else if (!repair_) {
      add(file, Health::fixable,
          steps + "; its writer was killed, so that other programs open it as SWMR readers alone");
    } else {
      RunLog::close_killed(file, std::move(lock));
      add(file, Health::repaired, steps + "; its writer was killed: written anew and closed");
    }
  }

  void examine_checkpoint(const fs::path& file, const std::optional<RunStatus>& status) {
    const bool recorded = status && !status->checkpoints.empty();
    if (!is_present(file)) {
      if (recorded && !status->complete) {
        add(file, Health::damaged,
            fmt::format("missing, though the run wrote one after step {}; put it back, or start "
                        "the run anew elsewhere",
                        status->checkpoints.back().step));
      }
      return;
    }
    try {
      verify_checkpoint(file);
      const CheckpointSummary summary = read_checkpoint(file);
      const std::string step = fmt::format("after step {}", summary.position.step);
      if (status && summary.identity != hash_of(status->meta.identity)) {
        add(file, Health::damaged, step + ", of another run than the run.h5 beside it");
      } else if (recorded && summary.hash != status->checkpoints.back().hash &&
                 summary.position.step <= status->checkpoints.back().step) {
        add(file, Health::damaged,
            fmt::format("{}, not the one that run.h5 records after step {}", step,
                        status->checkpoints.back().step));
      } else {
        add(file, Health::whole, step);
      }
    } catch (const Error& error) {
      add(file, Health::damaged,
          std::string(error.what()) + "; put a copy back, or start the run anew elsewhere");
    }
  }

  fs::path directory_;
  bool repair_;
  std::vector<Finding> findings_;
};

bool holds_run(const fs::path& directory) {
  return is_present(directory / kRunFile) || is_present(directory / kCheckpoint);
}

/// Checks that each link of a study leads to a run.
Finding examine_study(const fs::path& file) {
  if (!is_file(file)) return {file, Health::damaged, "is no regular file; put a copy back"};
  try {
    std::int64_t links = 0;
    for (const fs::path& run : read_study_links(file)) {
      ++links;
      if (is_present(file.parent_path() / run)) continue;
      return {file, Health::damaged,
              fmt::format("links to {}, which is not there; `fp8lab ablate` with the same study "
                          "runs it and writes the links anew",
                          run.string())};
    }
    return {file, Health::whole, fmt::format("{} links", links)};
  } catch (const Error& error) {
    return {file, Health::damaged,
            fmt::format("{}; `fp8lab ablate` with the same study writes it anew from the runs",
                        error.what())};
  }
}

/// Returns the partly written models of killed processes that were to be `folder`, which need not
/// exist.
void examine_exports(const fs::path& folder, bool repair, std::vector<Finding>& findings) {
  const std::vector<fs::path> left = unfinished_exports(folder);
  if (left.empty()) return;
  const std::optional<FileLock> lock = FileLock::try_acquire(folder);
  for (const fs::path& path : left) {
    if (!lock) {
      findings.push_back({path, Health::busy, "a process is writing this model"});
      continue;
    }
    if (repair) remove_folder(path);
    findings.push_back(
        {path, repair ? Health::repaired : Health::fixable,
         fmt::format("half a model of a killed process{}", repair ? ", removed" : "")});
  }
}

std::vector<Finding> examine_all_exports(const fs::path& directory, bool repair) {
  std::vector<Finding> findings;
  const fs::path itself = directory.has_filename() ? directory : directory.parent_path();
  examine_exports(itself, repair, findings);
  if (!is_folder(directory)) return findings;
  for (const fs::path& folder : folders_with_unfinished_exports(directory)) {
    examine_exports(folder, repair, findings);
  }
  return findings;
}

}  // namespace

std::vector<Finding> examine(const fs::path& directory, bool repair) {
  std::vector<Finding> findings = examine_all_exports(directory, repair);
  if (!is_folder(directory)) {
    if (!findings.empty()) return findings;
    refuse_document(directory, "the folder of a run, of a study or of a model");
    throw InputError({.where = directory.string(),
                      .reason = "no directory" + did_you_mean_model(directory),
                      .accepted = "that of a run, of a study or of a model"});
  }
  std::vector<fs::path> runs;
  if (holds_run(directory)) runs.push_back(directory);
  for (const fs::directory_entry& entry : fs::directory_iterator(directory)) {
    if (entry.is_directory() && holds_run(entry.path())) runs.push_back(entry.path());
  }
  std::sort(runs.begin(), runs.end());
  const bool is_study = is_present(directory / kStudyFile);
  if (runs.empty() && !is_study && findings.empty()) {
    throw InputError({.where = directory.string(),
                      .reason = "holds neither run.h5 nor study.h5, nor folders with a run.h5"});
  }
  for (const fs::path& run : runs) {
    for (Finding& finding : RunExamination(run, repair).run()) {
      findings.push_back(std::move(finding));
    }
  }
  if (is_study) findings.push_back(examine_study(directory / kStudyFile));
  return findings;
}

}  // namespace fp8lab
