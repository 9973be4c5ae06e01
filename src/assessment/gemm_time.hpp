// How long the products of a training step take on a card, from measured kernels.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "emulation/spec/recipe.hpp"
#include "src/model/declaration.hpp"

namespace fp8lab {

/// The card whose kernels the rates are of.
inline constexpr const char* kRatedCard = "NVIDIA H200";

/// Multiply-adds a second of our kernel for such a product at 8192 x 8192 x 8192, as
/// experiments/results/h200_speed.md has them; nothing for a product that was not measured. A
/// product of formats that the card has no instruction for is the BF16 tensor core's.
std::optional<double> measured_rate(const GemmSpec& gemm, const QuantSpec& a, const QuantSpec& b);

/// Seconds of the three products of all linear layers but the head in a step of `tokens` tokens; a
/// model of large layers, without quantization, attention and norms. Nothing where one of them was
/// not measured.
std::optional<double> product_seconds(const Recipe& recipe,
                                      const std::vector<LinearDeclaration>& linears,
                                      std::int64_t layers, std::int64_t tokens);

}  // namespace fp8lab
