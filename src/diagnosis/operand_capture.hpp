// A backend that hands out what linear layers multiply, before it is quantized.
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "emulation/recording/stand_in.hpp"
#include "src/model/linear.hpp"

namespace fp8lab {

/// The unquantized activations of one linear layer y = x W^T in one micro-batch, in backend memory.
struct CapturedLinear {
  std::size_t index = 0;  ///< in the order of Declaration::linears()
  const Linear& linear;   ///< as the run has it
  TensorView x;           ///< (T, in)
  TensorView dy;          ///< (T, out)
};

/// Runs everything on `original`. A pass that measures its operands shows them here, each with the
/// record that is its layer's and slot's: x is copied in the forward pass, and in the backward pass
/// `visit` is called for one layer after the other as soon as its dy is there. Nothing is measured,
/// and no gradient of a weight is computed: it stays what it was.
class OperandCapture final : public PassThrough {
 public:
  using Visit = std::function<void(const CapturedLinear&)>;

  /// `original` must outlive this.
  explicit OperandCapture(Backend& original) : PassThrough(original) {}

  /// From now on captures the operands of the `chosen` among `linears`, all layers on this backend
  /// that take `tokens`, whose activations are of type `activation`. What `visit` allocates it must
  /// release.
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
  std::map<const void*, std::pair<std::size_t, Slot>> records_;  ///< by where statistics go
  std::set<const void*> gradients_;                              ///< of weights
  Visit visit_;
};

}  // namespace fp8lab
