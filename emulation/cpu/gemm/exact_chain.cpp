#include "emulation/cpu/gemm/exact_chain.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>

#include "emulation/numerics/exact_sum.hpp"

namespace fp8lab::cpu {
namespace {

constexpr std::int64_t kLanes = 8;

/// The sum of a column's products in twice the precision; the FP32 number if there is one alone
/// that near to it.
std::optional<float> summed_doubled(const ExactRow& row, std::int64_t column) {
  numerics::DoubledSum lanes[kLanes];
  const double* b = row.b + column;
  for (std::int64_t begin = 0; begin < row.k; begin += kLanes) {
    const std::int64_t count = std::min(kLanes, row.k - begin);
    for (std::int64_t i = 0; i < count; ++i) {
      lanes[i].add(row.a[begin + i] * b[(begin + i) * row.stride]);
    }
  }
  numerics::DoubledSum all;
  for (const numerics::DoubledSum& lane : lanes) all.add(lane);
  const double value = all.sum + all.rest;
  const double error = all.error(row.k, row.errors[column]);
  const float least = static_cast<float>(value - error), most = static_cast<float>(value + error);
  if (numerics::float_bits(least) != numerics::float_bits(most)) return std::nullopt;
  return least;
}

float summed_exactly(const ExactRow& row, std::int64_t column) {
  numerics::ExactSum sum;
  for (std::int64_t l = 0; l < row.k; ++l) {
    sum.add_product(static_cast<float>(row.a[l]),
                    static_cast<float>(row.b[l * row.stride + column]));
  }
  return numerics::bits_float(sum.rounded());
}

}  // namespace

numerics::ExactExtent exact_extent(const float* values, std::int64_t k) {
  float largest[kLanes] = {}, lowest[kLanes];
  double squares[kLanes] = {};
  std::fill_n(lowest, kLanes, std::numeric_limits<float>::infinity());
  for (std::int64_t begin = 0; begin < k; begin += kLanes) {
    const std::int64_t count = std::min(kLanes, k - begin);
    for (std::int64_t i = 0; i < count; ++i) {
      const std::uint32_t magnitude = numerics::float_bits(values[begin + i]) & 0x7FFFFFFFu;
      const float value = numerics::bits_float(magnitude);
      const float low = numerics::lowest_bit(magnitude);
      largest[i] = value > largest[i] ? value : largest[i];
      lowest[i] = low > 0.0f && low < lowest[i] ? low : lowest[i];
      squares[i] += static_cast<double>(value) * static_cast<double>(value);
    }
  }
  double sum = 0.0;
  for (const double part : squares) sum += part;
  return numerics::exact_extent(*std::max_element(largest, largest + kLanes),
                                *std::min_element(lowest, lowest + kLanes), sum);
}

void round_exactly(const ExactRow& row, float* out) {
  for (std::int64_t j = 0; j < row.columns; ++j) {
    const double sum = row.sums[j];
    const float least = static_cast<float>(sum - row.errors[j]);
    const float most = static_cast<float>(sum + row.errors[j]);
    const bool proven = numerics::float_bits(least) == numerics::float_bits(most);
    if (proven || !std::isfinite(sum)) {
      out[j] = numerics::canonical_nan(static_cast<float>(sum));
    } else if (const auto near = summed_doubled(row, j)) {
      out[j] = *near;
    } else {
      out[j] = summed_exactly(row, j);
    }
  }
}

}  // namespace fp8lab::cpu
