#include "emulation/ops/pointwise/square_distance.hpp"

#include <algorithm>
#include <cstdint>

#include "emulation/cpu/operations.hpp"
#include "emulation/numerics/codec.hpp"

namespace fp8lab::cpu {
namespace {

double widen(std::uint16_t bits) { return numerics::from_bf16(bits); }
double widen(float value) { return value; }

template <class T>
void add_chunks(const ops::SquareDistance& op) {
  const auto* const x = static_cast<const T*>(op.x.data);
  const auto* const exact = static_cast<const double*>(op.exact.data);
  auto* const sums = static_cast<double*>(op.sums.data);
  const std::int64_t size = op.x.size(), chunks = ops::SquareDistance::chunks(size);
#pragma omp parallel for schedule(static)
  for (std::int64_t chunk = 0; chunk < chunks; ++chunk) {
    const std::int64_t first = chunk * numerics::kSumChunk;
    sums[chunk] = ops::SquareDistance::stored(numerics::chunk_sum<double>(
        first, std::min(size, first + numerics::kSumChunk), [&](std::int64_t i) {
          const double difference = widen(x[i]) - exact[i];
          return difference * difference;
        }));
  }
}

}  // namespace

void run(const ops::SquareDistance& op) {
  op.check();
  if (op.x.dtype == DType::bf16) return add_chunks<std::uint16_t>(op);
  add_chunks<float>(op);
}

}  // namespace fp8lab::cpu
