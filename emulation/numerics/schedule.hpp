// One element of a GEMM: the order of arithmetic along K and the epilogue (specification.md,
// "K schedules and scale orders"). Every faster implementation is checked against these functions.
#pragma once

#include <cstdint>

#include "emulation/numerics/codec.hpp"
#include "emulation/numerics/exact_sum.hpp"
#include "emulation/numerics/format.hpp"
#include "emulation/numerics/host_device.hpp"
#include "emulation/numerics/mma.hpp"

FP8LAB_NUMERICS_BEGIN

/// The arithmetic unit of one chain.
enum class ChainUnit : std::uint8_t {
  fused_group,   ///< tensor-core groups of ElementGemm::group.products
  mma_sync_fp8,  ///< mma.sync m16n8k32 of sm_90 on FP8 codes, accumulator ElementGemm::group.output
  ideal_fp32,    ///< FP32 fused multiply-add, k ascending from +0, round to nearest even
  ideal_exact,   ///< exact sum, rounded once to FP32, to nearest even
};

/// The place where the scales of the operands enter a GEMM (specification.md, "K schedules and
/// scale orders"). If they do not enter at promotion, a promoted partial sum p enters the
/// accumulator as acc + p.
enum class ScaleOrder : std::uint8_t {
  automatic,       ///< in a recipe: as measured for cuBLASLt, by the tiles of the two operands
  epilogue,        ///< scales constant along K, applied once to the whole sum; acc + p
  b_then_a,        ///< acc = fma(p * sB, sA, acc): 1x128 by 1x128
  a_then_b,        ///< acc = fma(p * sA, sB, acc)
  product_first,   ///< acc = fma(p, sA * sB, acc): one operand in square blocks
  in_instruction,  ///< the block scales of sm100, part of each group; acc + p
};

/// Returns true if scales enter with a promoted partial sum.
FP8LAB_HD constexpr bool scales_promotion(ScaleOrder order) {
  return order == ScaleOrder::b_then_a || order == ScaleOrder::a_then_b ||
         order == ScaleOrder::product_first;
}

/// Accumulation of one output element along K, as data. The defaults are those of cuBLASLt's FP8
/// GEMM with fast accumulation.
struct ElementGemm {
  ChainUnit unit = ChainUnit::fused_group;
  GroupModel group = kSm90WgmmaFp8F32;  ///< for ChainUnit::fused_group
  FormatSpec scale_format = kE8M0;      ///< format of the scales, for group.block_scales
  FormatSpec format_a = kE4M3;
  FormatSpec format_b = kE4M3;
  std::int64_t promote_interval = 0;  ///< K of one chain; 0: one chain over the whole range
  ScaleOrder order = ScaleOrder::epilogue;
  std::int64_t scale_width_a = 0;  ///< elements along K that share one scale of A; 0: sa[0] for all
  std::int64_t scale_width_b = 0;
  std::int64_t range_width = 0;  ///< K of one split-K range; 0: no split

  constexpr bool operator==(const ElementGemm&) const = default;
};

/// Returns x * y + z with one rounding, to nearest even.
FP8LAB_HD constexpr float fma_f32(float x, float y, float z) {
  // Not every compiler folds the builtin, and none folds it when the result underflows.
  if (__builtin_is_constant_evaluated()) return fma_exact(x, y, z);
  return __builtin_fmaf(x, y, z);
}

/// Returns the elements of K in one split-K range (specification.md, "Epilogue and split K"):
/// ceil(K / block) blocks are divided into `split` equal shares, rounded up to a multiple of 4
/// blocks if an operand has 128x128 scales. `block` is 128 for FP8 and 64 for bf16.
FP8LAB_HD constexpr std::int64_t split_range_width(std::int64_t k, std::int64_t block,
                                                   std::int64_t split, bool square_blocks) {
  const std::int64_t blocks = (k + block - 1) / block;
  std::int64_t share = (blocks + split - 1) / split;
  if (square_blocks) share = (share + 3) / 4 * 4;
  return share * block;
}

