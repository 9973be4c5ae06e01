#include "emulation/cpu/gemm/exact_chain.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <optional>

#include "emulation/numerics/exact_sum.hpp"

namespace fp8lab::cpu {
namespace {

constexpr int kFp64Bits = 53;
constexpr std::int64_t kLanes = 8;
constexpr std::uint32_t kMantissa = 0x7FFFFFu;

/// Returns the value of the lowest set bit of a magnitude; 0 for 0.
float lowest_bit(std::uint32_t magnitude) {
  const std::uint32_t rest = (magnitude & kMantissa) == 0 ? 0u : magnitude & (magnitude - 1u);
  return numerics::bits_float(magnitude) - numerics::bits_float(rest);
}

/// Adds `value` to `sum`, and what FP64 leaves of it to `rest` (Knuth's TwoSum).
void add_doubled(double value, double& sum, double& rest) {
  const double before = sum;
  sum = before + value;
  const double part = sum - before;
  rest += (before - (sum - part)) + (value - part);
}

/// The sum of a column's products in twice the precision (Sum2 of Ogita, Rump and Oishi, SIAM J.
/// Sci. Comput. 26, 2005, of products that are exact), which leaves at most n^2 2^-105 sum |a b|,
/// n = k + kLanes; the FP32 number if there is one alone that near to it.
std::optional<float> summed_doubled(const ExactRow& row, std::int64_t column) {
  double sums[kLanes] = {}, rests[kLanes] = {};
  const double* b = row.b + column;
  for (std::int64_t begin = 0; begin < row.k; begin += kLanes) {
    const std::int64_t count = std::min(kLanes, row.k - begin);
    for (std::int64_t i = 0; i < count; ++i) {
      add_doubled(row.a[begin + i] * b[(begin + i) * row.stride], sums[i], rests[i]);
    }
  }
  double sum = 0.0, rest = 0.0;
  for (std::int64_t i = 0; i < kLanes; ++i) {
    add_doubled(sums[i], sum, rest);
    rest += rests[i];
  }
  // errors[column] is 2 (k + 1) 2^-53 sum |a b| at least, and n at most 8 (k + 1).
  const double value = sum + rest;
  const double n = static_cast<double>(row.k + kLanes);
  const double error = 16.0 * n * 0x1p-52 * row.errors[column] + 0x1p-51 * std::abs(value);
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

ExactExtent exact_extent(const float* values, std::int64_t k) {
  float largest[kLanes] = {}, lowest[kLanes];
  double squares[kLanes] = {};
  std::fill_n(lowest, kLanes, std::numeric_limits<float>::infinity());
  for (std::int64_t begin = 0; begin < k; begin += kLanes) {
    const std::int64_t count = std::min(kLanes, k - begin);
    for (std::int64_t i = 0; i < count; ++i) {
      const std::uint32_t magnitude = numerics::float_bits(values[begin + i]) & 0x7FFFFFFFu;
      const float value = numerics::bits_float(magnitude);
      const float low = lowest_bit(magnitude);
      largest[i] = value > largest[i] ? value : largest[i];
      lowest[i] = low > 0.0f && low < lowest[i] ? low : lowest[i];
      squares[i] += static_cast<double>(value) * static_cast<double>(value);
    }
  }
  ExactExtent extent;
  double sum = 0.0;
  for (const double part : squares) sum += part;
  extent.norm = std::sqrt(sum) * (1.0 + 0x1p-20);  // covers rounding of fewer than 2^30 squares
  const float top = *std::max_element(largest, largest + kLanes);
  const float bottom = *std::min_element(lowest, lowest + kLanes);
  const bool finite = top > 0.0f && std::isfinite(top);
  extent.bits = finite ? std::ilogb(top) - std::ilogb(bottom) + 1 : 0;
  return extent;
}

double exact_error_bound(const ExactExtent& a, const ExactExtent& b, std::int64_t k) {
  const int growth = static_cast<int>(std::bit_width(static_cast<std::uint64_t>(k - 1)));
  if (a.bits + b.bits + growth <= kFp64Bits) return 0.0;
  // Twice the theoretical bound, to cover the rounding of the interval's ends.
  return 2.0 * static_cast<double>(k + 1) * 0x1p-53 * a.norm * b.norm;
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
