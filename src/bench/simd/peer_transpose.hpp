// Eigen's transposed copy of 16-bit elements, compiled once per instruction set.
#pragma once

#include <cstdint>

namespace fp8lab {

/// Writes the transpose of `from` (rows, cols) to `to` (cols, rows), both row-major with rows
/// `from_stride` and `to_stride` elements apart, on the calling thread.
using PeerTranspose = void (*)(const std::uint16_t* from, std::int64_t rows, std::int64_t cols,
                               std::int64_t from_stride, std::uint16_t* to, std::int64_t to_stride);

/// Returns the copy for the best instruction set of this processor.
PeerTranspose eigen_transpose();

}  // namespace fp8lab
