// Speed of CPU quantization beside a memory copy.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "emulation/backend.hpp"

namespace fp8lab {

/// Rates count the fewest bytes of the operation: the input in as many readings as it needs, each
/// code and scale written once; for the copy, its bytes read and written.
struct QuantizeBenchRow {
  std::string operation;  ///< format, tile and orientation, for example "e4m3fn/1x128/fp32"
  std::string target;     ///< SIMD target
  int readings = 1;       ///< of the input that are counted
  double gigabytes_per_second = 0;       ///< 1e9 bytes a second, best of the repetitions
  double copy_gigabytes_per_second = 0;  ///< memcpy of the same source, measured in turn with it
  double ratio = 0;                      ///< of the two
};

/// Quantizes a BF16 Gaussian tensor of (rows, cols) in the usual ways on every SIMD target, with
/// the threads of the moment; the memory copy uses as many.
std::vector<QuantizeBenchRow> bench_quantize(std::int64_t rows, std::int64_t cols, int repetitions);

/// The same for the quantizers of `backend`, its copy and both orientations from one call; its name
/// stands for the target. On the CPU Eigen's transposed copy of the source stands beside them. A
/// scale of a tensor, or of a column of the source, is known only when all of the tensor has been
/// read, which no processor's memory keeps, and so are two-level scales: the codes are a second
/// reading. So are those of a norm in both orientations. Norms of a sum, gradients of norms that
/// are added, and operations that quantize their result (ops::ProduceQuantize) stand beside their
/// parts called one after the other, with the same bytes counted. Statistics of operands read
/// source, codes and scales once. A repetition is several calls in a row, so that the start of a
/// kernel does not count.
std::vector<QuantizeBenchRow> bench_quantize(Backend& backend, std::int64_t rows, std::int64_t cols,
                                             int repetitions);

}  // namespace fp8lab
