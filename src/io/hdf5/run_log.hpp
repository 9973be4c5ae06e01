// The run file: one HDF5 file per run with everything that a report needs.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "emulation/backend.hpp"
#include "src/io/files/file_lock.hpp"

namespace fp8lab {

/// Everything that determines a run's results, as names and content hashes: runs with the same
/// identity are bitwise equal (src/train/checkpoint/identity.hpp).
using Identity = std::vector<std::pair<std::string, std::string>>;

/// Describes the parts of `now` that differ from `stored`; empty if the two are equal.
std::string difference(const Identity& stored, const Identity& now);

/// /meta: attributes, written before the first step.
struct RunMeta {
  int version = 2;  ///< schema "fp8lab-run-VERSION"; 1 has no identity and no checksums
  std::string run_name;
  std::string recipe_name;
  std::string recipe_text;      ///< TOML of the run's recipe
  std::string recipe_resolved;  ///< describe(recipe)
  std::string recipe_hash;
  std::string config_text;  ///< resolved TOML
  std::string config_hash;
  std::string data_hash;  ///< 16 hex digits over every stage's token stream
  std::string initial_weights_hash;
  std::string code_version;
  std::string backend, device, math_profile, simd_target;
  std::uint64_t seed = 0;
  std::int64_t parameter_count = 0;
  std::string optimizer_states;              ///< "m=f32 v=f32 master=f32 gradient=f32"
  std::vector<std::string> stage_names;      ///< index = StepRecord::stage
  std::map<std::string, std::string> extra;  ///< versions and other named values
  Identity identity;
};

/// Throws Error for the meta of a file whose version cannot be resumed.
void require_continuable(const RunMeta& meta, const std::filesystem::path& path);

/// A column of /metrics beside those of every run: a number that the objective of a stage logs.
struct MetricColumn {
  std::string name;  ///< of the dataset; none of those in README.md of this folder
  std::string units;
  std::string description;
  bool operator==(const MetricColumn&) const = default;
};

/// One row of /metrics. `step` counts optimizer steps of the whole run from 1.
struct StepRecord {
  std::int64_t step = 0;
  std::int32_t stage = 0;
  std::int64_t tokens = 0;  ///< trained (unmasked) tokens so far
  double loss = 0;          ///< nats per unmasked token
  double grad_norm = 0;     ///< before clipping
  double learning_rate = 0;
  double seconds = 0;  ///< wall time since the start of the run, summed over resumes
  std::uint64_t weight_hash =
      0;  ///< XXH3-64 of all master weights in parameter order; 0: not taken
  /// Of the metric columns of the run, in their order; NaN where another stage logs them.
  std::vector<double> objective{};
};

/// One row of /eval.
struct EvalRecord {
  std::int64_t step = 0;
  std::int32_t stage = 0;
  double loss = 0;                     ///< held-out, nats per unmasked token
  double exact_match = -1;             ///< fraction; -1: not measured
  std::int64_t exact_match_count = 0;  ///< number of problems
};

/// One row of /scores: a result of an evaluation without a column in /eval.
struct ScoreRecord {
  std::int64_t step = 0;
  std::int32_t stage = 0;
  std::string name;  ///< one of the names in README.md of this folder
  double value = 0;
  std::int64_t count = 0;  ///< number of tokens, problems or questions
};

/// One row of /documents: the loss of an evaluation on one document of the held-out text.
struct DocumentRecord {
  std::int64_t step = 0;
  std::int32_t stage = 0;
  bool in_bf16 = false;       ///< of the weights in BF16, as the score kLossInBf16
  std::uint64_t text = 0;     ///< hash of the text that the evaluation read
  std::int64_t count = 0;     ///< documents of the evaluation
  std::int32_t source = 0;    ///< of the evaluation's data
  std::int64_t document = 0;  ///< of the source
  std::int64_t tokens = 0;    ///< scored
  double nats = 0;            ///< sum of their losses
};

/// One logged operand. Its name includes its place in the model: "layers.0.attention.qkv/fprop.x".
struct TensorName {
  std::string layer;   ///< "layers.0.attention.qkv"
  std::string slot;    ///< "fprop.x"
  std::string format;  ///< label(QuantSpec)
  double scale_bits_per_element = 0;
};

/// One row of /warnings: a detector's finding of imminent training failure.
struct WarningRecord {
  std::int64_t step = 0;
  std::string detector;       ///< src/train/watch/early_warning.hpp
  double score = 0;           ///< ratio of `value` to the detector's threshold; warns from 1 on
  double value = 0;           ///< value of the detector's quantity
  std::int32_t tensor = -1;   ///< index into the logged operands; -1: the whole step
  std::int32_t channel = -1;  ///< channel of the tensor; -1: none
  std::int64_t count = 0;     ///< number of operands, channels or steps that warn
};

/// /events: "nan", "spike", "early_warning", "resume", "stress", ...
struct EventRecord {
  std::int64_t step = 0;
  std::string kind;
  std::string message;
};

/// One row of /checkpoints: a checkpoint that is complete on disk.
struct CheckpointRecord {
  std::int64_t step = 0;
  std::uint64_t hash = 0;  ///< hash of its content (src/train/checkpoint/checkpoint.hpp)
  double seconds = 0;      ///< wall time of the run up to it, summed over resumes
};

/// Single writer of a run file, which stays readable while it grows (SWMR). All methods are called
/// from one thread. They throw RuntimeFailure if the disk fails, Error if the file is not a run
/// file or has another writer.
class RunLog {
 public:
  /// Creates `path` with every dataset and attribute, then starts SWMR. `metrics`, ordered by name,
  /// are those of every StepRecord. Precondition: `path` does not exist.
  static std::unique_ptr<RunLog> create(const std::filesystem::path& path, const RunMeta& meta,
                                        const std::vector<TensorName>& tensors,
                                        std::optional<FileLock> held = std::nullopt,
                                        const std::vector<MetricColumn>& metrics = {});

