// What a block of a decoder layer reads.
#pragma once

#include <variant>

#include "src/model/work.hpp"

namespace fp8lab {

/// The input (tokens, C) of a block's first linear layer: the norm that computes it, or, of a block
/// without a norm in front, the residual stream itself.
using BlockInput = std::variant<ops::Producer, TensorView>;

/// y = x W^T + bias of the linear layer.
inline void forward_linear(Work& work, LinearId linear, const BlockInput& input,
                           const TensorView& y) {
  std::visit([&](const auto& x) { work.linear(linear).forward(work.context(), x, y); }, input);
}

}  // namespace fp8lab