/// Computes one instruction of a tensor-core chain: `count` products from element i on.
template <class CodeA, class CodeB>
FP8LAB_HD constexpr std::uint32_t chain_step(const ElementGemm& spec, const CodeA* a,
                                             const CodeB* b, std::int64_t i, int count,
                                             const float* sa, const float* sb,
                                             std::uint32_t accumulator) {
  if (spec.unit == ChainUnit::mma_sync_fp8) {
    return mma_sync_fp8(spec.group.output, spec.format_a, spec.format_b, a + i, b + i, count,
                        accumulator);
  }
  if (!spec.group.block_scales) {
    return fused_group(spec.group, spec.format_a, spec.format_b, a + i, b + i, count, accumulator);
  }
  const std::int64_t tile = i / spec.scale_width_a;
  const GroupScales scales{spec.scale_format, static_cast<int>(spec.scale_width_a), sa + tile,
                           sb + tile};
  return scaled_group(spec.group, spec.format_a, spec.format_b, a + i, b + i, count, scales,
                      accumulator);
}

/// Returns the sum of a[i] * b[i] over i in [begin, end) from accumulator +0: the tensor-core chain
/// in issue order, or one of the ideal sums. The last group may be short; missing products are
/// zeros. sa and sb, scales along K, are read for group.block_scales only; `begin` is then a
/// multiple of group.products. An FP16 accumulator is widened exactly at the end.
template <class CodeA, class CodeB>
FP8LAB_HD constexpr float chain(const ElementGemm& spec, const CodeA* a, const CodeB* b,
                                std::int64_t begin, std::int64_t end, const float* sa,
                                const float* sb) {
  if (spec.unit == ChainUnit::ideal_fp32) {
    float sum = 0.0f;
    for (std::int64_t i = begin; i < end; ++i) {
      sum = fma_f32(decode(spec.format_a, a[i]), decode(spec.format_b, b[i]), sum);
    }
    return sum;
  }
  if (spec.unit == ChainUnit::ideal_exact) {
    ExactSum sum;
    for (std::int64_t i = begin; i < end; ++i) {
      sum.add_product(decode(spec.format_a, a[i]), decode(spec.format_b, b[i]));
    }
    return bits_float(sum.rounded());
  }
  const std::int64_t step = spec.unit == ChainUnit::fused_group ? spec.group.products : 32;
  std::uint32_t accumulator = 0;
  for (std::int64_t i = begin; i < end; i += step) {
    const int count = static_cast<int>(end - i < step ? end - i : step);
    accumulator = chain_step(spec, a, b, i, count, sa, sb, accumulator);
  }
  return bits_float(decode_bits(accumulator_format(spec.group.output), accumulator));
}

/// Returns acc combined with one promoted partial sum.
FP8LAB_HD constexpr float promote(ScaleOrder order, float acc, float p, float sa, float sb) {
  switch (order) {
    case ScaleOrder::automatic:
    case ScaleOrder::epilogue:
    case ScaleOrder::in_instruction: return acc + p;
    case ScaleOrder::b_then_a: return fma_f32(p * sb, sa, acc);
    case ScaleOrder::a_then_b: return fma_f32(p * sa, sb, acc);
    case ScaleOrder::product_first: return fma_f32(p, sa * sb, acc);
  }
  return acc;
}

/// Accumulates over k in [begin, end), with chunks counted from `begin`; indices of codes and
/// scales are absolute.
template <class CodeA, class CodeB>
FP8LAB_HD constexpr float accumulate_range(const ElementGemm& spec, const CodeA* a, const CodeB* b,
                                           std::int64_t begin, std::int64_t end, const float* sa,
                                           const float* sb) {
  if (spec.promote_interval == 0) return chain(spec, a, b, begin, end, sa, sb);
  float acc = 0.0f;
  for (std::int64_t k0 = begin; k0 < end; k0 += spec.promote_interval) {
    const std::int64_t left = end - k0;
    const std::int64_t length = left < spec.promote_interval ? left : spec.promote_interval;
    const float p = chain(spec, a, b, k0, k0 + length, sa, sb);
    if (!scales_promotion(spec.order)) {
      acc = acc + p;
      continue;
    }
    const float scale_a = sa[spec.scale_width_a == 0 ? 0 : k0 / spec.scale_width_a];
    const float scale_b = sb[spec.scale_width_b == 0 ? 0 : k0 / spec.scale_width_b];
    acc = promote(spec.order, acc, p, scale_a, scale_b);
  }
  return acc;
}

