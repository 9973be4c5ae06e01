// Test inputs for conversions, scales and quantizers.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "emulation/cases/case_generator.hpp"
#include "src/validate/suite.hpp"

namespace fp8lab {

inline constexpr numerics::FormatSpec kElementFormats[] = {numerics::kE4M3, numerics::kE5M2,
                                                           numerics::kE3M4, numerics::kE2M3,
                                                           numerics::kE3M2, numerics::kE2M1};
/// Returns the named formats with a sign, an exponent or a fixed point, and at most 16 bits.
std::vector<numerics::FormatSpec> cast_formats();
inline constexpr numerics::Rounding kRoundings[] = {
    numerics::Rounding::nearest, numerics::Rounding::toward_zero, numerics::Rounding::stochastic};

/// Number of scale rules. By index: the 3 FP32 arithmetics, then 7 roundings each for pow2, e8m0,
/// and pow2 times a factor.
inline constexpr int kScaleRules = 24;
numerics::ScaleRule scale_rule(int index);

/// Returns amaxes at the limits, at powers of two times the largest code and times 1, with their
/// neighbours, and at random.
std::vector<float> amaxes(const numerics::FormatSpec& format, CaseGenerator& cases);

/// A quantization and the memory of its tensors.
struct QuantizeProblem {
  std::vector<float> f32;
  std::vector<std::uint16_t> bf16;  ///< empty if the source is FP32
  std::int64_t rows = 0, cols = 0;  ///< shape of the source
  bool transpose = false;
  RandomKey key;
  QuantSpec spec;
  std::vector<std::uint8_t> codes;  ///< result of run()
  std::vector<float> scales;

  TensorView source();
  void run(const Implementation& implementation);
  std::string describe() const;
};

/// Draws a matrix and a quantizer with any format, tile, rule, statistic, rounding and
/// overflow; does not run it.
QuantizeProblem draw_quantization(CaseGenerator& cases);

}  // namespace fp8lab
