// How one GEMM accumulates and rounds.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "emulation/base/tensor_view.hpp"
#include "emulation/spec/quant_spec.hpp"

namespace fp8lab {

/// The unit that multiplies and adds (numerics.md sections 3 to 5); tensor_core.hpp has the
/// parameters and the evidence. Accumulators are FP32 unless said otherwise.
enum class Accumulator : std::uint8_t {
  sm90_wgmma_fp8,         ///< groups of 32, 13 fraction bits, FP32 cut to 13 mantissa bits
  sm90_wgmma_fp8_f16,     ///< the same groups, FP16 accumulator
  sm90_mma_sync_fp8,      ///< FP8 widened to FP16, two groups of 16, C added last
  sm90_mma_sync_fp8_f16,  ///< the same with an FP16 accumulator
  sm90_bf16,              ///< groups of 16, 25 fraction bits, FP32 truncated
  sm90_f16,               ///< the same for FP16 operands
  sm90_f16_f16acc,        ///< the same with an FP16 accumulator
  sm90_tf32,              ///< groups of 8, 25 fraction bits, FP32 truncated
  sm89_mma_fp8,           ///< groups of 16, 13 fraction bits, FP32 cut to 13 mantissa bits
  sm89_mma_fp8_f16,       ///< the same groups, FP16 accumulator
  sm100_f8f6f4,           ///< groups of 32, 25 fraction bits, FP32 truncated
  sm100_mxf8f6f4,         ///< the same with an E8M0 scale per 32 elements inside
  sm100_mxf4nvf4,         ///< groups of 64 E2M1, E8M0 scales per 32 or E4M3 scales per 16 inside
  ideal_fp32,             ///< FP32 fused multiply-add, k ascending, round to nearest even
  /// Exact sum, one rounding to FP32 (to nearest even). For integer codes that is the int32
  /// accumulation of integer tensor cores and its conversion, while |sum| < 2^31 (int8: K <
  /// 133153).
  ideal_exact,
};

/// How partial sums along K are combined.
enum class Schedule : std::uint8_t {
  fast,     ///< one tensor-core chain over all of K
  promote,  ///< every `promote_interval` of K the chain restarts and is added in FP32
};

/// Where scales enter (numerics.md sections 6.2 and 6.4).
enum class ScaleOrder : std::uint8_t {
  automatic,       ///< as measured for cuBLASLt: by the tiles of the two operands
  epilogue,        ///< scales constant along K, applied once to the whole sum
  b_then_a,        ///< acc = fma(p * sB, sA, acc)          (1x128 by 1x128)
  a_then_b,        ///< acc = fma(p * sA, sB, acc)
  product_first,   ///< acc = fma(p, sA * sB, acc)          (one operand in square blocks)
  in_instruction,  ///< the block scales of sm100, part of each group
};

struct GemmSpec {
  Accumulator accumulator = Accumulator::sm90_bf16;
  Schedule schedule = Schedule::fast;
  int promote_interval = 128;  ///< elements of K, for Schedule::promote
  ScaleOrder scale_order = ScaleOrder::automatic;
  int split_k = 1;             ///< number of contiguous K ranges summed left to right
  DType output = DType::bf16;  ///< bf16 or f32

  bool operator==(const GemmSpec&) const = default;
};

/// Names as recipes write them: "sm90_wgmma_fp8", ... and "fast" or "promote:128".
std::string accumulator_name(Accumulator accumulator);
std::string schedule_name(const GemmSpec& spec);

/// Inverse of accumulator_name; nothing for other names.
std::optional<Accumulator> accumulator_by_name(std::string_view name);

/// Schedule and promotion interval that a name stands for; "fast" keeps the default interval.
struct ScheduleChoice {
  Schedule schedule = Schedule::fast;
  int promote_interval = GemmSpec{}.promote_interval;
  bool operator==(const ScheduleChoice&) const = default;
};

/// Inverse of schedule_name: "fast", "promote" (every 128) or "promote:G" with G >= 1; nothing
/// otherwise.
std::optional<ScheduleChoice> schedule_from_name(std::string_view name);

/// The form in which an operand quantized by `operand` is multiplied: itself, but values of a
/// tile's own codebook are dequantized first, rounded to bf16 for sm90_bf16, in fp32 for the ideal
/// sums.
QuantSpec multiplied_form(Accumulator accumulator, const QuantSpec& operand);

/// The words that parse_gemm_spec reads back, for example "sm90_wgmma_fp8/promote:128/bf16"; a
/// scale order other than automatic and "/split_k:N" follow.
std::string label(const GemmSpec& spec);

}  // namespace fp8lab
