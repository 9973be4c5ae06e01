#include "src/train/run_directory.hpp"

#include <fmt/core.h>

#include "src/config/config_difference.hpp"
#include "src/io/files/atomic_file.hpp"
#include "src/io/files/file_kind.hpp"
#include "src/train/checkpoint/identity.hpp"

namespace fp8lab {

void RunDirectory::check(bool resume) const {
  const bool has_run = is_present(run_file());
  if (!has_run && is_present(checkpoint_file())) {
    throw Error(
        fmt::format("{}: there is no run.h5 beside this checkpoint, and a run here would "
                    "overwrite it; put the run.h5 back, or start in another directory (with "
                    "--init-from to start from its weights)",
                    checkpoint_file().string()));
  }
  if (has_run == resume) return;
  throw Error(has_run ? fmt::format("{} exists: use --resume to continue it, or another --out",
                                    run_file().string())
                      : fmt::format("{}: no run to resume; start it without --resume",
                                    directory_.string()));
}

FileLock RunDirectory::lock(bool resume) const {
  make_directories(directory_);
  FileLock lock = RunLog::lock(run_file());
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
  const std::string keys =
      status.meta.config_hash == config.hash
          ? ""
          : join_differences(run_differences(status.meta.config_text, config.text));
  throw Error(fmt::format("{}: another run: {}{}; give another --out", run_file().string(), changes,
                          keys.empty() ? "" : " (" + keys + ")"));
}

std::optional<CheckpointSummary> RunDirectory::find_checkpoint(const RunStatus& status,
                                                               const Identity& identity,
                                                               const RunConfig& config) const {
  const std::string file = checkpoint_file().string();
  const auto& recorded = status.checkpoints;
  if (!is_present(file)) {
    if (recorded.empty()) return std::nullopt;
    throw Error(
        fmt::format("{}: missing, but {} has one after step {}; put it back, or start "
                    "anew in another directory",
                    file, run_file().string(), recorded.back().step));
  }
  const CheckpointSummary checkpoint = read_checkpoint(file);
  if (checkpoint.identity != hash_of(identity)) {
    throw Error(fmt::format("{}: of another run than {}; put the right one back", file,
                            run_file().string()));
  }
  check_position(checkpoint.position, config, file);
  const std::int64_t step = checkpoint.position.step;
  const bool is_recorded = !recorded.empty() && step <= recorded.back().step;
  if (is_recorded && (step < recorded.back().step || checkpoint.hash != recorded.back().hash)) {
    throw Error(
        fmt::format("{}: of step {}, not the one that {} has written after step {}; put "
                    "that back",
                    file, step, run_file().string(), recorded.back().step));
  }
  return checkpoint;
}

}  // namespace fp8lab
