// One element of a GEMM, computed again by the scalar model from what each of two sides multiplied.
#pragma once

#include <cstdint>
#include <string>

#include "src/replay/operation_trace.hpp"

namespace fp8lab {

/// Where the computations of an element part.
struct GemmElement {
  enum class Parts : std::uint8_t {
    unknown,    ///< an operand, or what happens after the GEMM, has no scalar model here
    operands,   ///< the operands are not the same
    sum,        ///< the partial sums, first with the products [k_begin, k_end)
    epilogue,   ///< after the sum, each side as it is asked to: scales, bias, output type
    after_sum,  ///< a side does not hold what its operands give
  };
  Parts parts = Parts::unknown;
  std::int64_t k_begin = 0, k_end = 0;
  float sum_a = 0, sum_b = 0;  ///< Parts::sum: after these products
  /// Parts::after_sum: what the operands of each side give, and whether it holds that.
  std::uint64_t given_a = 0, given_b = 0;
  bool holds_a = true, holds_b = true;
};

/// Of element (row, col), whose bits the two sides hold.
GemmElement compare_gemm_element(const CapturedGemm& a, const CapturedGemm& b, std::int64_t row,
                                 std::int64_t col, std::uint64_t bits_a, std::uint64_t bits_b);

}  // namespace fp8lab
