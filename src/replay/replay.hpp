// A run executed again, step by step.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "emulation/recording/observed_backend.hpp"
#include "src/replay/tensor_hashes.hpp"
#include "src/train/execution.hpp"
#include "src/train/place.hpp"

namespace fp8lab {

/// What to execute, and on what.
struct ReplaySource {
  std::string name;  ///< in messages
  RunConfig config;
  /// The file of the weights to start from; empty for random ones. Null: that of the configuration.
  std::function<std::filesystem::path()> find_start;
  Identity identity;  ///< that the run had; empty: not known
  std::function<std::unique_ptr<Backend>()> make_backend;
};

/// Where to begin: with a checkpoint, or without one at the beginning.
struct StartPoint {
  OpenCheckpoint checkpoint;
  RunPosition position;
};

class Replay {
 public:
  /// Throws Error naming what differs when the data, recipes or weights are not those of the run.
  /// Evaluations are not executed again, and from a checkpoint on the start has no part in steps.
  Replay(const ReplaySource& source, const StartPoint& start, const Execution::Say& say = {});

  const RunPosition& position() const { return execution_.position(); }
  std::int64_t total_steps() const { return execution_.total_steps(); }
  /// True when there is no further step.
  bool is_complete() const;
  /// Begins the stage of the next step, where that is a new one, and its recipe.
  void prepare();
  /// After prepare(). `observer` sees its operations.
  StepTaken step(OperationObserver* observer = nullptr);

  // Between prepare() and step():
  PlaceTracker places() { return {execution_.parameters(), execution_.transformer().linears()}; }
  /// Of every tensor that the step reads and has not made itself: the state that a checkpoint
  /// holds, and the working copies of the weights.
  std::vector<std::uint64_t> state_hashes();
  std::vector<std::string> state_names();
  TensorView state(std::size_t index);
  void save(const std::filesystem::path& checkpoint) { execution_.save(checkpoint, 0.0); }

  TensorHashes& hashes() { return hashes_; }
  Backend& backend() { return *original_; }

 private:
  using Visit = std::function<void(const std::string& name, const TensorView& tensor)>;
  void for_each_tensor(const Visit& visit);

  std::unique_ptr<Backend> original_;
  ObservedBackend observed_;
  TensorHashes hashes_;
  Execution execution_;
  bool is_at_work_ = false;  ///< in a stage
};

/// Executes the whole run; `progress` is told after every step.
std::vector<StepTaken> replay_all(
    const ReplaySource& source,
    const std::function<void(std::int64_t step, std::int64_t total)>& progress = {});

}  // namespace fp8lab
