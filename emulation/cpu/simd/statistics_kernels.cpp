#include "emulation/cpu/simd/statistics_kernels.hpp"

#include <cstring>

namespace fp8lab::cpu {
namespace FP8LAB_ISA {
namespace {

using Floats = float __attribute__((vector_size(32)));
using Words = std::int32_t __attribute__((vector_size(32)));
using Doubles = double __attribute__((vector_size(64)));

constexpr std::int32_t kMagnitude = 0x7FFFFFFF;
constexpr std::int32_t kInfinity = 0x7F800000;

/// By reference: how a wide vector is returned by value depends on the instruction set.
template <class Vector>
void load(const void* data, Vector& vector) {
  std::memcpy(&vector, data, sizeof vector);
}

std::int64_t sum_of(const Words& counts) {
  std::int64_t sum = 0;
  for (int l = 0; l < kStatisticsLanes; ++l) sum += counts[l];
  return sum;
}

/// lane sums += terms, one addition a lane.
void add(const Doubles& terms, double* lanes) {
  Doubles sum;
  load(lanes, sum);
  sum += terms;
  std::memcpy(lanes, &sum, sizeof sum);
}

void count_exponents(const StatisticsRow& row, StatisticsCounts* counts) {
  for (std::int64_t i = 0; i < row.n; ++i) {
    std::int32_t x = 0, y = 0;
    std::memcpy(&x, row.x + i, sizeof x);
    std::memcpy(&y, row.y + i, sizeof y);
    x &= kMagnitude;
    if (x == 0 || x >= kInfinity || (y & kMagnitude) >= kInfinity) continue;
    const int bin = (x >> 23) - 127 - kLowestBinExponent;
    ++counts->exponents[bin < 0 ? 0 : bin >= kExponentBins ? kExponentBins - 1 : bin];
  }
}

void add_row(const StatisticsRow* row, StatisticsSums* sums, StatisticsCounts* counts,
             std::uint32_t* channel_amax) {
  Words nonfinite{}, underflow{}, saturated{};
  for (std::int64_t i = 0; i < row->n; i += kStatisticsLanes) {
    Words x_bits, y_bits, limits;
    load(row->x + i, x_bits);
    load(row->y + i, y_bits);
    load(row->limits + i, limits);
    const Words x_magnitude = x_bits & kMagnitude;
    const Words y_magnitude = y_bits & kMagnitude;
    // Comparisons of vectors give 0 or -1 in each lane.
    const Words finite = (x_magnitude < kInfinity) & (y_magnitude < kInfinity);
    nonfinite -= ~finite;
    underflow -= finite & (x_magnitude != 0) & (y_magnitude == 0);
    // Magnitudes and limits are never negative, so their bits have their order; a NaN x is above
    // every limit and must not count.
    saturated -= (x_magnitude <= kInfinity) & (x_magnitude > limits);

    const Words finite_magnitude = x_magnitude & finite;
    for (int l = 0; l < kStatisticsLanes && i + l < row->n; ++l) {
      const auto magnitude = static_cast<std::uint32_t>(finite_magnitude[l]);
      if (magnitude > channel_amax[i + l]) channel_amax[i + l] = magnitude;
    }

    const Doubles x = __builtin_convertvector((Floats)(x_bits & finite), Doubles);
    const Doubles y = __builtin_convertvector((Floats)(y_bits & finite), Doubles);
    const Doubles magnitude = __builtin_convertvector((Floats)finite_magnitude, Doubles);
    const Doubles square = x * x;
    const Doubles error = y - x;
    add(square, sums->xx);
    add(square * square, sums->xxxx);
    add(x * y, sums->xy);
    add(y * y, sums->yy);
    add(error * error, sums->ee);
    add(error, sums->e);
    add(magnitude, sums->x);
  }
  counts->nonfinite += sum_of(nonfinite);
  counts->underflow += sum_of(underflow);
  counts->saturated += sum_of(saturated);
  count_exponents(*row, counts);
}

}  // namespace

extern const StatisticsKernels kStatistics;
const StatisticsKernels kStatistics = {.add_row = add_row};

}  // namespace FP8LAB_ISA
}  // namespace fp8lab::cpu
