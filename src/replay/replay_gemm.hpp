// What a recorded GEMM computed: the arithmetic of its bits, a fault, or the first wrong element.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "src/replay/gemm_arithmetic.hpp"
#include "src/replay/recorded_gemm.hpp"

namespace fp8lab {

/// The first element of D, in row-major order, that is not the exact result rounded.
struct WrongElement {
  std::int64_t row = 0, col = 0;
  double recorded = 0.0, exact = 0.0;
  std::int64_t count = 0;               ///< number of wrong elements
  std::int64_t k_begin = 0, k_end = 0;  ///< the products to blame; equal: not located
  double factor = 0.0;                  ///< how often these products are in the recorded sum
};

/// Where the partial sums of an element leave those of the arithmetic that was requested.
struct Divergence {
  std::int64_t row = 0, col = 0;
  std::int64_t k_begin = 0, k_end = 0;
  float requested = 0.0f, recorded = 0.0f;  ///< partial sums at k_end
};

struct GemmReplay {
  std::vector<std::string> faults;  ///< readings that explain the result, equally well
  double error = 0.0;               ///< relative error of D as called, see relative_error
  double fault_error = 0.0;         ///< of D under the faults
  ArithmeticSearch arithmetic;      ///< under the call's reading, or the first fault
  std::optional<WrongElement> wrong;
  std::optional<Divergence> divergence;  ///< for a dropped promotion

  /// Returns true if D is what the call asked for, to the bit or to its rounding.
  bool is_right() const { return faults.empty() && !wrong; }
};

/// Replays a record. A fault is named if it explains the result and the call's own reading does
/// not: by equal bits, or by an error at least 4 times smaller.
GemmReplay replay_gemm(const RecordedGemm& gemm);

/// Returns the verdict as lines of text.
std::vector<std::string> describe(const RecordedGemm& gemm, const GemmReplay& replay);

}  // namespace fp8lab
