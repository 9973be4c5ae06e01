// An operation whose result is quantized when it is stored.
#pragma once

#include <optional>
#include <variant>

#include "emulation/ops/pointwise/activation.hpp"
#include "emulation/ops/pointwise/add_norm.hpp"
#include "emulation/ops/pointwise/gated.hpp"
#include "emulation/ops/pointwise/layernorm.hpp"
#include "emulation/ops/pointwise/rmsnorm.hpp"
#include "emulation/ops/pointwise/xielu.hpp"
#include "emulation/ops/quantize/quantize.hpp"

namespace fp8lab::ops {

/// Operations whose result can be quantized when it is stored.
using Producer = std::variant<RmsNormForward, LayerNormForward, AddRmsNormForward,
                              AddLayerNormForward, GatedForward, GatedBackward, ActivationForward,
                              ActivationBackward, XieluForward, XieluBackward>;

inline const TensorView& output_of(const Producer& producer) {
  return std::visit([](const auto& op) -> const TensorView& { return op.output(); }, producer);
}

/// Runs `producer`, then quantizes its output into `first` and, if `second` is not null, its
/// transpose into `second`. The quantization reads the value as stored. Unless `keeps_output`, the
/// contents of the output tensor are unspecified afterwards.
struct ProduceQuantize {
  static constexpr std::string_view kName = "produce_quantize";
  static constexpr WorkClass kClass = WorkClass::quantization;

  Producer producer;
  TensorView state{};
  const QuantizedOperand& first;
  const QuantizedOperand* second = nullptr;
  bool keeps_output = true;

  /// Calls visit(op) for each operation that this one consists of, in order.
  template <class Visit>
  void for_each_part(const Visit& visit) const {
    std::visit(visit, producer);
    const TensorView& output = output_of(producer);
    if (second != nullptr) {
      visit(QuantizeBoth{.source = output, .state = state, .first = first, .second = *second});
    } else {
      visit(Quantize{.source = output, .state = state, .operand = first});
    }
  }

  template <class Visit>
  void for_each_tensor(const Visit& visit) const {
    const TensorView& output = output_of(producer);
    std::visit(
        [&](const auto& op) {
          op.for_each_tensor([&](const OperationTensor& tensor) {
            const bool is_unread = tensor.is_output() && tensor.view.data == output.data;
            if (keeps_output || !is_unread) visit(tensor);
          });
        },
        producer);
    visit_quantizer_inputs(visit, first);
    if (second != nullptr) visit_quantizer_inputs(visit, *second);
    visit_written_operand(visit, first);
    if (second != nullptr) visit_written_operand(visit, *second);
    visit(updates("delayed state", state));
  }
  void check() const {
    for_each_part([](const auto& op) { op.check(); });
  }
  /// Elements of the producer, and elements quantized.
  double work() const {
    double sum = 0;
    for_each_part([&](const auto& op) { sum += op.work(); });
    return sum;
  }
};

}  // namespace fp8lab::ops
