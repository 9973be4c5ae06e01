// A linear layer y = x W^T (+ bias): three GEMMs whose six operands follow a recipe.
#pragma once

#include <cstdint>
#include <string>

#include "emulation/backend.hpp"
#include "emulation/spec/recipe.hpp"
#include "src/model/live_range.hpp"
#include "src/model/parameters.hpp"
#include "src/model/workspace.hpp"

namespace fp8lab {

/// Identifies a micro-batch of a step for random keys, and says whether operands are measured.
struct StepContext {
  std::uint64_t seed = 0;
  std::uint32_t step = 0;                       ///< optimizer step of the run
  const std::uint32_t* step_counter = nullptr;  ///< RandomKey::step_counter
  std::uint32_t micro_batch = 0;
  bool adds_to_gradients = false;  ///< weight gradients are added to instead of overwritten
  bool log_statistics = false;
  bool measures_chunks = false;  ///< log_statistics then covers all chunks of the loss
};

/// How long the operands of a layer live, and which of them are recomputed.
struct OperandLife {
  bool owns_x = false;  ///< a producer makes every x, and this layer alone reads it
  /// Set if x is recomputed right before the backward pass: the layers of this name (one in each
  /// decoder layer) then share one buffer for the operands of x.
  std::string recomputed;
  WeightCodes weights = WeightCodes::keep;
  PassPhase forward = PassPhase::head,
            backward = PassPhase::head;  ///< phases in which its block runs
};

/// The slot whose amax history gives the delayed scale of `slot`. Two orientations of a tensor that
/// derive the same scale from the same amaxes share one history, that of the first orientation. Any
/// other slot has its own, which records the amax of the tensor that the slot quantizes.
Slot history_slot(const LinearRecipe& recipe, Slot slot);

/// The layer index and the tensor that are encoded in a random key of Linear.
std::uint32_t linear_of(const RandomKey& key);
Tensor tensor_of(const RandomKey& key);

class Linear {
 public:
  /// `tokens` is T, the largest number of tokens of one forward pass. `index` identifies the layer
  /// in random keys. Buffers that layers share are reserved in `workspace`.
  Linear(Backend& backend, Workspace& workspace, std::string name, std::uint32_t index,
         const LinearRecipe& recipe, const Parameter& weight, const Parameter* bias,
         std::int64_t tokens, Purpose purpose, OperandLife life);

  /// Quantizes the weights that are kept for the whole step. Call once a step, and before an
  /// evaluation that follows an update. Smoothed weights depend on the activations: forward and
  /// backward quantize them.
  void prepare_weights(const StepContext& context);

  /// y (T, out) = x (T, in) W^T + bias; fewer rows are allowed. backward reads x again unless
  /// keeps_codes().
  void forward(const StepContext& context, const TensorView& x, const TensorView& y);

  /// The same for the x that `producer` computes; a backend may fuse its quantization.
  void forward(const StepContext& context, const ops::Producer& producer, const TensorView& y);

  /// Recomputes the operands of x that forward saves for backward; runs no GEMM.
  void recompute_x(const StepContext& context, const ops::Producer& producer);

  /// dx (T, in) from dy (T, out) and the x of the last forward pass. The weight gradient is
  /// overwritten, or added to if the context says so; the bias gradient is always added to.
  void backward(const StepContext& context, const TensorView& x, const TensorView& dy,
                const TensorView& dx);

  /// The same for the dy that `producer` computes.
  void backward(const StepContext& context, const TensorView& x, const ops::Producer& producer,
                const TensorView& dx);

  /// Enters the amaxes of the step into the histories of delayed scales.
  void update_delayed_scales();
  /// Counts the step in those histories, on the host.
  void end_step();
  /// True if the slot's scale is delayed and its history is empty, so that the scale is 1.
  bool is_without_history(Slot slot) const;
  /// True in the first steps of a history, which use current scales.
  bool is_warming_up() const;
  /// Discards the amaxes of an evaluation.
  void discard_amaxes();

