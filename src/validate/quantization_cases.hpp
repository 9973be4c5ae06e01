// Inputs of the checks of conversions, scales and quantizers.
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
/// The named formats with a sign, an exponent or a fixed point, and at most 16 bits.
std::vector<numerics::FormatSpec> cast_formats();
inline constexpr numerics::Rounding kRoundings[] = {
    numerics::Rounding::nearest, numerics::Rounding::toward_zero, numerics::Rounding::stochastic};

/// Scale rules by index: the 3 FP32 arithmetics, then 7 roundings each for pow2, e8m0, and pow2
/// times a factor.
inline constexpr int kScaleRules = 24;
numerics::ScaleRule scale_rule(int index);

/// Amaxes at the limits, at the largest code and powers of two times powers of two with their
/// neighbours, and anywhere.
std::vector<float> amaxes(const numerics::FormatSpec& format, CaseGenerator& cases);

/// A quantization and the memory of its tensors.
struct QuantizeProblem {
  std::vector<float> f32;
  std::vector<std::uint16_t> bf16;  ///< empty for an FP32 source
  std::int64_t rows = 0, cols = 0;  ///< of the source
  bool transpose = false;
  RandomKey key;
  QuantSpec spec;
  std::vector<std::uint8_t> codes;  ///< result of run()
  std::vector<float> scales;

  TensorView source();
  void run(const Implementation& implementation);
  std::string describe() const;
};

/// A matrix and a quantizer with any format, tile, rule, statistic, rounding and overflow, not yet
/// run.
QuantizeProblem draw_quantization(CaseGenerator& cases);

}  // namespace fp8lab
