#include "emulation/cpu/simd/statistics_kernels.hpp"

#include <cstring>

namespace fp8lab::cpu {
namespace FP8LAB_ISA {
namespace {

// Number of elements counted and summed at a time: a register of 32-bit elements, one of doubles.
// GCC splits comparisons of longer vectors.
#if defined(__AVX512F__)
constexpr int kCounted = 8, kSummed = 8;
#elif defined(__AVX2__)
constexpr int kCounted = 8, kSummed = 4;
#else
constexpr int kCounted = 4, kSummed = 2;
#endif
using Words = std::int32_t __attribute__((vector_size(4 * kCounted)));
using Floats = float __attribute__((vector_size(4 * kSummed)));
using Doubles = double __attribute__((vector_size(8 * kSummed)));
using WideWords = std::int64_t __attribute__((vector_size(8 * kSummed)));
using Four = std::int32_t __attribute__((vector_size(16)));

constexpr int kCols = StatisticsBlock::kCols;
constexpr int kLanes = StatisticsBlock::kLanes;
constexpr int kLaneCols = StatisticsOrder::kLaneCols;

constexpr std::int32_t kMagnitude = 0x7FFFFFFF;
constexpr std::int32_t kInfinity = 0x7F800000;

/// By reference, because the instruction set decides how a wide vector is returned by value.
template <class Vector>
void load(const void* data, Vector& vector) {
  std::memcpy(&vector, data, sizeof vector);
}
template <class Vector>
void store(const Vector& vector, void* data) {
  std::memcpy(data, &vector, sizeof vector);
}

/// Computes `mask` ? a : b, for masks of 0 and -1. Uses these operations, because GCC splits the
/// operator if vectors are shorter.
[[gnu::always_inline]] inline void select(const Words& mask, const Words& a, const Words& b,
                                          Words& result) {
  result = (a & mask) | (b & ~mask);
}

std::int64_t sum_of(const Words& counts) {
  std::int64_t sum = 0;
  for (int l = 0; l < kCounted; ++l) sum += counts[l];
  return sum;
}

/// Counters for each place in a vector, so that equal neighbours do not wait for each other. The
/// last bin is for elements that do not count.
struct Histogram {
  std::uint32_t bins[kCounted][kExponentBins + 1] = {};

