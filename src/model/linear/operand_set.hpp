// The declared operands of a module: their memory, and what is known of them from step to step.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "emulation/backend.hpp"
#include "emulation/ops/produce.hpp"
#include "src/architecture/live_range.hpp"
#include "src/model/step_context.hpp"
#include "src/model/workspace.hpp"

namespace fp8lab {

/// Where the codes and scales of an operand lie.
struct OperandMemory {
  /// The phases in which a shared buffer holds them; empty: they have memory of their own.
  std::optional<LiveRange> live;
  std::string buffer;  ///< name of the buffer; operands with the same name and phases share it
  /// The phases in which the operand is quantized from the codes of the other orientation.
  LiveRange dequantized = PassPhase::head;
};

/// One operand of a module: a tensor in one orientation, as one GEMM reads it.
struct OperandDeclaration {
  std::string name;         ///< "fprop.x": the key of its spec in recipes, its name in errors
  std::string tensor_name;  ///< "x"
  /// The number of the tensor in random keys, below 2^20. The two orientations of a tensor share
  /// it, and no two modules of a model do.
  std::uint32_t tensor = 0;
  /// The number of the GEMM in the random keys of drawn signs, which its two operands share.
  std::uint32_t gemm = 0;
  bool transpose = false;  ///< second orientation: the operand is the transpose of the tensor
  bool is_right = false;   ///< operand B of A B^T
  QuantSpec spec;
  TensorView source;  ///< the tensor as stored, (R, C): type and shape, no memory
  OperandMemory memory;
  bool is_made = true;  ///< false: no memory, no history, and OperandStatistics::absent()
  /// Not is_made, but an operation quantizes it inside, and reads and updates its amax history.
  bool is_inside = false;

  std::int64_t rows() const { return transpose ? source.cols : source.rows; }
  std::int64_t k() const { return transpose ? source.rows : source.cols; }
  /// The name of an amax history of its own within the module: "x", or "wgrad.x" of a second
  /// orientation.
  const std::string& history_name() const { return transpose ? name : tensor_name; }
};

/// A row of an OperandSet, in the order of declaration.
enum class OperandId : std::size_t {};

/// The number of the tensor that is encoded in a random key of OperandSet.
std::uint32_t tensor_number(const RandomKey& key);

/// True if two orientations of a tensor derive the same delayed scale from the same amaxes, so that
/// they have one amax history.
bool share_history(const QuantSpec& first, const QuantSpec& second);

/// True if one operation may quantize both orientations of a tensor: from the same source, with the
/// history of the first, and without transforms.
bool have_one_source(const QuantSpec& first, const QuantSpec& second);

/// Holds the operands that a module declares, with their amax histories, smoothing factors and
/// statistics. Sources are always the tensor in its natural orientation.
class OperandSet {
 public:
  /// Allocates what `declarations` keep, and reserves their shared buffers in `workspace`. `owner`
  /// is the name of the module. Throws Error that names owner and operand if the backend refuses
  /// its quantizer.
  OperandSet(Backend& backend, Workspace& workspace, const std::string& owner,
             std::vector<OperandDeclaration> declarations);

  /// Where the shared buffers lie.
  Workspace& workspace() const { return workspace_; }
  /// All rows, in the order of declaration.
  std::vector<OperandId> ids() const;
  const OperandDeclaration& declaration(OperandId id) const { return row(id).declaration; }
  /// The operand as it was made last.
  const QuantizedOperand& operand(OperandId id) const { return row(id).operand; }
  /// True if the operand has memory of its own rather than a shared buffer.
  bool is_kept(OperandId id) const { return !declaration(id).memory.live; }
  /// True if `source` itself serves as the operand, without a copy. The transposed orientation is
  /// then read along contiguous rows.
  bool is_source(OperandId id, const TensorView& source) const;

  // --- quantization -----------------------------------------------------------------------------
  /// Quantizes the operand from `source`, or from the codes of the other orientation, as its
  /// OrientationSource says. The source may have fewer rows than it declares.
  void make(const StepContext& context, OperandId id, const TensorView& source);
  /// On a logged step: computes the statistics of the operand.
  void measure(const StepContext& context, OperandId id, const TensorView& source);
  /// The same for both orientations of a tensor.
  void measure_both(const StepContext& context, OperandId first, const TensorView& source);
  /// make(), then measure().
  void quantize(const StepContext& context, OperandId id, const TensorView& source);
  /// Makes and measures both orientations of a tensor.
  void quantize_both(const StepContext& context, OperandId first, const TensorView& source);
  /// Runs `producer`, and makes and measures the operand from its output. Returns false, and runs
  /// nothing, if the output itself serves as the operand.
  bool produce(const StepContext& context, OperandId id, const ops::Producer& producer);
  /// The same for both orientations. Returns false, and runs nothing, if the two are not quantized
  /// from one source. The output is kept if `is_read`.
  bool produce_both(const StepContext& context, OperandId first, const ops::Producer& producer,
                    bool is_read);
  /// Computes the smoothing factors of a GEMM from the tensors of its two operands; does nothing
  /// without smoothing.
  void smooth(OperandId left, OperandId right, const TensorView& a, const TensorView& b);

