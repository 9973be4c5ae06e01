// The residual stream between blocks.
#pragma once

#include <cstdint>
#include <optional>

#include "src/model/work.hpp"

namespace fp8lab {

/// The stream at one place, (tokens, C): the tensor `x`, or the two summands that the norm which
/// reads it adds up into `x` first, each times its factor. One of them may be x.
struct Residual {
  struct Summands {
    TensorView a, b;
    ResidualFactors factors{};  ///< of a and of b
  };
  TensorView x;
  std::optional<Summands> summands = std::nullopt;

  /// Of `count` tokens from `first` on.
  Residual rows(std::int64_t first, std::int64_t count) const {
    Residual part{x.row_range(first, count)};
    if (summands) {
      part.summands = {summands->a.row_range(first, count), summands->b.row_range(first, count),
                       summands->factors};
    }
    return part;
  }
};

/// x itself, for a reader that is no norm.
inline TensorView added_up(Work& work, const Residual& residual) {
  if (!residual.summands) return residual.x;
  const auto& [a, b, factors] = *residual.summands;
  if (factors.are_one()) {
    work.run(ops::Add{.a = a, .b = b, .sum = residual.x});
  } else {
    work.run(ops::WeightedSum{.a = a,
                              .factor_a = static_cast<float>(factors.stream),
                              .b = b,
                              .factor_b = static_cast<float>(factors.branch),
                              .sum = residual.x});
  }
  return residual.x;
}

/// The stream for a norm, which adds up summands without factors itself.
inline Residual for_norm(Work& work, const Residual& residual) {
  if (!residual.summands || residual.summands->factors.are_one()) return residual;
  return {added_up(work, residual)};
}

}  // namespace fp8lab
