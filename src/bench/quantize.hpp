// Benchmark of quantization, compared with a memory copy.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "emulation/backend.hpp"

namespace fp8lab {

/// One measurement. Rates count the minimum bytes of the operation: the input once per required
/// pass, each code and scale written once; for the copy, the bytes read and written.
struct QuantizeBenchRow {
  std::string operation;  ///< format, tile and orientation, for example "e4m3fn/1x128/fp32"
  std::string target;     ///< SIMD target
  int readings = 1;       ///< passes over the input that are counted
  double gigabytes_per_second = 0;       ///< 1e9 bytes per second, best of the repetitions
  double copy_gigabytes_per_second = 0;  ///< memcpy of the same source, measured alternately
  double ratio = 0;                      ///< ratio of the two
};

/// Quantizes a BF16 Gaussian tensor of (rows, cols) in the usual ways on every SIMD target, with
/// the current number of threads; the memory copy uses the same number.
std::vector<QuantizeBenchRow> bench_quantize(std::int64_t rows, std::int64_t cols, int repetitions);

/// Like the above for the quantizers of `backend`, with its copy and with both orientations
/// from one call; `target` contains the backend's name. On the CPU, also measures Eigen's
/// transposed copy of the source.
/// The scale of a tensor, or of a column of the source, is known only after the whole tensor has
/// been read, and so are two-level scales. The tensor does not stay in any cache, so writing the
/// codes needs a second pass. The same applies to a norm in both orientations. Norms of a sum,
/// gradients of norms that are added, and operations that quantize their result
/// (ops::ProduceQuantize) are compared with their parts called one after the other, with the same
/// bytes counted. Statistics of operands read source, codes and scales once. A repetition is
/// several consecutive calls, so that kernel launches do not count.
std::vector<QuantizeBenchRow> bench_quantize(Backend& backend, std::int64_t rows, std::int64_t cols,
                                             int repetitions);

}  // namespace fp8lab