  [[gnu::always_inline]] void add(const Words& magnitude, const Words& counts) {
    Words bin = (magnitude >> 23) - (127 + kLowestBinExponent);
    bin &= bin >= 0;
    select(bin < kExponentBins, bin, Words{} + (kExponentBins - 1), bin);
    select(counts, bin, Words{} + kExponentBins, bin);
    std::int32_t places[kCounted];
    std::memcpy(places, &bin, sizeof bin);
    for (int l = 0; l < kCounted; ++l) ++bins[l][places[l]];
  }
  void add_to(std::int64_t* exponents) const {
    for (const auto& of_place : bins) {
      for (int i = 0; i < kExponentBins; ++i) exponents[i] += of_place[i];
    }
  }
};

/// Counts kept in vectors.
struct Counters {
  Words nonfinite{}, underflow{}, saturated{};
  Histogram histogram;
};

/// Counts neighbours, raises `amax`, and sets nonfinite elements to zero.
[[gnu::always_inline]] inline void count(Words& x_bits, Words& y_bits, const Words& limits,
                                         Counters& counters, Words& amax) {
  const Words x_magnitude = x_bits & kMagnitude;
  const Words y_magnitude = y_bits & kMagnitude;
  // Comparisons of vectors return 0 or -1 in each lane.
  const Words finite = (x_magnitude < kInfinity) & (y_magnitude < kInfinity);
  const Words nonzero = finite & (x_magnitude != 0);
  counters.nonfinite -= ~finite;
  counters.underflow -= nonzero & (y_magnitude == 0);
  // Magnitudes and limits are never negative, so their bits compare as their values do. A NaN x
  // exceeds every limit and must not count.
  counters.saturated -= (x_magnitude <= kInfinity) & (x_magnitude > limits);
  counters.histogram.add(x_magnitude, nonzero);
  const Words finite_magnitude = x_magnitude & finite;
  select(finite_magnitude > amax, finite_magnitude, amax, amax);
  x_bits &= finite;
  y_bits &= finite;
}

/// Finite elements of a row, zeros elsewhere.
struct Row {
  alignas(64) float x[kCols], y[kCols];
};
/// Transposed rows: the first elements of all lanes, then the second ones and so on.
struct Turned {
  alignas(64) float x[StatisticsBlock::kRows * kCols], y[StatisticsBlock::kRows * kCols];
};

/// Transposes 4 x 4 elements at a time.
void turn(const float* row, float* turned) {
  for (int lane = 0; lane < kLanes; lane += 4) {
    for (int col = 0; col < kLaneCols; col += 4) {
      Four a, b, c, d;
      load(row + lane * kLaneCols + col, a);
      load(row + (lane + 1) * kLaneCols + col, b);
      load(row + (lane + 2) * kLaneCols + col, c);
      load(row + (lane + 3) * kLaneCols + col, d);
      const Four ab_low = __builtin_shufflevector(a, b, 0, 4, 1, 5);
      const Four cd_low = __builtin_shufflevector(c, d, 0, 4, 1, 5);
      const Four ab_high = __builtin_shufflevector(a, b, 2, 6, 3, 7);
      const Four cd_high = __builtin_shufflevector(c, d, 2, 6, 3, 7);
      float* out = turned + col * kLanes + lane;
      store(__builtin_shufflevector(ab_low, cd_low, 0, 1, 4, 5), out);
      store(__builtin_shufflevector(ab_low, cd_low, 2, 3, 6, 7), out + kLanes);
      store(__builtin_shufflevector(ab_high, cd_high, 0, 1, 4, 5), out + 2 * kLanes);
      store(__builtin_shufflevector(ab_high, cd_high, 2, 3, 6, 7), out + 3 * kLanes);
    }
  }
}

/// sum = RN(value^2 + sum).
[[gnu::always_inline]] inline void add_square(const Doubles& value, Doubles& sum) {
  for (int i = 0; i < kSummed; ++i) sum[i] = __builtin_fma(value[i], value[i], sum[i]);
}

/// Adds lanes `first` to `first` + kSummed - 1, of `count` elements each.
void add_lanes(const Turned& turned, int first, std::int64_t count, StatisticsSums* sums) {
  Doubles xx{}, xxxx{}, yy{}, ee{}, e{}, magnitudes{};
  for (std::int64_t i = 0; i < count; ++i) {
    Floats x_values, y_values;
    load(turned.x + i * kLanes + first, x_values);
    load(turned.y + i * kLanes + first, y_values);
    const Doubles x = __builtin_convertvector(x_values, Doubles);
    const Doubles y = __builtin_convertvector(y_values, Doubles);
    const Doubles square = x * x;
    const Doubles error = y - x;
    xx += square;
    xxxx += square * square;
    yy += y * y;
    add_square(error, ee);
    e += error;
    magnitudes += (Doubles)((WideWords)x & std::int64_t{0x7FFFFFFFFFFFFFFF});
  }
  store(xx, sums->xx + first);
  store(xxxx, sums->xxxx + first);
  store(yy, sums->yy + first);
  store(ee, sums->ee + first);
  store(e, sums->e + first);
  store(magnitudes, sums->x + first);
}

void compare(const StatisticsBlock* block, StatisticsSums* sums, StatisticsCounts* counts,
             std::uint32_t* channel_amax) {
  Counters counters;
  Turned turned;
  Words amax[kCols / kCounted] = {};
  for (std::int64_t row = 0; row < block->rows; ++row) {
    Row finite;
    for (int col = 0; col < kCols; col += kCounted) {
      const std::int64_t at = row * kCols + col;
      Words x, y, limits;
      load(block->x + at, x);
      load(block->y + at, y);
      load(block->limits + at, limits);
      count(x, y, limits, counters, amax[col / kCounted]);
      store(x, finite.x + col);
      store(y, finite.y + col);
    }
    turn(finite.x, turned.x + row * kCols);
    turn(finite.y, turned.y + row * kCols);
  }
  for (int first = 0; first < kLanes; first += kSummed) {
    add_lanes(turned, first, block->rows * kLaneCols, sums);
  }
  for (std::int64_t col = 0; col < block->cols; ++col) {
    const auto value = static_cast<std::uint32_t>(amax[col / kCounted][col % kCounted]);
    if (value > channel_amax[col]) channel_amax[col] = value;
  }
  counts->nonfinite += sum_of(counters.nonfinite);
  counts->underflow += sum_of(counters.underflow);
  counts->saturated += sum_of(counters.saturated);
  counters.histogram.add_to(counts->exponents);
}

}  // namespace

extern const StatisticsKernels kStatistics;
const StatisticsKernels kStatistics = {.compare = compare};

}  // namespace FP8LAB_ISA
}  // namespace fp8lab::cpu