  // --- from step to step ------------------------------------------------------------------------
  /// Enters the amaxes of the step into the histories of delayed scales.
  void update_delayed_scales();
  /// Counts the step in those histories, on the host.
  void end_step();
  /// Discards the amaxes of an evaluation.
  void discard_amaxes();
  /// True in the first steps of a history, which use current scales.
  bool is_warming_up(OperandId id) const;
  bool is_warming_up() const;
  /// True if the scale is delayed and its history is empty, so that the scale is 1.
  bool is_without_history(OperandId id) const;

  /// The row whose amax history gives the delayed scale of `id`: itself, or the first orientation.
  OperandId history_owner(OperandId id) const;
  /// Amax histories (DelayedState) by row; part of a checkpoint. Empty for a row without a delayed
  /// scale, and for one that uses the history of another.
  const std::vector<TensorView>& delayed_states() const { return states_; }
  const TensorView& delayed_state(OperandId id) const { return states_[index(id)]; }
  /// Number of steps in the history of a row.
  std::int64_t history_steps(OperandId id) const { return row(id).history_steps; }
  /// Continues a history of `steps` steps; the caller has copied its state to delayed_state(id).
  void continue_history(OperandId id, std::int64_t steps) { row(id).history_steps = steps; }
  /// Smoothing factors of the GEMM of a row, (1, k), part of a checkpoint; empty without smoothing.
  const TensorView& smoothing_factors(OperandId id) const { return row(id).factors; }

  /// One OperandStatistics for each row, of the last logged step, as bytes (u8).
  const TensorView& statistics() const { return statistics_; }

 private:
  struct Row {
    OperandDeclaration declaration;
    QuantizedOperand operand;
    TensorView codes, scales;        ///< memory of its own, for the declared source; or empty
    TensorView factors;              ///< smoothing factors of the declared source; or empty
    std::optional<OperandId> other;  ///< the other orientation of the tensor
    std::int64_t history_steps = 0;
  };

  static std::size_t index(OperandId id) { return static_cast<std::size_t>(id); }
  const Row& row(OperandId id) const { return rows_[index(id)]; }
  Row& row(OperandId id) { return rows_[index(id)]; }
  /// The second orientation of the tensor of `first`.
  OperandId second_of(OperandId first) const { return row(first).other.value(); }
  /// The label of operations on the tensor of `id`.
  Label label(OperandId id) const;
  TensorView record_of(OperandId id) const;

  void pair_orientations();
  void reserve(OperandId id, const std::string& owner);
  void reserve_transform(OperandId id);
  void reserve_codes(OperandId id);
  void reserve_history(OperandId id);
  /// Sets the extents of the operand to those of the source.
  static void fit(Row& row, const TensorView& source);
  void be_source(OperandId id, const TensorView& source);
  /// Sets the key of the operand and points it at its memory; returns false if `source` itself
  /// serves.
  bool bind(const StepContext& context, OperandId id, const TensorView& source);
  /// The same for both orientations; returns false unless both are quantized from `source`.
  bool bind_both(const StepContext& context, OperandId first, const TensorView& source);
  /// The tensor that the operand quantizes, as its OrientationSource says.
  TensorView source_of(OperandId id, const TensorView& source);
  /// In the first steps of a history: quantizes again with the current scale of `source`, whose
  /// amax the quantization before it has recorded.
  void rescale_in_warmup(OperandId id, const TensorView& source);
  RandomKey key_of(const StepContext& context, OperandId id) const;
  /// The amax history behind the scale of `id`; empty if the scale is not delayed.
  const TensorView& state_of(OperandId id) const { return delayed_state(history_owner(id)); }

  Backend& backend_;
  Workspace& workspace_;
  std::vector<Row> rows_;
  std::vector<TensorView> states_;  ///< by row
  TensorView statistics_;
};

/// The operands of a module with its name: "layers.0.mlp.down", "layers.0.attention".
struct NamedOperands {
  std::string name;
  OperandSet* operands = nullptr;
};

}  // namespace fp8lab
