#include "emulation/ops/quantize/partial_values.hpp"

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>

#include "emulation/cpu/operations.hpp"
#include "emulation/numerics/codec.hpp"
#include "emulation/ops/gemm/gemm_plan.hpp"
#include "emulation/ops/quantize/operand_statistics.hpp"
#include "emulation/reference/operand_decode.hpp"
#include "emulation/reference/transform.hpp"

namespace fp8lab::cpu {
namespace {

using numerics::bits_float;
using numerics::float_bits;

constexpr std::int64_t kBlock = 64;
constexpr std::uint32_t kMagnitude = 0x7FFFFFFFu;

struct Block {
  float of[kBlock][kBlock];  ///< rows of the operand
};

/// A rectangle of the operand, at most kBlock x kBlock.
struct Area {
  std::int64_t row, rows, col, cols;
};

float widen(std::uint16_t bits) { return numerics::from_bf16(bits); }
float widen(float value) { return value; }

template <class T>
void load(const TensorView& view, bool transpose, const Area& area, Block& block) {
  if (transpose) {
    for (std::int64_t i = 0; i < area.cols; ++i) {
      const T* const from = view.row<const T>(area.col + i) + area.row;
      for (std::int64_t r = 0; r < area.rows; ++r) block.of[r][i] = widen(from[r]);
    }
    return;
  }
  for (std::int64_t r = 0; r < area.rows; ++r) {
    const T* const from = view.row<const T>(area.row + r) + area.col;
    for (std::int64_t i = 0; i < area.cols; ++i) block.of[r][i] = widen(from[i]);
  }
}

/// Loads values of a bf16 or f32 matrix, or of its transpose.
void load(const TensorView& view, bool transpose, const Area& area, Block& block) {
  if (view.dtype == DType::bf16) return load<std::uint16_t>(view, transpose, area, block);
  load<float>(view, transpose, area, block);
}

/// Computes saturation_limit for elements of one row; of all rows, if no element saturates.
class Limits {
 public:
  explicit Limits(const QuantizedOperand& operand)
      : operand_(operand),
        qmax_(numerics::max_finite(operand.spec.format)),
        saturates_(!operand.spec.has_codebooks()),
        width_(operand.spec.tile.cols == 0 || operand.scales.empty() ? operand.k
                                                                     : operand.spec.tile.cols) {}

  void of(std::int64_t row, const Area& area, std::uint32_t* limits) const {
    if (!saturates_) {
      std::fill_n(limits, area.cols, numerics::kF32MaxFinite);
      return;
    }
    for (std::int64_t i = 0; i < area.cols;) {
      const std::int64_t at = area.col + i;
      const std::int64_t end = std::min(area.cols, (at / width_ + 1) * width_ - area.col);
      const float limit = saturation_limit(qmax_, scale_at(operand_, row, at));
      std::fill(limits + i, limits + end, float_bits(limit));
      i = end;
    }
  }

 private:
  const QuantizedOperand& operand_;
  double qmax_;
  bool saturates_;
  std::int64_t width_;
};

/// Returns element_error_kind's kinds of those elements that differ, as bits, and replaces `after`
/// by `before` where the error is not kept. Integers, since comparisons of floats, which may trap,
/// do not vectorise.
std::uint32_t select(std::uint32_t kept, const float* before, const std::uint32_t* limits,
                     std::int64_t count, float* after) {
  std::uint32_t found = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    const std::uint32_t x = float_bits(before[i]), y = float_bits(after[i]);
    const auto size_x = static_cast<std::int32_t>(x & kMagnitude);
    const auto size_y = static_cast<std::int32_t>(y & kMagnitude);
    const auto infinity = static_cast<std::int32_t>(numerics::kF32Infinity);
    const bool above = (size_x > static_cast<std::int32_t>(limits[i])) & (size_x <= infinity);
    const bool saturated = above | (size_y >= infinity);
    const bool flushed = (size_x != 0) & (size_y == 0);
    const std::uint32_t kind = saturated ? 1u << ElementErrorKind::kSaturation
                               : flushed ? 1u << ElementErrorKind::kUnderflow
                                         : 1u << ElementErrorKind::kCast;
    const bool differs = ((x != y) & ((size_x | size_y) != 0)) | (size_y > infinity);
    found |= differs ? kind : 0u;
    const std::uint32_t chosen = (kind & kept) != 0 ? y : x;
    const bool is_nan = static_cast<std::int32_t>(chosen & kMagnitude) > infinity;
    after[i] = bits_float(is_nan ? numerics::kF32NaN : chosen);
  }
  return found;
}

std::uint32_t bits_of(const ElementErrors& kept) {
  return (kept.cast ? 1u << ElementErrorKind::kCast : 0u) |
         (kept.underflow ? 1u << ElementErrorKind::kUnderflow : 0u) |
         (kept.saturation ? 1u << ElementErrorKind::kSaturation : 0u);
}

}  // namespace

void run(const ops::PartialValues& op) {
  op.check();
  const QuantizedOperand& operand = op.operand;
  reference::FloatMatrix transformed(0, 0);
  TensorView source = op.source;
  if (op.has_transform()) {
    transformed = reference::transformed(op.source, op.transpose, operand);
    source = transformed.view();
  }
  const reference::OperandDecoder decoder(operand);
  const Limits limits(operand);
  const std::uint32_t kept = bits_of(op.kept);
  const bool is_plain = operand.has_rows_contiguous();  // values, not codes
  std::uint32_t found = 0;
  const std::int64_t bands = (operand.rows + kBlock - 1) / kBlock;
#pragma omp parallel for schedule(static) reduction(| : found)
  for (std::int64_t band = 0; band < bands; ++band) {
    Block before, after;
    std::array<std::uint32_t, kBlock> of_row;
    for (std::int64_t col = 0; col < operand.k; col += kBlock) {
      const std::int64_t row = band * kBlock;
      const Area area{row, std::min(kBlock, operand.rows - row), col,
                      std::min(kBlock, operand.k - col)};
      load(source, op.transpose, area, before);
      if (is_plain) {
        load(operand.codes, true, area, after);
      } else {
        decoder.block(row, area.rows, col, area.cols, after.of[0], kBlock);
      }
      for (std::int64_t r = 0; r < area.rows; ++r) {
        limits.of(row + r, area, of_row.data());
        found |= select(kept, before.of[r], of_row.data(), area.cols, after.of[r]);
        if (!op.values.empty()) {
          std::copy_n(after.of[r], area.cols, op.values.row<float>(row + r) + col);
        }
      }
    }
  }
  for (int kind = 0; kind < ElementErrorKind::kCount; ++kind) {
    op.found.row<std::int32_t>(0)[kind] = static_cast<std::int32_t>(found >> kind & 1u);
  }
}

}  // namespace fp8lab::cpu
