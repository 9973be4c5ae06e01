#include "kernels/transform/clamp.hpp"

#include <cstddef>

#include "emulation/numerics/outliers.hpp"
#include "emulation/ops/quantize/operand_checks.hpp"
#include "kernels/pointwise/rows.cuh"
#include "kernels/pointwise/tree_sum.cuh"
#include "kernels/quantize/quantize_values.hpp"

namespace fp8lab::cuda {
namespace {

using numerics::ClampBounds;
using Count = unsigned long long;  // the type of atomicAdd

constexpr int kThreads = 256;
constexpr int kDigits = 256;  ///< values of one byte of a key

/// Radix selection of two elements of a sorted tensor, byte by byte. For each: the leading bytes of
/// its key found so far, and its rank among the elements that share them.
struct Selection {
  std::uint32_t prefix[2];
  std::int64_t rank[2];
  Count histogram[2][kDigits];
};

/// Returns an unsigned key that orders numbers, -0 before +0. Precondition: not NaN.
__device__ std::uint32_t key_of(float value) {
  const std::uint32_t bits = numerics::float_bits(value);
  return bits >> 31 != 0 ? ~bits : bits | 0x80000000u;
}
__device__ float number_of(std::uint32_t key) {
  return numerics::bits_float(key >> 31 != 0 ? key & 0x7FFFFFFFu : ~key);
}

/// Counts the values of byte `shift` / 8 over the elements whose higher bytes
/// match a selection's prefix.
template <class T>
__global__ void __launch_bounds__(kThreads)
    histogram_kernel(Rows<T> source, std::int64_t rows, std::int64_t cols, int shift,
                     Selection* selection) {
  __shared__ std::uint32_t counts[2][kDigits];
  for (int i = static_cast<int>(threadIdx.x); i < 2 * kDigits; i += kThreads) {
    counts[i / kDigits][i % kDigits] = 0;
  }
  __syncthreads();
  const std::int64_t step = std::int64_t{gridDim.x} * kThreads;
  for (std::int64_t i = std::int64_t{blockIdx.x} * kThreads + threadIdx.x; i < rows * cols;
       i += step) {
    const float value = source.load(i / cols, i % cols);
    if (value != value) continue;
    const std::uint32_t key = key_of(value);
    for (int which = 0; which < 2; ++which) {
      if (shift < 24 && key >> (shift + 8) != selection->prefix[which]) continue;
      atomicAdd(&counts[which][key >> shift & (kDigits - 1)], 1u);
    }
  }
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < 2 * kDigits; i += kThreads) {
    const std::uint32_t count = counts[i / kDigits][i % kDigits];
    if (count != 0) atomicAdd(&selection->histogram[i / kDigits][i % kDigits], Count{count});
  }
}

/// Finds the next byte of both elements; after the first histogram also their ranks, after the last
/// the bounds. Runs in one thread.
__global__ void select_kernel(int shift, double quantile, Selection* selection, float* bounds) {
  if (shift == 24) {
    Count all = 0;
    for (const Count count : selection->histogram[0]) all += count;
    const auto count = static_cast<std::int64_t>(all);
    const auto share =
        static_cast<std::int64_t>(floor((1.0 - quantile) * static_cast<double>(count) + 0.5));
    const std::int64_t cut = min(share, (count - 1) / 2);
    selection->rank[0] = cut;
    selection->rank[1] = count - 1 - cut;
    bounds[0] = bounds[1] = 0.0f;
    if (count == 0) selection->rank[0] = selection->rank[1] = -1;
  }
  for (int which = 0; which < 2; ++which) {
    if (selection->rank[which] < 0) continue;  // the tensor has no elements
    std::int64_t rank = selection->rank[which];
    std::uint32_t digit = 0;
    for (; digit + 1 < kDigits; ++digit) {
      const auto here = static_cast<std::int64_t>(selection->histogram[which][digit]);
      if (rank < here) break;
      rank -= here;
    }
    selection->rank[which] = rank;
    selection->prefix[which] = selection->prefix[which] << 8 | digit;
    if (shift == 0) bounds[which] = number_of(selection->prefix[which]);
    for (Count& count : selection->histogram[which]) count = 0;
  }
}

/// A nonzero element of a row's sparse residual.
struct Outlier {
  std::int32_t k;
  float residual;
};

/// Access to an operand's tensor before quantization, or to its decoded values, in
/// the operand's orientation.
template <class T>
struct Original {
  Rows<T> source;
  bool transpose;

