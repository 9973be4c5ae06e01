// The residual stream between blocks.
#pragma once

#include <cstdint>
#include <optional>

#include "src/model/work.hpp"

namespace fp8lab {

/// The stream at one place, (tokens, C): the tensor `x`, or the two summands that the norm which
/// reads it adds up into `x` first. One of them may be x.
struct Residual {
  struct Summands {
    TensorView a, b;
  };
  TensorView x;
  std::optional<Summands> summands = std::nullopt;

  /// Of `count` tokens from `first` on.
  Residual rows(std::int64_t first, std::int64_t count) const {
    Residual part{x.row_range(first, count)};
    if (summands) {
      part.summands = {summands->a.row_range(first, count), summands->b.row_range(first, count)};
    }
    return part;
  }
};

/// x itself, for a reader that is no norm.
inline TensorView added_up(Work& work, const Residual& residual) {
  if (residual.summands) {
    work.run(ops::Add{.a = residual.summands->a, .b = residual.summands->b, .sum = residual.x});
  }
  return residual.x;
}

}  // namespace fp8lab
