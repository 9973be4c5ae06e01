// The three GEMMs of a linear layer y = x W^T (+ bias), as a function of the caller's tensors.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "emulation/backend.hpp"
#include "emulation/spec/recipe.hpp"
#include "src/architecture/live_range.hpp"
#include "src/config/config.hpp"
#include "src/model/linear/operand_set.hpp"
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

/// The layer index and the tensor that are encoded in a random key of a linear layer.
std::uint32_t linear_of(const RandomKey& key);
Tensor tensor_of(const RandomKey& key);

/// All of a linear layer but its tensors.
struct LinearDescription {
  std::string name;         ///< in errors
  std::uint32_t index = 0;  ///< identifies the layer in random keys
  LinearRecipe recipe;
  std::int64_t tokens = 0;  ///< T, the largest number of tokens of one forward pass
  std::int64_t in = 0, out = 0;
  DType activation = DType::bf16;      ///< of x, dy and the working weights
  DType master_weight = DType::f32;    ///< of the weights that a spec may read instead
  DType weight_gradient = DType::f32;  ///< of dw; with bf16 wgrad rounds to BF16
  /// The GEMMs that run: without a backward pass fprop alone, with a frozen weight no wgrad. The
  /// operands of the others are not made.
  PerGemm<bool> runs = {true, true, true};
  OperandLife life{};
};

/// The weights of a linear layer, (out, in).
struct LinearWeight {
  TensorView master, working;

  /// Returns the weights that the quantizer `spec` of a slot names.
  const TensorView& source(const QuantSpec& spec) const;
};

/// What a forward pass reads, and the backward pass after it once more: x (T, in) and W.
struct LinearInputs {
  TensorView x;
  LinearWeight w;
};

/// What a backward pass writes. Without dx no dgrad runs, without dw no wgrad.
struct LinearGradients {
  TensorView dx;    ///< (T, in)
  TensorView dw;    ///< (out, in): overwritten, or added to if the context says so
  TensorView bias;  ///< (1, out), always added to; empty without a bias
};

/// Operands of a function that is used alone, and the buffers in which they lie.
struct LinearMemory {
  std::unique_ptr<Workspace> buffers;
  OperandSet operands;
};

/// Computes y, dx and dw of one layer. It holds no tensor: the operands, which backward reads after
/// forward, and the state of their scales are in the OperandSet that the caller passes.
class LinearFunction {
 public:
  /// Throws RecipeError, or Error that names the layer, for a recipe or a shape that is impossible.
  LinearFunction(Backend& backend, LinearDescription description);

  /// Operands of this function, in the order of kSlots; buffers are reserved in `workspace`. Throws
  /// Error that names the layer and the slot or the GEMM if the backend refuses it.
  OperandSet make_operands(Workspace& workspace) const;
  /// The same in memory of their own. Each pass quantizes its weights: prepare_weights() has
  /// nothing to do if the description says WeightCodes::remake.
  LinearMemory make_operands() const;

  /// Quantizes the weights that are kept for a step. Call once a step. Smoothed weights depend on
  /// the activations: forward and backward quantize them.
  void prepare_weights(OperandSet& operands, const StepContext& context,
                       const LinearWeight& w) const;

  /// y (T, out) = x W^T + bias (1, out) or empty. Fewer rows are allowed if needs_x(), or without a
  /// backward pass.
  void forward(OperandSet& operands, const StepContext& context, const LinearInputs& inputs,
               const TensorView& bias, const TensorView& y) const;
  /// The same for the x that `producer` computes; a backend may fuse its quantization.
  void forward(OperandSet& operands, const StepContext& context, const ops::Producer& producer,
               const LinearWeight& w, const TensorView& bias, const TensorView& y) const;
  /// Recomputes the operands of x that forward leaves for backward; runs no GEMM.
  void recompute_x(OperandSet& operands, const StepContext& context,
                   const ops::Producer& producer) const;
  /// Makes the operands of x that forward leaves for backward, if another forward pass ran since.
  /// Runs no GEMM, measures nothing. Precondition: needs_x().
  void restore_x(OperandSet& operands, const StepContext& context,
                 const LinearInputs& inputs) const;
  /// Gradients from dy (T, out), the inputs of the last forward pass and the operands that it left.
  /// x is read if needs_x().
  void backward(OperandSet& operands, const StepContext& context, const LinearInputs& inputs,
                const TensorView& dy, const LinearGradients& gradients) const;
  /// The same for the dy that `producer` computes.
  void backward(OperandSet& operands, const StepContext& context, const LinearInputs& inputs,
                const ops::Producer& producer, const LinearGradients& gradients) const;

