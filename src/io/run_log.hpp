// The run file: one HDF5 file per run that holds everything a report needs (design.md section 7).
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
#include "src/io/file_lock.hpp"

namespace fp8lab {

/// What determines a run, as names and hashes of contents: two runs with the same identity have the
/// same bits (src/train/identity.hpp).
using Identity = std::vector<std::pair<std::string, std::string>>;

/// The parts of `now` that `stored` has otherwise, in words; empty when the two are equal.
std::string difference(const Identity& stored, const Identity& now);

/// /meta: written before the first step, all as attributes.
struct RunMeta {
  int version = 2;  ///< of the schema: "fp8lab-run-VERSION"; 1 has no identity and no checksums
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
  std::map<std::string, std::string> extra;  ///< versions and whatever else has a name
  Identity identity;
};

/// Throws Error for the meta of a file of a version that cannot be continued.
void require_continuable(const RunMeta& meta, const std::filesystem::path& path);

/// One row of /metrics. `step` counts optimizer steps of the whole run from 1.
struct StepRecord {
  std::int64_t step = 0;
  std::int32_t stage = 0;
  std::int64_t tokens = 0;  ///< trained (unmasked) tokens so far
  double loss = 0;          ///< nats per unmasked token
  double grad_norm = 0;     ///< before clipping
  double learning_rate = 0;
  double seconds = 0;  ///< wall time since the start of the run, resumes added up
  std::uint64_t weight_hash =
      0;  ///< XXH3-64 of all master weights in parameter order; 0: not taken
};

/// One row of /eval.
struct EvalRecord {
  std::int64_t step = 0;
  std::int32_t stage = 0;
  double loss = 0;                     ///< held-out, nats per unmasked token
  double exact_match = -1;             ///< fraction, -1 when not measured
  std::int64_t exact_match_count = 0;  ///< problems asked
};

/// One row of /scores: a number of an evaluation that has no column in /eval.
struct ScoreRecord {
  std::int64_t step = 0;
  std::int32_t stage = 0;
  std::string name;  ///< README.md in this folder
  double value = 0;
  std::int64_t count = 0;  ///< tokens, problems or questions behind it
};

/// One row of /documents: an evaluation's loss on one document of the held-out text.
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

/// One logged operand: its place in the model is part of the name,
/// "layers.0.attention.qkv/fprop.x".
struct TensorName {
  std::string layer;   ///< "layers.0.attention.qkv"
  std::string slot;    ///< "fprop.x"
  std::string format;  ///< label(QuantSpec)
  double scale_bits_per_element = 0;
};

/// One row of /warnings: what a detector of training that is about to break has found.
struct WarningRecord {
  std::int64_t step = 0;
  std::string detector;       ///< src/train/early_warning.hpp
  double score = 0;           ///< of `value` by the detector's threshold: from 1 on it warns
  double value = 0;           ///< of the detector's quantity
  std::int32_t tensor = -1;   ///< index into the logged operands; -1: of the whole step
  std::int32_t channel = -1;  ///< of the tensor; -1: none
  std::int64_t count = 0;     ///< operands, channels or steps that warn
};

/// /events: "nan", "spike", "early_warning", "resume", "stress", ...
struct EventRecord {
  std::int64_t step = 0;
  std::string kind;
  std::string message;
};

/// /checkpoints: one that is complete on the disk.
struct CheckpointRecord {
  std::int64_t step = 0;
  std::uint64_t hash = 0;  ///< of its content (src/train/checkpoint.hpp)
};

/// Single writer, readable while it grows (SWMR). All methods are called from one thread and throw
/// RuntimeFailure when the disk fails, Error when the file is not a run file or has another writer.
class RunLog {
 public:
  /// Creates `path` (which must not exist) with every dataset and attribute, then starts SWMR.
  static std::unique_ptr<RunLog> create(const std::filesystem::path& path, const RunMeta& meta,
                                        const std::vector<TensorName>& tensors,
                                        std::optional<FileLock> held = std::nullopt);

  /// Continues `path` after `step`: copies every row up to and including `step` into a new file,
  /// renames it over the old one and adds a "resume" event. Works after a kill -9. Throws Error
  /// when the metrics end `log_interval` (LoggingConfig::every_steps) or more steps before `step`.
  static std::unique_ptr<RunLog> resume(const std::filesystem::path& path, std::int64_t step,
                                        std::int64_t log_interval = 1,
                                        std::optional<FileLock> held = std::nullopt);

  /// Writes a run file anew whose writer was killed, with all its rows, so that other programs open
  /// it as they open any HDF5 file. `held` is its lock.
  static void close_killed(const std::filesystem::path& path, FileLock held);

  /// The lock of the writer of `path`, for those who look at the run before they write; create and
  /// resume take it otherwise. Throws Error when another process has it.
  static FileLock lock(const std::filesystem::path& path);

  virtual ~RunLog() = default;
  virtual void append(const StepRecord& record) = 0;
  virtual void append(const EvalRecord& record) = 0;
  virtual void append(const ScoreRecord& record) = 0;
  virtual void append(const DocumentRecord& record) = 0;
  virtual void append(const WarningRecord& record) = 0;
  virtual void append(const EventRecord& record) = 0;
  virtual void append(const CheckpointRecord& record) = 0;
  /// One row of /tensors: `statistics[i]` belongs to tensor i; `without_history[i]` is 1 where a
  /// delayed scale knew no amax yet.
  virtual void append_tensors(std::int64_t step, const std::vector<OperandStatistics>& statistics,
                              const std::vector<std::uint8_t>& without_history) = 0;
  /// Captured raw tensor under /samples (the offending tensor of a NaN event).
  virtual void append_sample(std::int64_t step, const std::string& name,
                             const std::vector<float>& values) = 0;
  virtual void flush() = 0;
  /// Bytes of disk space that flush() would ask for first.
  virtual std::size_t space_needed() const = 0;
  /// Writes the completion row: the run is done, with the final weight hash.
  virtual void complete(std::uint64_t final_weight_hash) = 0;
};

/// What `train`, `ablate` and `doctor` need to know about a run file without reading all of it.
/// The /scores row of the weights at the end of a stage, evaluated in BF16.
inline constexpr const char* kLossInBf16 = "loss_in_bf16";

struct RunStatus {
  bool complete = false;
  std::int64_t last_step = 0;
  std::int64_t last_eval_step = 0;  ///< 0: none
  std::int64_t last_bf16_step = 0;  ///< of the last score kLossInBf16; 0: none
  std::uint64_t final_weight_hash = 0;
  RunMeta meta;
  std::vector<CheckpointRecord> checkpoints;
};

/// Opens a run file, also one whose writer was killed. Throws Error when it is not one.
RunStatus read_run_status(const std::filesystem::path& path);

}  // namespace fp8lab