  /// True if the forward pass quantizes both orientations of x and saves the codes of wgrad.x: x
  /// itself may be overwritten, and need not be stored.
  bool keeps_codes() const { return keeps_codes_; }

  const std::string& name() const { return name_; }
  const LinearRecipe& recipe() const { return recipe_; }
  std::int64_t in() const { return weight_.master().cols; }
  std::int64_t out() const { return weight_.master().rows; }
  /// Rows and K of the operand in `slot`.
  std::int64_t operand_rows(Slot slot) const { return operand(slot).rows; }
  std::int64_t operand_k(Slot slot) const { return operand(slot).k; }

  /// The weights that `slot` (fprop.w or dgrad.w) quantizes.
  TensorView weight_source(Slot slot) const;

  /// The gradient of the weight that backward() writes.
  const TensorView& weight_gradient() const { return weight_.gradient(); }

  /// One OperandStatistics for each slot, of the last logged step, as bytes (u8).
  const TensorView& statistics() const { return statistics_; }
  /// Amax histories of delayed scales, part of a checkpoint. Only slots that history_slot() returns
  /// for a delayed scale have one; the other entries are empty.
  const PerSlot<TensorView>& delayed_states() const { return states_; }
  /// Number of steps in each history.
  const PerSlot<std::int64_t>& history_steps() const { return history_steps_; }
  /// Continues a history of `steps` steps; the caller has copied its state to delayed_states().
  void continue_history(Slot slot, std::int64_t steps) { history_steps_[slot] = steps; }
  /// Smoothing factors of fprop, dgrad and wgrad, part of a checkpoint; empty without smoothing.
  const PerGemm<TensorView>& smoothing_factors() const { return factors_; }

