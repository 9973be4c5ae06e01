// Estimates the GEMM time of a training step on a GPU from measured kernel rates.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "emulation/spec/recipe.hpp"
#include "src/architecture/declaration.hpp"

namespace fp8lab {

/// GPU on which the rates were measured.
inline constexpr const char* kRatedCard = "NVIDIA H200";

/// Returns the multiply-adds per second of our kernel for such a GEMM at 8192 x 8192 x 8192, from
/// experiments/results/h200_speed.md; none if the GEMM was not measured. A GEMM of two unquantized
/// operands has the rate of the BF16 tensor core.
std::optional<double> measured_rate(const GemmSpec& gemm, const QuantSpec& a, const QuantSpec& b);

/// Estimates the seconds of the three GEMMs of all linear layers except the head in a step of
/// `tokens` tokens, without quantization, attention and norms. The rates hold for large layers.
/// Returns none if one of the GEMMs was not measured.
std::optional<double> product_seconds(const Recipe& recipe,
                                      const std::vector<LinearDeclaration>& linears,
                                      std::int64_t layers, std::int64_t tokens);

}  // namespace fp8lab
