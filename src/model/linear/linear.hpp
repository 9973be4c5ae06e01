// A linear layer of a model: its function, its parameters, and the memory of its operands.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "src/model/linear/linear_function.hpp"
#include "src/model/weights/parameters.hpp"

namespace fp8lab {

class Linear {
 public:
  /// `tokens` is T, the largest number of tokens of one forward pass. `index` identifies the layer
  /// in random keys. Buffers that layers share are reserved in `workspace`.
  Linear(Backend& backend, Workspace& workspace, std::string name, std::uint32_t index,
         const LinearRecipe& recipe, const Parameter& weight, const Parameter* bias,
         std::int64_t tokens, Purpose purpose, OperandLife life);

  /// LinearFunction::prepare_weights. Call once a step, and before an evaluation that follows an
  /// update.
  void prepare_weights(const StepContext& context);

  /// y (T, out) = x (T, in) W^T + bias; fewer rows are allowed. backward reads x again if
  /// needs_x().
  void forward(const StepContext& context, const TensorView& x, const TensorView& y);

  /// The same for the x that `producer` computes; a backend may fuse its quantization.
  void forward(const StepContext& context, const ops::Producer& producer, const TensorView& y);

  /// Recomputes the operands of x that forward saves for backward; runs no GEMM.
  void recompute_x(const StepContext& context, const ops::Producer& producer);

  /// dx (T, in) from dy (T, out) and the x of the last forward pass. The weight gradient is
  /// overwritten, or added to if the context says so; the bias gradient is always added to. Frozen
  /// parameters have no gradient.
  void backward(const StepContext& context, const TensorView& x, const TensorView& dy,
                const TensorView& dx);

  /// The same for the dy that `producer` computes.
  void backward(const StepContext& context, const TensorView& x, const ops::Producer& producer,
                const TensorView& dx);

  /// The six operands, in the order of kSlots.
  const OperandSet& operands() const { return operands_; }
  OperandSet& operands() { return operands_; }

  /// LinearFunction::needs_x.
  bool needs_x() const { return function_.needs_x(); }
  const std::string& name() const { return function_.description().name; }
  const LinearRecipe& recipe() const { return function_.recipe(); }
  std::int64_t in() const { return function_.description().in; }
  std::int64_t out() const { return function_.description().out; }

  /// The gradient of the weight that backward() writes.
  const TensorView& weight_gradient() const { return weight_.gradient(); }

  /// OperandSet::statistics() and delayed_states() of the six operands.
  const TensorView& statistics() const { return operands_.statistics(); }
  const std::vector<TensorView>& delayed_states() const { return operands_.delayed_states(); }
  /// Smoothing factors of fprop, dgrad and wgrad; empty without smoothing.
  PerGemm<TensorView> smoothing_factors() const;

 private:
  LinearWeight weight() const { return {weight_.master(), weight_.working()}; }
  TensorView bias() const { return bias_ == nullptr ? TensorView{} : bias_->working(); }
  LinearGradients gradients(const TensorView& dx) const;

  const Parameter& weight_;
  const Parameter* bias_;
  LinearFunction function_;
  OperandSet operands_;
};

}  // namespace fp8lab
