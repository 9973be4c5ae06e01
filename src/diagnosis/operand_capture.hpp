// A backend that passes the unquantized operands of linear layers to a visitor.
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "emulation/recording/stand_in.hpp"
#include "src/model/linear/linear.hpp"

namespace fp8lab {

/// The unquantized activations of one linear layer y = x W^T in one micro-batch, in backend memory.
struct CapturedLinear {
  std::size_t index = 0;  ///< in the order of Declaration::linears()
  const Linear& linear;   ///< the layer in the run's model
  TensorView x;           ///< (T, in)
  TensorView dy;          ///< (T, out)
};

/// Intercepts ops::MeasureOperand: copies x of each watched layer in the forward pass, and calls
/// `visit` in the backward pass as soon as the layer's dy is available. Computes neither statistics
/// nor weight gradients, whose buffers are unchanged. All other operations run on `original`.
class OperandCapture final : public PassThrough {
 public:
  using Visit = std::function<void(const CapturedLinear&)>;

  /// Precondition: `original` outlives this.
  explicit OperandCapture(Backend& original) : PassThrough(original) {}

  /// Starts to capture the operands of `chosen`, indices into `linears`, all linear layers on this
  /// backend. The layers take `tokens` rows of type `activation`. Precondition: `visit` releases
  /// what it allocates.
  void watch(const std::vector<std::unique_ptr<Linear>>& linears,
             const std::vector<std::size_t>& chosen, std::int64_t tokens, DType activation,
             Visit visit);

#define FP8LAB_OPERATION(Name) \
  void run(const ops::Name& op) override { pass(op); }
  FP8LAB_FOR_EACH_OPERATION(FP8LAB_OPERATION)
  FP8LAB_FOR_EACH_COMPOSITE(FP8LAB_OPERATION)
#undef FP8LAB_OPERATION

 private:
  struct Watched {
    std::size_t index = 0;
    const Linear* linear = nullptr;
    TensorView x;
  };

  template <class Op>
  void pass(const Op& op) {
    original().run(op);
  }
  void pass(const ops::MeasureOperand& op);
  void pass(const ops::Product& op);
  void pass(const ops::MeasureBoth& op) {
    op.for_each_part([this](const auto& part) { pass(part); });
  }

  std::vector<Watched> watched_;
  std::map<std::string, std::size_t> by_layer_;  ///< indices of watched_
  Visit visit_;
};

}  // namespace fp8lab
