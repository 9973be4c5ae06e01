#include "src/study/study_folder.hpp"

#include <fmt/format.h>

#include <chrono>
#include <thread>
#include <vector>

#include "emulation/api/error.hpp"
#include "src/config/config_difference.hpp"
#include "src/io/hash.hpp"
#include "src/io/run_reader.hpp"

namespace fp8lab {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

constexpr std::size_t kNamedRuns = 4;

/// What a run file says about where its numbers come from; without the numbers.
struct StoredRun {
  RunMeta meta;
  bool complete = false;
  std::uint64_t final_weight_hash = 0;
};

std::optional<StoredRun> read_stored(const fs::path& directory, const std::string& name) {
  const fs::path file = directory / name / "run.h5";
  if (!fs::exists(file)) return std::nullopt;
  RunData run = read_run(file);
  return StoredRun{std::move(run.meta), run.complete, run.final_weight_hash};
}

/// What tells a run from the one that is asked for; empty when it is that one.
std::string difference_from(const StoredRun& stored, const RunConfig& config) {
  if (stored.meta.config_hash == config.hash) return {};
  const std::string text = join_differences(differences(stored.meta.config_text, config.text));
  return text.empty() ? fmt::format("configuration {} -> {}", stored.meta.config_hash, config.hash)
                      : text;
}

bool is_truth(const RunMeta& meta) { return meta.backend == "truth"; }

/// The same for the weights it began with. Those of the backend `truth` are stored wider, so that
/// its hashes cannot be compared with those of others.
std::string start_difference(const StoredRun& stored, const std::optional<StoredRun>& shared) {
  if (!shared || !shared->complete || is_truth(stored.meta) != is_truth(shared->meta)) return {};
  const std::string expected = hex16(shared->final_weight_hash);
  if (stored.meta.initial_weights_hash == expected) return {};
  return fmt::format("initial weights {} -> {}, those of the run '{}'",
                     stored.meta.initial_weights_hash, expected, kSharedRun);
}

struct Mismatch {
  std::string name, difference;
};

[[noreturn]] void refuse(const fs::path& directory, const std::vector<Mismatch>& runs) {
  std::string others;
  for (std::size_t i = 1; i < std::min(runs.size(), kNamedRuns); ++i) {
    others += fmt::format("{} '{}'", i == 1 ? "; so do" : ",", runs[i].name);
  }
  if (runs.size() > kNamedRuns) others += fmt::format(" and {} more", runs.size() - kNamedRuns);
  throw Error(
      fmt::format("{}: the run '{}' has other settings than those asked for: {}{}; give another "
                  "--out, or remove the folder{} of {} to train anew",
                  directory.string(), runs[0].name, runs[0].difference, others,
                  runs.size() > 1 ? "s" : "", runs.size() > 1 ? "these runs" : "this run"));
}

/// Who runs single arms of the study.
std::string owner_of_an_arm(const StudyPlan& plan, const fs::path& directory) {
  for (const PlannedArm& arm : plan.arms) {
    const fs::path path = lock_of_run(directory, arm.name);
    if (!fs::exists(path.string() + ".lock")) continue;
    if (!FileLock::try_acquire(path)) return fmt::format("arm '{}': {}", arm.name, owner_of(path));
  }
  return "ablate --index";
}

}  // namespace

bool is_complete(const fs::path& directory, const std::string& name) {
  const fs::path file = directory / name / "run.h5";
  return fs::exists(file) && read_run_status(file).complete;
}

void check_runs_are_those_of(const StudyPlan& plan, const fs::path& directory) {
  std::vector<Mismatch> mismatches;
  std::optional<StoredRun> shared;
  if (plan.shared) shared = read_stored(directory, kSharedRun);
  if (shared) {
    const std::string text = difference_from(*shared, *plan.shared);
    if (!text.empty()) mismatches.push_back({kSharedRun, text});
  }
  for (const PlannedArm& arm : plan.arms) {
    const std::optional<StoredRun> stored = read_stored(directory, arm.name);
    if (!stored) continue;
    std::string text = difference_from(*stored, arm.config);
    if (text.empty()) text = start_difference(*stored, shared);
    if (!text.empty()) mismatches.push_back({arm.name, text});
  }
  if (!mismatches.empty()) refuse(directory, mismatches);
}

fs::path lock_of_run(const fs::path& directory, const std::string& name) {
  return directory / name / ".ablate";
}

std::string owner_of(const fs::path& lock_path) {
  // A holder writes its name right after it took the lock.
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  const std::string owner = FileLock::owner(lock_path);
  return owner.empty() ? "another process" : owner;
}

FileLock lock_study(const StudyPlan& plan, const StudyOptions& options) {
  const fs::path path = options.directory / ".ablate";
  const bool whole = !options.index;
  std::optional<FileLock> lock =
      FileLock::try_acquire(path, whole ? FileLock::Mode::exclusive : FileLock::Mode::shared);
  if (lock) return std::move(*lock);
  std::string owner = FileLock::owner(path);
  if (owner.empty()) {
    owner = whole ? owner_of_an_arm(plan, options.directory) : owner_of(path);
  }
  throw Error(fmt::format("{}: the study is being run by {}", options.directory.string(), owner));
}

std::optional<FileLock> wait_for_lock(const fs::path& lock_path, const std::string& what,
                                      const StudyOptions& options, double limit_seconds) {
  if (std::optional<FileLock> taken = FileLock::try_acquire(lock_path)) return taken;
  options.say(fmt::format("{}: waiting for {}", what, owner_of(lock_path)));
  const Clock::time_point began = Clock::now();
  for (;;) {
    if (options.stop->load()) return std::nullopt;
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    if (std::optional<FileLock> taken = FileLock::try_acquire(lock_path)) return taken;
    const double waited = std::chrono::duration<double>(Clock::now() - began).count();
    if (limit_seconds > 0 && waited > limit_seconds) return std::nullopt;
  }
}

}  // namespace fp8lab
