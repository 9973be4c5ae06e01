#include "src/train/run_directory.hpp"

#include <fmt/core.h>

#include "emulation/base/input_error.hpp"
#include "src/config/config_difference.hpp"
#include "src/io/files/atomic_file.hpp"
#include "src/io/files/file_kind.hpp"
#include "src/train/checkpoint/identity.hpp"
#include "src/train/run_record.hpp"

namespace fp8lab {

void RunDirectory::check(bool resume) const {
  const bool has_run = is_present(run_file());
  if (!has_run && is_present(checkpoint_file())) {
    throw InputError(
        {.where = checkpoint_file().string(),
         .reason = "there is no run.h5 beside this checkpoint, and a run here would overwrite it",
         .remedy = "put the run.h5 back, or start in another directory (with --init-from to start "
                   "from its weights)"});
  }
  if (has_run == resume) return;
  throw InputError(has_run ? ErrorFields{.where = run_file().string(),
                                         .reason = "exists",
                                         .remedy = "use --resume to continue it, or another --out"}
                           : ErrorFields{.where = directory_.string(),
                                         .reason = "no run to resume",
                                         .remedy = "start it without --resume"});
}

FileLock RunDirectory::lock(bool resume) const {
  make_directories(directory_);
  FileLock lock = RunLog::lock_with_folder(run_file());
  check(resume);
  remove_temporaries(checkpoint_file());
  return lock;
}

RunStatus RunDirectory::status_of(const Identity& identity, const RunConfig& config,
                                  bool any_weights) const {
  RunStatus status = read_run_status(run_file());
  require_continuable(status.meta, run_file());
  Identity stored = status.meta.identity;
  if (any_weights) {
    std::erase_if(stored, [](const auto& part) { return part.first == kInitialWeights; });
  }
  const std::string changes = difference(stored, identity);
  if (changes.empty()) return status;
  const std::string keys = join_differences(recorded_differences(status.meta, config));
  throw InputError(
      {.where = run_file().string(),
       .reason = fmt::format("another run: {}{}", changes, keys.empty() ? "" : " (" + keys + ")"),
       .remedy = "give another --out"});
}

std::optional<CheckpointSummary> RunDirectory::find_checkpoint(const RunStatus& status,
                                                               const Identity& identity,
                                                               const RunConfig& config) const {
  const std::string file = checkpoint_file().string();
  const auto& recorded = status.checkpoints;
  if (!is_present(file)) {
    if (recorded.empty()) return std::nullopt;
    throw InputError({.where = file,
                      .reason = fmt::format("missing, but {} has one after step {}",
                                            run_file().string(), recorded.back().step),
                      .remedy = "put it back, or start anew in another directory"});
  }
  const CheckpointSummary checkpoint = read_checkpoint(file);
  if (checkpoint.identity != hash_of(identity)) {
    throw InputError({.where = file,
                      .reason = fmt::format("of another run than {}", run_file().string()),
                      .remedy = "put the right one back"});
  }
  check_position(checkpoint.position, config, file);
  const std::int64_t step = checkpoint.position.step;
  const bool is_recorded = !recorded.empty() && step <= recorded.back().step;
  if (is_recorded && (step < recorded.back().step || checkpoint.hash != recorded.back().hash)) {
    throw InputError(
        {.where = file,
         .reason = fmt::format("of step {}, not the one that {} has written after step {}", step,
                               run_file().string(), recorded.back().step),
         .remedy = "put that back"});
  }
  return checkpoint;
}

}  // namespace fp8lab
