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

/// Where a step stands: keys of random bits, and whether operands are measured.
struct StepContext {
  std::uint64_t seed = 0;
  std::uint32_t step = 0;                       ///< optimizer step of the run
  const std::uint32_t* step_counter = nullptr;  ///< RandomKey::step_counter
  std::uint32_t micro_batch = 0;
  bool log_statistics = false;
  bool measures_chunks = false;  ///< then of all chunks of the loss, not only of the first
};

/// What the operands of a layer wait for, and who makes them again.
struct OperandLife {
  bool owns_x = false;  ///< every x comes from a producer and nothing else reads it
  /// Not empty where the pass that made x is made again right before backward: layers of this name,
  /// one a decoder layer, hold what they keep of x one after another.
  std::string recomputed;
  WeightCodes weights = WeightCodes::keep;
  Stretch forward = Stretch::head, backward = Stretch::head;  ///< those of its block
};

/// The slot whose state the delayed scale of `slot` is taken from. Orientations that derive the
/// same scale from the same amaxes have one state, that of the first. Others have a state each,
/// which sees the amaxes of what the slot quantizes: of one unquantized tensor, they are the same.
Slot history_slot(const LinearRecipe& recipe, Slot slot);

/// The layer and the tensor that a random key of Linear belongs to.
std::uint32_t linear_of(const RandomKey& key);
Tensor tensor_of(const RandomKey& key);

class Linear {
 public:
  /// `tokens` is the T of a micro-batch, the most that one forward takes; `index` identifies the
  /// layer in random keys. Buffers shared between layers are reserved in `workspace`.
  Linear(Backend& backend, Workspace& workspace, std::string name, std::uint32_t index,
         const LinearRecipe& recipe, const Parameter& weight, const Parameter* bias,
         std::int64_t tokens, Purpose purpose, OperandLife life);

  /// Quantizes the weights that are kept, but for smoothed ones, which forward and backward
  /// quantize. Once a step, and before an evaluation that follows an update.
  void prepare_weights(const StepContext& context);

  /// y (T, out) from x (T, in), or of fewer rows. x is read again by backward unless keeps_codes().
  void forward(const StepContext& context, const TensorView& x, const TensorView& y);

  /// The same with the x that `producer` writes, which may be quantized where it is made.
  void forward(const StepContext& context, const ops::Producer& producer, const TensorView& y);

  /// Makes of `producer` what forward leaves for backward, without a product.
  void recompute_x(const StepContext& context, const ops::Producer& producer);

  /// dx (T, in) from dy (T, out) and the x of the last forward. The first micro-batch of a step
  /// writes the weight's gradient, the others add to it; the bias's is added to.
  void backward(const StepContext& context, const TensorView& x, const TensorView& dy,
                const TensorView& dx);

  /// The same with the dy that `producer` writes.
  void backward(const StepContext& context, const TensorView& x, const ops::Producer& producer,
                const TensorView& dx);

  /// Delayed scales take the amaxes that they have seen in the step.
  void update_delayed_scales();
  /// Counts the step in the histories of delayed scales.
  void end_step();
  /// True where the slot's scale is delayed and knows no amax yet: it is 1.
  bool is_without_history(Slot slot) const;
  /// True in the first steps of a history, whose scales are those of the tensors themselves.
  bool is_warming_up() const;
  /// Forgets the amaxes that an evaluation has seen.
  void discard_amaxes();

  /// True where the forward pass makes both operands of x, and what is kept for the backward pass
  /// are the codes of wgrad.x: x itself may be overwritten, and need not be stored.
  bool keeps_codes() const { return keeps_codes_; }

  const std::string& name() const { return name_; }
  const LinearRecipe& recipe() const { return recipe_; }
  std::int64_t in() const { return weight_.master().cols; }
  std::int64_t out() const { return weight_.master().rows; }
  /// Rows and K of the operand in `slot`.
  std::int64_t operand_rows(Slot slot) const { return operand(slot).rows; }
  std::int64_t operand_k(Slot slot) const { return operand(slot).k; }

  /// The weights that `slot`, fprop.w or dgrad.w, is made from.
  TensorView weight_source(Slot slot) const;

  /// Where backward() leaves the gradient of the weight.
  const TensorView& weight_gradient() const { return weight_.gradient(); }

  /// An OperandStatistics of each slot's operand on the last logged step, u8.
  const TensorView& statistics() const { return statistics_; }
  /// States of delayed scales, part of a checkpoint; empty but for the slots that history_slot
  /// gives for a delayed one.
  const PerSlot<TensorView>& delayed_states() const { return states_; }
  /// Steps whose amaxes each of them has seen.
  const PerSlot<std::int64_t>& history_steps() const { return history_steps_; }
  /// Continues a history of `steps` steps, whose state has been put into delayed_states().
  void continue_history(Slot slot, std::int64_t steps) { history_steps_[slot] = steps; }
  /// Smoothing factors of fprop, dgrad and wgrad, part of a checkpoint; empty without smoothing.
  const PerGemm<TensorView>& smoothing_factors() const { return factors_; }