  __device__ float at(std::int64_t row, std::int64_t k) const {
    return transpose ? source.load(k, row) : source.load(row, k);
  }
};

/// Writes the outliers of each row to outliers[row * k + i], by ascending k; one warp for each row.
template <class T>
__global__ void outlier_kernel(Original<T> clamped, std::int64_t rows, std::int64_t k,
                               const float* bounds, Outlier* outliers, std::int32_t* counts) {
  const std::int64_t row = std::int64_t{blockIdx.x} * warp_count() + warp_id();
  if (row >= rows) return;
  const ClampBounds limits{bounds[0], bounds[1]};
  int found = 0;
  for (std::int64_t k0 = 0; k0 < k; k0 += kWarpSize) {
    const std::int64_t at = k0 + lane_id();
    const float residual = at < k ? numerics::clamp_residual(limits, clamped.at(row, at)) : 0.0f;
    const std::uint32_t mask = __ballot_sync(kAllLanes, residual != 0.0f);
    const int before = __popc(mask & ((1u << lane_id()) - 1u));
    if (residual != 0.0f) {
      outliers[row * k + found + before] = {static_cast<std::int32_t>(at), residual};
    }
    found += __popc(mask);
  }
  if (lane_id() == 0) counts[row] = found;
}

/// Computes d += residual rows times the other operand, one thread for each element; blockIdx.y
/// runs over the rows of the clamped operand.
template <class T, class D>
__global__ void __launch_bounds__(kThreads)
    compensate_kernel(Original<T> other, std::int64_t rows, std::int64_t others, std::int64_t k,
                      const Outlier* outliers, const std::int32_t* counts, bool is_left,
                      Rows<D> d) {
  const std::int64_t i = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= others) return;
  for (std::int64_t row = blockIdx.y; row < rows; row += gridDim.y) {
    if (counts[row] == 0) continue;
    float sum = 0.0f;
    for (int j = 0; j < counts[row]; ++j) {
      const Outlier outlier = outliers[row * k + j];
      sum += outlier.residual * other.at(i, outlier.k);
    }
    const std::int64_t m = is_left ? row : i, n = is_left ? i : row;
    d.store(m, n, d.load(m, n) + sum);
  }
}

}  // namespace

void write_clamp_bounds(Context& context, const TensorView& source, double quantile,
                        float* bounds) {
  auto* const selection = static_cast<Selection*>(context.workspace(sizeof(Selection)));
  check(cudaMemsetAsync(selection, 0, sizeof(Selection), context.stream()), "cudaMemsetAsync");
  const unsigned blocks = grid_size((source.size() + kThreads - 1) / kThreads,
                                    static_cast<std::int64_t>(context.multiprocessors()) * 8);
  for (int shift = 24; shift >= 0; shift -= 8) {
    with_rows(
        [&](const auto& rows) {
          histogram_kernel<<<blocks, kThreads, 0, context.stream()>>>(
              rows, source.rows, source.cols, shift, selection);
        },
        source);
    check_launch("clamp: histogram");
    select_kernel<<<1, 1, 0, context.stream()>>>(shift, quantile, selection, bounds);
    check_launch("clamp: bounds");
  }
}

void run(Context& context, const ops::Compensate& op) {
  op.check();
  const bool is_left = op.is_left();
  const QuantizedOperand& own = op.clamped();
  const std::int64_t rows = own.rows, k = own.k, others = op.other().rows;
  const TensorView& source = is_left ? op.a_source : op.b_source;
  TensorView factors = is_left ? op.b_source : op.a_source;
  bool factors_transpose = is_left ? op.transpose_b : op.transpose_a;
  if (op.takes_codes()) {
    const auto count = static_cast<std::size_t>(others * k);
    factors = {context.tensor_memory(count * sizeof(float)), DType::f32, others, k, k};
    factors_transpose = false;
    decode_operand(context, op.other(), false, factors);
  }
  const std::size_t list = static_cast<std::size_t>(rows * k) * sizeof(Outlier);
  auto* const memory = static_cast<std::byte*>(
      context.workspace(list + static_cast<std::size_t>(rows) * sizeof(std::int32_t)));
  auto* const outliers = reinterpret_cast<Outlier*>(memory);
  auto* const counts = reinterpret_cast<std::int32_t*>(memory + list);
  with_rows(
      [&]<class T>(const Rows<T>& values) {
        constexpr std::int64_t kRowsPerBlock = kThreads / kWarpSize;
        outlier_kernel<<<static_cast<unsigned>((rows + kRowsPerBlock - 1) / kRowsPerBlock),
                         kThreads, 0, context.stream()>>>(
            Original<T>{values, is_left ? op.transpose_a : op.transpose_b}, rows, k,
            own.clamp_bounds.row<float>(0), outliers, counts);
      },
      source);
  check_launch("compensate: outliers");
  const dim3 grid(static_cast<unsigned>((others + kThreads - 1) / kThreads),
                  grid_size(rows, kGridYLimit));
  with_rows(
      [&]<class T, class D>(const Rows<T>& values, const Rows<D>& sums) {
        compensate_kernel<<<grid, kThreads, 0, context.stream()>>>(
            Original<T>{values, factors_transpose}, rows, others, k, outliers, counts, is_left,
            sums);
      },
      factors, op.d);
  check_launch("compensate");
}

}  // namespace fp8lab::cuda
