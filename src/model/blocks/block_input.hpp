// What a block of a decoder layer reads.
#pragma once

#include <variant>

#include "src/architecture/parts.hpp"
#include "src/model/work.hpp"

namespace fp8lab {

/// The input (tokens, C) of a block's first linear layer: the norm that computes it, or, of a block
/// without a norm in front, the residual stream itself.
using BlockInput = std::variant<ops::Producer, TensorView>;

/// y = x W^T + bias of the linear layer, plus its adapters.
void forward_linear(Work& work, const AdaptedLinear& linear, const BlockInput& input,
                    const TensorView& y);
/// dx from dy, or from the operation that makes dy, and the x of the forward pass; accumulates
/// weight gradients. dx is none of the other tensors.
void backward_linear(Work& work, const AdaptedLinear& linear, const TensorView& x,
                     const BlockInput& dy, const TensorView& dx);

}  // namespace fp8lab
