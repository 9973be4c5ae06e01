#include "src/replay/gemm_element.hpp"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <vector>

#include "emulation/numerics/codec.hpp"
#include "emulation/reference/gemm_reference.hpp"

namespace fp8lab {
namespace {

/// Returns a view of row `row` of an operand.
QuantizedOperand row_of(const QuantizedOperand& operand, std::int64_t row) {
  QuantizedOperand one = operand;
  one.rows = 1;
  one.codes = operand.has_rows_contiguous() ? operand.codes.columns(row, 1)
                                            : operand.codes.row_range(row, 1);
  if (!operand.scales.empty()) {
    const std::int64_t tile = operand.spec.tile.rows;
    one.scales = operand.scales.row_range(tile == 0 ? 0 : row / tile, 1);
  }
  return one;
}

bool is_equal(const TensorView& a, const TensorView& b) {
  if (a.empty() && b.empty()) return true;
  if (a.dtype != b.dtype || a.rows != b.rows || a.cols != b.cols) return false;
  const std::size_t width = size_of(a.dtype);
  const auto* const x = static_cast<const std::byte*>(a.data);
  const auto* const y = static_cast<const std::byte*>(b.data);
  for (std::int64_t r = 0; r < a.rows; ++r) {
    if (std::memcmp(x + static_cast<std::size_t>(r * a.row_stride) * width,
                    y + static_cast<std::size_t>(r * b.row_stride) * width,
                    static_cast<std::size_t>(a.cols) * width) != 0) {
      return false;
    }
  }
  return true;
}

bool is_equal(const QuantizedOperand& a, const QuantizedOperand& b) {
  return is_equal(a.codes, b.codes) && is_equal(a.scales, b.scales);
}

/// One output element: the rows of the operands, and the other inputs of the GEMM for this element.
struct OneElement {
  OneElement(const CapturedGemm& captured, std::int64_t row, std::int64_t col)
      : gemm(captured), a(row_of(captured.a, row)), b(row_of(captured.b, col)) {
    if (!gemm.bias.view.empty()) bias = gemm.bias.view.columns(col, 1);
    if (!gemm.before.view.empty()) before = gemm.before.view.row<const float>(row)[col];
  }

  bool has_model() const {
    const auto is_modelled = [](const QuantizedOperand& operand) {
      return operand.codes.dtype != DType::f64 && operand.codes.dtype != DType::i32;
    };
    return gemm.is_alone && is_modelled(a) && is_modelled(b);
  }

  std::uint64_t bits() const {
    float value = before;
    const bool accumulate = !gemm.before.view.empty();
    const TensorView d{&value, gemm.spec.output, 1, 1, 1};
    reference::gemm(ops::Gemm{
        .spec = gemm.spec, .a = a, .b = b, .bias = bias, .accumulate = accumulate, .d = d});
    std::uint64_t result = 0;
    std::memcpy(&result, &value, size_of(gemm.spec.output));
    return result;
  }

  /// Returns the number of products that one accumulation step adds.
  std::int64_t step() const { return gemm.spec.accumulator.products(); }

  const CapturedGemm& gemm;
  QuantizedOperand a, b;
  TensorView bias;
  float before = 0;
};

}  // namespace

GemmElement compare_gemm_element(const CapturedGemm& a, const CapturedGemm& b, std::int64_t row,
                                 std::int64_t col, std::uint64_t bits_a, std::uint64_t bits_b) {
  using Parts = GemmElement::Parts;
  GemmElement found;
  const OneElement x(a, row, col), y(b, row, col);
  if (!x.has_model() || !y.has_model()) return found;
  if (!is_equal(x.a, y.a) || !is_equal(x.b, y.b)) {
    found.parts = Parts::operands;
    return found;
  }
  found.given_a = x.bits();
  found.given_b = y.bits();
  found.holds_a = found.given_a == bits_a;
  found.holds_b = found.given_b == bits_b;
  if (!found.holds_a || !found.holds_b) {
    found.parts = Parts::after_sum;
    return found;
  }
  const std::int64_t every = std::lcm(x.step(), y.step());
  const std::vector<float> sums_a = reference::partial_sums(a.spec, x.a, x.b, every);
  const std::vector<float> sums_b = reference::partial_sums(b.spec, y.a, y.b, every);
  for (std::size_t i = 0; i < sums_a.size(); ++i) {
    if (numerics::float_bits(sums_a[i]) == numerics::float_bits(sums_b[i])) continue;
    found.parts = Parts::sum;
    found.k_begin = static_cast<std::int64_t>(i) * every;
    found.k_end = std::min(found.k_begin + every, x.a.k);
    found.sum_a = sums_a[i];
    found.sum_b = sums_b[i];
    return found;
  }
  found.parts = Parts::epilogue;
  return found;
}

}  // namespace fp8lab