 private:
  const QuantizedOperand& operand(Slot slot) const { return operands_[slot]; }
  QuantizedOperand& operand(Slot slot) { return operands_[slot]; }
  /// True where the operand has memory of its own, and not of those that are used one by one.
  bool is_kept(Slot slot) const;
  /// True where backward reads an operand of x that forward has made.
  bool is_left_for_backward(Slot slot) const;
  /// Makes the operand fprop.x one of `rows` rows.
  void fit_x(std::int64_t rows);
  /// When the layer's forward pass runs.
  LiveRange forward_range() const;
  /// When the operand in `slot`, which has no memory of its own, is in use.
  LiveRange live_range(Slot slot) const;
  std::string buffer_name(Slot slot) const;
  std::string scales_name(Slot slot) const;
  void reserve(Slot slot, const OperandShape& shape);
  /// Throw Error naming the layer and the slot or GEMM that the backend refuses.
  void require_quantizer(Slot slot);
  /// The operand of fprop whose estimator the gradient `role` is multiplied by; null without one.
  const QuantizedOperand* estimated(GemmRole role) const;
  /// Also reserves what the product needs besides its operands.
  void reserve_product(GemmRole role);
  /// The type and shape of the tensor that the operand in `slot` is made from.
  TensorView source_without_memory(Slot slot) const;
  /// True where the operand in `slot` is `source` itself, without a copy; a second orientation is
  /// read with its rows contiguous.
  bool is_source(Slot slot, const TensorView& source) const;
  /// True where both operands of x are x itself, so that forward measures that of backward too.
  bool are_measured_together(const TensorView& x) const;
  void be_source(Slot slot, const TensorView& source);
  /// The state behind a delayed scale; empty where the slot has none.
  const TensorView& state_of(Slot slot) const;
  /// True where both orientations of a tensor are made from it, in one step.
  bool have_one_source(Slot first) const;
  /// keeps_codes() as far as the recipe is concerned.
  bool may_keep_codes() const;
  bool is_warming_up(Slot slot) const;
  /// In the first steps of a history: quantizes once more, by the amax of `source` itself. The
  /// quantization before it has recorded that amax.
  void rescale_in_warmup(const StepContext& context, Slot slot, const TensorView& source);
  /// Gives the operand in `slot` its memory; false where it is the source itself.
  bool bind(Slot slot, const TensorView& source);
  /// The same for both orientations of a tensor; false unless both are made from `source`.
  bool bind_both(Slot first, const TensorView& source);
  /// When there may be a second orientation made from the codes of the first.
  LiveRange dequantized_range() const { return {Stretch::weights, life_.backward}; }
  LiveRange product_range(GemmRole role) const {
    return role == GemmRole::fprop ? forward_range() : life_.backward;
  }
  /// The product `role` of its quantized operands into d, `a` and `b` being their tensors before
  /// that, and `differentiated` the tensor of fprop whose gradient it is, if it is one.
  void multiply(GemmRole role, const TensorView& a, const TensorView& b,
                const TensorView& differentiated, const TensorView& bias, bool accumulate,
                const TensorView& d);
  /// The GEMMs of forward and backward, after x or dy has been quantized.
  void multiply_forward(const StepContext& context, const TensorView& x, const TensorView& y);
  void multiply_backward(const StepContext& context, const TensorView& x, const TensorView& dy,
                         const TensorView& dx);
  RandomKey key_of(const StepContext& context, Slot slot) const;
  /// The row of statistics() for `slot`.
  TensorView record_of(Slot slot) const;
  /// On a logged step, the statistics of the operand in `slot`, or in both orientations of a
  /// tensor.
  void measure(const StepContext& context, Slot slot, const TensorView& original);
  void measure_both(const StepContext& context, Slot first, const TensorView& original);
  /// Runs `producer` and quantizes its output in both orientations, which bind_both() has bound.
  void produce_both(const StepContext& context, Slot first, const ops::Producer& producer,
                    bool is_read);
  /// Makes the operand in `slot`. `original` is the unquantized tensor, in its natural orientation.
  void make(const StepContext& context, Slot slot, const TensorView& original);
  /// The same, and measures it.
  void quantize(const StepContext& context, Slot slot, const TensorView& original);
  /// Quantizes `original` into `first` and into the second orientation of its tensor.
  void quantize_both(const StepContext& context, Slot first, const TensorView& original);
  bool is_smoothed(GemmRole role) const;
  /// True for a weight that waits for the operand it is multiplied with: smoothed with it, or made
  /// from the codes of one that is.
  bool is_late_weight(Slot slot) const;
  /// True where the weight is not kept for the step, and not late.
  bool is_remade_weight(Slot slot) const;
  /// Quantizes a weight as prepare_weights does for the step.
  void remake_weight(const StepContext& context, Slot slot);
  /// Where backward reads the weight fprop.w, but it is not kept: makes it again.
  void restore_forward_weight(const StepContext& context);
  /// Takes the factors of a smoothed GEMM from the unquantized tensors of its operands.
  void smooth(GemmRole role, const TensorView& a, const TensorView& b);
  /// The tensor that `slot` is quantized from (OrientationSource).
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
  QuantizedOperand whole_x_;  ///< fprop.x with all the memory it has
  TensorView statistics_;
  PerSlot<TensorView> states_;
  PerSlot<std::int64_t> history_steps_{};
  PerGemm<TensorView> factors_;
};

}  // namespace fp8lab
