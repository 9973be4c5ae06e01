// Recomputes one element of a GEMM with the scalar model, from the operands of each of two sides.
#pragma once

#include <cstdint>
#include <string>

#include "src/replay/operation_trace.hpp"

namespace fp8lab {

/// Where two computations of an element diverge.
struct GemmElement {
  enum class Parts : std::uint8_t {
    unknown,    ///< an operand, or an operation after the GEMM, has no scalar model here
    operands,   ///< the operands differ
    sum,        ///< the partial sums differ, first with the products [k_begin, k_end)
    epilogue,   ///< the requested epilogues differ: scales, bias, output type
    after_sum,  ///< a side's result does not follow from its operands
  };
  Parts parts = Parts::unknown;
  std::int64_t k_begin = 0, k_end = 0;
  float sum_a = 0, sum_b = 0;  ///< Parts::sum: partial sums after these products
  /// Parts::after_sum: the recomputed result of each side, and whether the side has this result.
  std::uint64_t given_a = 0, given_b = 0;
  bool holds_a = true, holds_b = true;
};

/// Compares element (row, col), for which the two sides have `bits_a` and `bits_b`.
GemmElement compare_gemm_element(const CapturedGemm& a, const CapturedGemm& b, std::int64_t row,
                                 std::int64_t col, std::uint64_t bits_a, std::uint64_t bits_b);

}  // namespace fp8lab