  /// False if backward reads no x after the forward pass, which has left the codes of wgrad.x, or
  /// because wgrad does not run: x may be overwritten, and need not be stored.
  bool needs_x() const { return needs_x_; }
  const LinearDescription& description() const { return description_; }
  const LinearRecipe& recipe() const { return description_.recipe; }

 private:
  /// The label of its operations.
  Label label() const { return backend_.label().in_layer(description_.name); }
  bool has_backward() const { return description_.runs[GemmRole::dgrad]; }
  bool has_wgrad() const { return description_.runs[GemmRole::wgrad]; }
  /// The weights that `slot` (fprop.w or dgrad.w) quantizes.
  const TensorView& source_of(Slot slot, const LinearWeight& w) const {
    return w.source(recipe().slot(slot));
  }
  std::vector<OperandDeclaration> declarations() const;
  OperandMemory memory_of(Slot slot) const;
  /// True if the recipe allows that the forward pass quantizes both orientations of x.
  bool may_keep_codes() const;
  /// True if backward reads this operand of x, and forward computes it.
  bool is_left_for_backward(Slot slot) const;
  /// The phases in which the forward pass runs.
  LiveRange forward_range() const;
  /// The phases in which the operand in `slot` is live if it lies in a shared buffer.
  LiveRange live_range(Slot slot) const;
  LiveRange product_range(GemmRole role) const {
    return role == GemmRole::fprop ? forward_range() : description_.life.backward;
  }
  /// Checks that the backend runs the GEMM, and reserves its scratch memory.
  void reserve_product(const OperandSet& operands, Workspace& workspace, GemmRole role) const;
  /// The operand of fprop whose gradient estimator multiplies the result of `role`; null if none.
  const QuantizedOperand* estimated(const OperandSet& operands, GemmRole role) const;

  /// A GEMM of quantized operands. `a` and `b` are the unquantized tensors; `differentiated` is the
  /// tensor of fprop whose gradient d is, empty for fprop itself.
  struct Multiplication {
    GemmRole role;
    TensorView a, b, differentiated;
    TensorView bias;
    bool accumulate = false;
    TensorView d;
  };
  void multiply(const OperandSet& operands, const Multiplication& m) const;
  /// The GEMMs of forward and backward; x or dy is quantized already.
  void multiply_forward(OperandSet& operands, const StepContext& context,
                        const LinearInputs& inputs, const TensorView& bias,
                        const TensorView& y) const;
  void multiply_backward(OperandSet& operands, const StepContext& context,
                         const LinearInputs& inputs, const TensorView& dy,
                         const LinearGradients& gradients) const;

  void multiply_weight_gradient(OperandSet& operands, const StepContext& context,
                                const LinearInputs& inputs, const TensorView& dy,
                                const TensorView& dw) const;

  /// True if x itself serves as both of its operands, so that forward measures both.
  bool are_measured_together(const OperandSet& operands, const TensorView& x) const;
  bool is_smoothed(GemmRole role) const;
  /// Computes the smoothing factors of a GEMM from the unquantized tensors of its operands.
  void smooth(OperandSet& operands, GemmRole role, const TensorView& a, const TensorView& b) const;
  /// True for a weight that is quantized only when its partner operand is known: a smoothed one, or
  /// one made from the codes of a smoothed one.
  bool is_late_weight(Slot slot) const;
  /// True if the weight is quantized again for each pass instead of kept, and is not late.
  bool is_remade_weight(const OperandSet& operands, Slot slot) const;
  void quantize_weight(OperandSet& operands, const StepContext& context, Slot slot,
                       const LinearWeight& w) const;
  /// Quantizes a weight with the bits that prepare_weights gives it.
  void remake_weight(OperandSet& operands, const StepContext& context, Slot slot,
                     const LinearWeight& w) const;
  /// Quantizes fprop.w again if backward reads it and it is not kept.
  void restore_forward_weight(OperandSet& operands, const StepContext& context,
                              const LinearWeight& w) const;
  void run(const ops::Producer& producer) const;

  Backend& backend_;
  LinearDescription description_;
  bool keeps_codes_;  ///< forward quantizes both orientations of x, and leaves wgrad.x
  bool needs_x_;
};

}  // namespace fp8lab
