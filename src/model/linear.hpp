// A linear layer y = x W^T (+ bias): three GEMMs whose six operands follow a recipe.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "emulation/backend.hpp"
#include "emulation/spec/recipe.hpp"
#include "src/model/live_range.hpp"
#include "src/model/operand_set.hpp"
#include "src/model/parameters.hpp"
#include "src/model/step_context.hpp"
#include "src/model/workspace.hpp"

namespace fp8lab {

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

/// The row of a slot in the operands of a linear layer.
constexpr OperandId id_of(Slot slot) { return OperandId{static_cast<std::size_t>(slot)}; }

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

  /// The six operands, in the order of kSlots.
  const OperandSet& operands() const { return operands_; }
  OperandSet& operands() { return operands_; }

  /// True if the forward pass quantizes both orientations of x and saves the codes of wgrad.x: x
  /// itself may be overwritten, and need not be stored.
  bool keeps_codes() const { return keeps_codes_; }

  const std::string& name() const { return name_; }
  const LinearRecipe& recipe() const { return recipe_; }
  std::int64_t in() const { return weight_.master().cols; }
  std::int64_t out() const { return weight_.master().rows; }

  /// The weights that `slot` (fprop.w or dgrad.w) quantizes.
  TensorView weight_source(Slot slot) const;

  /// The gradient of the weight that backward() writes.
  const TensorView& weight_gradient() const { return weight_.gradient(); }

  /// OperandSet::statistics() and delayed_states() of the six operands.
  const TensorView& statistics() const { return operands_.statistics(); }
  const std::vector<TensorView>& delayed_states() const { return operands_.delayed_states(); }
  /// Smoothing factors of fprop, dgrad and wgrad; empty without smoothing.
  PerGemm<TensorView> smoothing_factors() const;

 private:
  const QuantizedOperand& operand(Slot slot) const { return operands_.operand(id_of(slot)); }
  bool is_kept(Slot slot) const { return operands_.is_kept(id_of(slot)); }
  /// True if backward reads this operand of x, and forward computes it.
  bool is_left_for_backward(Slot slot) const;
  /// The phases in which the layer's forward pass runs.
  LiveRange forward_range() const;
  /// The phases in which the operand in `slot`, which uses a shared buffer, is live.
  LiveRange live_range(Slot slot) const;
  OperandMemory memory_of(Slot slot) const;
  /// The six operands for `tokens`; those of dgrad and wgrad are made in training only.
  std::vector<OperandDeclaration> declarations(std::int64_t tokens) const;
  /// The operand of fprop whose gradient estimator multiplies the result of `role`; null if none.
  const QuantizedOperand* estimated(GemmRole role) const;
  /// Reserves the scratch memory of the GEMM `role`. Throws Error that names the layer and the GEMM
  /// if the backend refuses it.
  void reserve_product(GemmRole role);
  /// True if x itself serves as both of its operands, so that forward measures both.
  bool are_measured_together(const TensorView& x) const;
  /// The part of keeps_codes() that depends on the recipe alone.
  bool may_keep_codes() const;
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
  void quantize_weight(const StepContext& context, Slot slot);
  bool is_smoothed(GemmRole role) const;
  /// Computes the smoothing factors of a GEMM from the unquantized tensors of its operands.
  void smooth(GemmRole role, const TensorView& a, const TensorView& b);
  /// True for a weight that is quantized only when its partner operand is known: a smoothed one, or
  /// one made from the codes of a smoothed one.
  bool is_late_weight(Slot slot) const;
  /// True if the weight is quantized again for each pass instead of kept, and is not late.
  bool is_remade_weight(Slot slot) const;
  /// Quantizes a weight with the bits that prepare_weights gives it.
  void remake_weight(const StepContext& context, Slot slot);
  /// Quantizes fprop.w again if backward reads it and it is not kept.
  void restore_forward_weight(const StepContext& context);

  Backend& backend_;
  Workspace& workspace_;
  std::string name_;
  std::uint32_t index_;
  LinearRecipe recipe_;
  const Parameter& weight_;
  const Parameter* bias_;
  Purpose purpose_;
  OperandLife life_;
  bool keeps_codes_;
  OperandSet operands_;
};

}  // namespace fp8lab
