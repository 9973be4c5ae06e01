// The arithmetic that gives the recorded bits of a GEMM.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "emulation/spec/gemm_spec.hpp"
#include "src/replay/gemm_faults.hpp"

namespace fp8lab {

/// A way to compute a recorded GEMM.
struct GemmArithmetic {
  GemmSpec spec;
  /// The library computes D^T = B A^T, as column-major libraries do for row-major tensors: the
  /// scales of B come first.
  bool transposed = false;

  /// Returns "sm90_wgmma_fp8/promote:128/fp32/a_then_b as D^T".
  std::string label() const;
};

/// Returns the codes of D (sampled rows times columns, row by row) under an arithmetic; FP8 results
/// saturate. Throws Error if the arithmetic does not take the operands.
std::vector<std::uint32_t> computed_results(const RecordedGemm& gemm, const ElementSample& sample,
                                            const GemmArithmetic& arithmetic);

/// Arithmetics compared with a record.
struct ArithmeticSearch {
  std::vector<GemmArithmetic> same;  ///< those with the bits of every recorded element
  GemmArithmetic nearest;            ///< the one with the most equal bits, if `same` is empty
  double equal = 0.0;                ///< its share of equal elements among the compared ones
  std::size_t compared = 0;          ///< number of elements of which `equal` is the share
  std::size_t tried = 0;
};

/// Tries every accumulator that takes the operands, with fast and promoted sums, orders of scales,
/// and split K from 1 to 8, on a few elements first.
ArithmeticSearch find_arithmetic(const RecordedGemm& gemm);

/// Returns partial sums of one element after every `every` elements of K, before any epilogue.
std::vector<float> element_sums(const RecordedGemm& gemm, std::int64_t row, std::int64_t col,
                                const GemmArithmetic& arithmetic, std::int64_t every);

/// Returns true if two codes of a format are equal, or both NaN.
bool is_same_result(const numerics::FormatSpec& format, std::uint32_t a, std::uint32_t b);

}  // namespace fp8lab
