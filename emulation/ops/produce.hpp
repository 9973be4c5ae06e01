// An operation whose result is quantized as it is stored.
#pragma once

#include <optional>
#include <variant>

#include "emulation/ops/gelu.hpp"
#include "emulation/ops/layernorm.hpp"
#include "emulation/ops/quantize.hpp"
#include "emulation/ops/rmsnorm.hpp"
#include "emulation/ops/swiglu.hpp"

namespace fp8lab::ops {

/// What can be quantized where it is made.
using Producer = std::variant<RmsNormForward, LayerNormForward, SwigluForward, SwigluBackward,
                              GeluForward, GeluBackward>;

inline const TensorView& output_of(const Producer& producer) {
  return std::visit([](const auto& op) -> const TensorView& { return op.output(); }, producer);
}

/// Runs `producer`, then quantizes its output into `first` (key.orientation 0), and where `second`
/// is not null its transpose into that (key.orientation 1). The output is stored as well, and what
/// is quantized is the stored value.
struct ProduceQuantize {
  Producer producer;
  RandomKey key;
  TensorView state;
  QuantizedOperand& first;
  QuantizedOperand* second = nullptr;
};

}  // namespace fp8lab::ops