  /// Resumes `path` after `step`: copies every row up to and including `step` into a new file,
  /// renames it over the old one and adds a "resume" event. Works after a kill -9. Throws Error if
  /// the metrics end `log_interval` (LoggingConfig::every_steps) or more steps before `step`.
  static std::unique_ptr<RunLog> resume(const std::filesystem::path& path, std::int64_t step,
                                        std::int64_t log_interval = 1,
                                        std::optional<FileLock> held = std::nullopt);

  /// Rewrites a run file whose writer was killed, with all its rows, so that other programs can
  /// open it like any HDF5 file. `held` is its lock.
  static void close_killed(const std::filesystem::path& path, FileLock held);

  /// Takes the writer's lock of `path`, for callers that inspect the run before they write; create
  /// and resume take it otherwise. Throws Error if another process holds it.
  static FileLock lock(const std::filesystem::path& path);
  /// As lock, by FileLock::try_acquire_with_folder: for the one run of a folder.
  static FileLock lock_with_folder(const std::filesystem::path& path);

  virtual ~RunLog() = default;
  virtual void append(const StepRecord& record) = 0;
  virtual void append(const EvalRecord& record) = 0;
  virtual void append(const ScoreRecord& record) = 0;
  virtual void append(const DocumentRecord& record) = 0;
  virtual void append(const WarningRecord& record) = 0;
  virtual void append(const EventRecord& record) = 0;
  virtual void append(const CheckpointRecord& record) = 0;
  /// Appends one row of /tensors: `statistics[i]` belongs to tensor i; `without_history[i]` is 1 if
  /// a delayed scale had no amax history yet.
  virtual void append_tensors(std::int64_t step, const std::vector<OperandStatistics>& statistics,
                              const std::vector<std::uint8_t>& without_history) = 0;
  /// Stores a raw tensor under /samples (the tensor that caused a NaN event).
  virtual void append_sample(std::int64_t step, const std::string& name,
                             const std::vector<float>& values) = 0;
  virtual void flush() = 0;
  /// Returns the bytes of disk space that flush() would reserve first.
  virtual std::size_t space_needed() const = 0;
  /// Writes the completion row with the final weight hash.
  virtual void complete(std::uint64_t final_weight_hash) = 0;
};

/// Name of the /scores row with the loss of a stage's final weights, evaluated in BF16.
inline constexpr const char* kLossInBf16 = "loss_in_bf16";

/// The state of a run for `train`, `ablate` and `doctor`, obtained without reading the whole file.
struct RunStatus {
  bool complete = false;
  std::int64_t last_step = 0;
  std::int64_t last_eval_step = 0;  ///< 0: none
  std::int64_t last_bf16_step = 0;  ///< step of the last score kLossInBf16; 0: none
  std::uint64_t final_weight_hash = 0;
  RunMeta meta;
  std::vector<CheckpointRecord> checkpoints;
};

/// Reads the status of a run file, also if its writer was killed. Throws Error if it is not one.
RunStatus read_run_status(const std::filesystem::path& path);

/// Returns the wall time in seconds of the run up to `step`: that of its checkpoint, else of the
/// last row of /metrics up to there; 0 without one. Throws Error if `path` is no run file.
double read_elapsed(const std::filesystem::path& path, std::int64_t step);

}  // namespace fp8lab
