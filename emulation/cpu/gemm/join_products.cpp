#include "emulation/ops/gemm/join_products.hpp"

#include <cstdint>
#include <vector>

#include "emulation/cpu/operations.hpp"
#include "emulation/numerics/codec.hpp"

namespace fp8lab::cpu {
namespace {

float widen(std::uint16_t bits) { return numerics::from_bf16(bits); }
float widen(float value) { return value; }
void store(double value, std::uint16_t& to) { to = numerics::bf16_of_double(value); }
void store(double value, float& to) { to = numerics::canonical_nan(static_cast<float>(value)); }

template <class D>
void join(const ops::JoinProducts& op, const float* bias) {
#pragma omp parallel for schedule(static)
  for (std::int64_t row = 0; row < op.d.rows; ++row) {
    const auto* const partial = op.partial.row<const float>(row);
    const auto* const emulated = op.exact.empty() ? nullptr : op.emulated.row<const float>(row);
    const auto* const exact = op.exact.empty() ? nullptr : op.exact.row<const float>(row);
    D* const d = op.d.row<D>(row);
    for (std::int64_t column = 0; column < op.d.cols; ++column) {
      double sum = partial[column];
      if (exact != nullptr) sum += double{emulated[column]} - exact[column];
      if (bias != nullptr) sum += bias[column];
      if (op.accumulate) sum += widen(d[column]);
      store(sum, d[column]);
    }
  }
}

}  // namespace

void run(const ops::JoinProducts& op) {
  op.check();
  std::vector<float> bias(static_cast<std::size_t>(op.bias.cols));
  for (std::int64_t i = 0; i < op.bias.cols; ++i) {
    bias[static_cast<std::size_t>(i)] = op.bias.dtype == DType::bf16
                                            ? widen(op.bias.row<const std::uint16_t>(0)[i])
                                            : op.bias.row<const float>(0)[i];
  }
  const float* const values = bias.empty() ? nullptr : bias.data();
  if (op.d.dtype == DType::bf16) return join<std::uint16_t>(op, values);
  join<float>(op, values);
}

}  // namespace fp8lab::cpu