 private:
  const QuantizedOperand& operand(Slot slot) const { return operands_[slot]; }
  QuantizedOperand& operand(Slot slot) { return operands_[slot]; }
  /// True if the operand has memory of its own rather than a shared buffer.
  bool is_kept(Slot slot) const;
  /// True if backward reads this operand of x, and forward computes it.
  bool is_left_for_backward(Slot slot) const;
  /// Sets the number of rows of fprop.x.
  void fit_x(std::int64_t rows);
  /// The phases in which the layer's forward pass runs.
  LiveRange forward_range() const;
  /// The phases in which the operand in `slot`, which uses a shared buffer, is live.
  LiveRange live_range(Slot slot) const;
  std::string buffer_name(Slot slot) const;
  std::string scales_name(Slot slot) const;
  void reserve(Slot slot, const OperandShape& shape);
  /// Throws Error that names the layer and the slot if the backend refuses the quantizer.
  void require_quantizer(Slot slot);
  /// The operand of fprop whose gradient estimator multiplies the result of `role`; null if none.
  const QuantizedOperand* estimated(GemmRole role) const;
  /// Throws Error as require_quantizer does, for the GEMM `role`; reserves its scratch memory.
  void reserve_product(GemmRole role);
  /// A view without memory: type and shape of the tensor that `slot` quantizes.
  TensorView source_without_memory(Slot slot) const;
  /// True if `source` itself serves as the operand in `slot`, without a copy. The transposed
  /// orientation is then read along contiguous rows.
  bool is_source(Slot slot, const TensorView& source) const;
  /// True if x itself serves as both of its operands, so that forward measures both.
  bool are_measured_together(const TensorView& x) const;
  void be_source(Slot slot, const TensorView& source);
  /// The amax history behind the scale of `slot`; empty if the scale is not delayed.
  const TensorView& state_of(Slot slot) const;
  /// True if one call quantizes both orientations from the same tensor.
  bool have_one_source(Slot first) const;
  /// The part of keeps_codes() that depends on the recipe alone.
  bool may_keep_codes() const;
  bool is_warming_up(Slot slot) const;
  /// In the first steps of a history: quantizes again with the current scale of `source`, whose
  /// amax the quantization before it has recorded.
  void rescale_in_warmup(const StepContext& context, Slot slot, const TensorView& source);
  /// Points the operand in `slot` at its memory; returns false if `source` itself serves.
  bool bind(Slot slot, const TensorView& source);
  /// The same for both orientations; returns false unless both are quantized from `source`.
  bool bind_both(Slot first, const TensorView& source);
  /// The phases in which a second orientation, made from the codes of the first, may be live.
  LiveRange dequantized_range() const { return {PassPhase::weights, life_.backward}; }
  LiveRange product_range(GemmRole role) const {
    return role == GemmRole::fprop ? forward_range() : life_.backward;
  }
  /// d = the GEMM `role` of its quantized operands. `a` and `b` are the unquantized tensors;
  /// `differentiated` is the tensor of fprop whose gradient d is, empty for fprop itself.
  void multiply(GemmRole role, const TensorView& a, const TensorView& b,
                const TensorView& differentiated, const TensorView& bias, bool accumulate,
                const TensorView& d);
  /// The GEMMs of forward and backward; x or dy is quantized already.
  void multiply_forward(const StepContext& context, const TensorView& x, const TensorView& y);
  void multiply_backward(const StepContext& context, const TensorView& x, const TensorView& dy,
                         const TensorView& dx);
  RandomKey key_of(const StepContext& context, Slot slot) const;
  /// The row of statistics() for `slot`.
  TensorView record_of(Slot slot) const;
  /// On a logged step: computes the statistics of the operand in `slot`, or of both orientations.
  void measure(const StepContext& context, Slot slot, const TensorView& original);
  void measure_both(const StepContext& context, Slot first, const TensorView& original);
  /// Runs `producer` and quantizes its output in both orientations; bind_both() came before.
  void produce_both(const StepContext& context, Slot first, const ops::Producer& producer,
                    bool is_read);
  /// Quantizes the operand in `slot` from `original`, the tensor in its natural orientation.
  void make(const StepContext& context, Slot slot, const TensorView& original);
  /// make(), then measure().
  void quantize(const StepContext& context, Slot slot, const TensorView& original);
  /// Quantizes `original` into the slot `first` and into the other orientation of that tensor.
  void quantize_both(const StepContext& context, Slot first, const TensorView& original);
  bool is_smoothed(GemmRole role) const;
  /// True for a weight that is quantized only when its partner operand is known: a smoothed one, or
  /// one made from the codes of a smoothed one.
  bool is_late_weight(Slot slot) const;
  /// True if the weight is quantized again for each pass instead of kept, and is not late.
  bool is_remade_weight(Slot slot) const;
  /// Quantizes a weight with the bits that prepare_weights gives it.
  void remake_weight(const StepContext& context, Slot slot);
  /// Quantizes fprop.w again if backward reads it and it is not kept.
  void restore_forward_weight(const StepContext& context);
  /// Computes the smoothing factors of a GEMM from the unquantized tensors of its operands.
  void smooth(GemmRole role, const TensorView& a, const TensorView& b);
  /// The tensor that `slot` quantizes, as its OrientationSource says.
  TensorView source_of(Slot slot, const TensorView& original);

  Backend& backend_;
  Workspace& workspace_;
  std::string name_;
  std::uint32_t index_;
  LinearRecipe recipe_;
  const Parameter& weight_;
  const Parameter* bias_;
  Purpose purpose_;
  OperandLife life_;
  bool keeps_codes_ = false;
  PerSlot<QuantizedOperand> operands_;
  QuantizedOperand whole_x_;  ///< fprop.x at its full number of rows
  TensorView statistics_;
  PerSlot<TensorView> states_;
  PerSlot<std::int64_t> history_steps_{};
  PerGemm<TensorView> factors_;
};

}  // namespace fp8lab
