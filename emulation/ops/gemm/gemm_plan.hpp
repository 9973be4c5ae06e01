// The arithmetic of one GEMM along K, shared by the reference and the fast implementation.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "emulation/base/tensor_view.hpp"
#include "emulation/numerics/schedule.hpp"
#include "emulation/ops/gemm/gemm.hpp"
#include "emulation/spec/gemm_spec.hpp"
#include "emulation/spec/quant_spec.hpp"

namespace fp8lab {

/// Half-open range of K.
struct KRange {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  bool operator==(const KRange&) const = default;
};

/// The arithmetic of one output element, in terms of specification.md, "K schedules and scale
/// orders":
///   for each range, acc = +0; for each chunk [k0, min(k0 + chunk, range.end)) of it from
///   range.begin on, p = chain(chunk) from accumulator +0, and acc becomes
///     promoted == false               p                        (the range is one chunk)
///     ScaleOrder::epilogue            acc + p
///     ScaleOrder::in_instruction      acc + p                  (the scales are inside the chain)
///     ScaleOrder::b_then_a            fma(p * sB, sA, acc)
///     ScaleOrder::a_then_b            fma(p * sA, sB, acc)
///     ScaleOrder::product_first       fma(p, sA * sB, acc)
///   the accs of the ranges are added left to right; then the epilogue.
struct GemmPlan {
  Accumulator accumulator = Accumulator::sm90_bf16;
  ScaleOrder order = ScaleOrder::epilogue;  ///< never ScaleOrder::automatic
  bool promoted = false;
  /// Order epilogue only. True: s = sA * sB, v = fma(acc, s, c). False (some scale is per row):
  /// A = (acc * sA[m]) * sB[n], s = 1.
  bool scalar_scales = true;
  float alpha = 1.0f;  ///< factor of the scaled sum, in the epilogue
  /// Formats of the codes that enter the multiplier; every value of the operand is carried exactly.
  numerics::FormatSpec format_a;
  numerics::FormatSpec format_b;
  numerics::FormatSpec scale_format;  ///< ScaleOrder::in_instruction only
  std::int64_t k = 0;
  std::int64_t chunk = 0;          ///< K of one chain; k itself if !promoted and there is no split
  std::int64_t scale_width_a = 0;  ///< elements along K that share one scale; 0: constant along K
  std::int64_t scale_width_b = 0;
  std::vector<KRange> ranges;  ///< split-K ranges, ascending, none empty

  bool split() const { return ranges.size() > 1; }
};

/// Returns where the scales of these operands enter: spec.scale_order unless it is automatic.
ScaleOrder scale_order(const GemmSpec& spec, const QuantSpec& a, const QuantSpec& b);

/// Returns the refusal of refuse_gemm for operands "a" and "b" as one line, or an empty string.
std::string gemm_refusal(const GemmSpec& spec, const QuantSpec& a, const QuantSpec& b);

/// Plans D = A B^T for operands of K = `k`. Throws Error with the reason of gemm_refusal, or if
/// split_k leaves a range empty (the library never launches one).
GemmPlan plan_gemm(const GemmSpec& spec, const QuantSpec& a, const QuantSpec& b, std::int64_t k);

/// Returns the plan in the terms of numerics/schedule.hpp.
numerics::ElementGemm element_gemm(const GemmPlan& plan);

/// Returns the epilogue of a plan: its alpha, beta = accumulate ? 1 : 0, output bf16 or f32.
numerics::Epilogue element_epilogue(const GemmPlan& plan, bool accumulate, DType output);

/// Throws Error unless shapes and types fit: codes (rows, k), unquantized values also (k, rows),
/// scales (tile_rows, tile_cols) f32 or empty without a scale, bias empty or (1, b.rows) bf16 or
/// f32, d (a.rows, b.rows) of spec.output, f32 if `accumulate`.
void check_gemm_operands(const GemmSpec& spec, const GemmPlan& plan, const QuantizedOperand& a,
                         const QuantizedOperand& b, const TensorView& bias, bool accumulate,
                         const TensorView& d);

/// Throws Error unless a block-scaled instruction can read the scales. These are in host memory.
void check_block_scales(const GemmPlan& plan, const QuantizedOperand& a, const QuantizedOperand& b);

/// Returns the scale of element (row, k0) of an operand; 1 without a scale.
inline float scale_at(const QuantizedOperand& operand, std::int64_t row, std::int64_t k0) {
  if (operand.scales.empty()) return 1.0f;
  const TileShape& tile = operand.spec.tile;
  return operand.scales.row<const float>(
      tile.rows == 0 ? 0 : row / tile.rows)[tile.cols == 0 ? 0 : k0 / tile.cols];
}

}  // namespace fp8lab