/// Returns the accumulator of one output element before its epilogue: a[k], b[k] are codes of
/// spec.format_a and spec.format_b, k < `k`; sa, sb are the scales of this row and column along K
/// (not read if none enters). All additions are FP32, round to nearest even (specification.md,
/// "K schedules and scale orders"). A NaN may have any bits; the epilogue makes it canonical.
template <class CodeA, class CodeB>
FP8LAB_HD constexpr float accumulate_element(const ElementGemm& spec, const CodeA* a,
                                             const CodeB* b, std::int64_t k, const float* sa,
                                             const float* sb) {
  const std::int64_t width = spec.range_width == 0 ? k : spec.range_width;
  float acc = accumulate_range(spec, a, b, 0, k < width ? k : width, sa, sb);
  for (std::int64_t begin = width; begin < k; begin += width) {
    const std::int64_t end = k - begin < width ? k : begin + width;
    acc = acc + accumulate_range(spec, a, b, begin, end, sa, sb);
  }
  return acc;
}

/// The scales in the epilogue (specification.md, "Epilogue and split K").
enum class EpilogueScales : std::uint8_t {
  scalar,  ///< v = fma(acc, (alpha * sA) * sB, ...)
  outer,   ///< v = fma((acc * sA[m]) * sB[n], alpha, ...)
  none,    ///< block scales are already in acc, or there are no scales
};

/// The operations on an accumulator before it is stored.
struct Epilogue {
  EpilogueScales scales = EpilogueScales::none;
  bool split_k = false;  ///< the separate reduction kernel: its products round differently
  float alpha = 1.0f;
  float beta = 0.0f;
  FormatSpec output = kBF16;
  float output_scale = 1.0f;  ///< d_scale, a factor of outputs of at most 8 bits
};

/// Returns the FP32 value of an output element before conversion: scales, beta * c (c is not read
/// if beta == 0) and, separately rounded, *bias (nullptr: none).
FP8LAB_HD constexpr float epilogue_value(const Epilogue& epilogue, float acc, float sa, float sb,
                                         float c, const float* bias) {
  float s = epilogue.alpha;
  if (epilogue.scales == EpilogueScales::scalar) s = (epilogue.alpha * sa) * sb;
  if (epilogue.scales == EpilogueScales::outer) acc = (acc * sa) * sb;
  const bool with_c = epilogue.beta != 0.0f;
  float v = 0.0f;
  if (!epilogue.split_k) {
    v = fma_f32(acc, s, with_c ? epilogue.beta * c : 0.0f);
  } else if (s == 0.0f) {
    v = with_c ? epilogue.beta * c : 0.0f;
  } else {
    v = with_c ? fma_f32(epilogue.beta, c, acc * s) : acc * s;
  }
  return bias == nullptr ? v : v + *bias;
}

/// Returns the output code of `epilogue.output` (FP32 bits for kFP32): round to nearest even,
/// canonical NaN; formats of at most 8 bits are scaled by output_scale and saturate, wider ones
/// overflow to infinity (specification.md, "Epilogue and split K").
FP8LAB_HD constexpr std::uint32_t finish_element(const Epilogue& epilogue, float acc, float sa,
                                                 float sb, float c, const float* bias) {
  const float v = epilogue_value(epilogue, acc, sa, sb, c, bias);
  if (epilogue.output.bits() <= 8) {
    return encode(epilogue.output, float_bits(v * epilogue.output_scale), Rounding::nearest,
                  Overflow::saturate);
  }
  return encode(epilogue.output, float_bits(v), Rounding::nearest, Overflow::special);
}

FP8LAB_NUMERICS_END
