// Executes a run again, step by step.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "emulation/recording/observed_backend.hpp"
#include "src/replay/tensor_hashes.hpp"
#include "src/train/step/execution.hpp"

namespace fp8lab {

/// The run to execute, and its backend.
struct ReplaySource {
  std::string name;  ///< name in messages
  RunConfig config;
  /// Returns the file of the initial weights; empty for random ones. Null: the
  /// file of the configuration.
  std::function<std::filesystem::path()> find_start;
  Identity identity;  ///< recorded identity of the run; empty: unknown
  std::function<std::unique_ptr<Backend>()> make_backend;
};

/// The start of the execution: a checkpoint, or the beginning.
struct StartPoint {
  OpenCheckpoint checkpoint;
  RunPosition position;
};

class Replay {
 public:
  /// Throws Error that names the difference if the data, recipes or weights are not those of the
  /// run. Evaluations are not executed. If the execution starts from a checkpoint, the initial
  /// weights are not checked.
  Replay(const ReplaySource& source, const StartPoint& start, const Execution::Say& say = {});

  const RunPosition& position() const { return execution_.position(); }
  std::int64_t total_steps() const { return execution_.total_steps(); }
  /// Returns true if there is no further step.
  bool is_complete() const;
  /// Begins the stage of the next step, if it is a new one, and applies its recipe.
  void prepare();
  /// Executes a step. Precondition: prepare() was called. `observer` is notified of its operations.
  StepTaken step(OperationObserver* observer = nullptr);

  // Between prepare() and step():
  /// Returns the hashes of all tensors that the step reads but does not write first: the state
  /// stored in a checkpoint, and the working copies of the weights.
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
  bool is_at_work_ = false;  ///< true within a stage
};

/// Executes the run, or its first `at_most` steps; calls `progress` after every step.
std::vector<StepTaken> replay_all(
    const ReplaySource& source,
    const std::function<void(std::int64_t step, std::int64_t total)>& progress = {},
    std::size_t at_most = SIZE_MAX);

}  // namespace fp8lab
