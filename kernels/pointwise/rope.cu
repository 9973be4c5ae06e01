#include <cstdint>

#include "kernels/pointwise/rows.cuh"
#include "kernels/runtime/fault.cuh"
#include "kernels/runtime/operations.hpp"

namespace fp8lab::cuda {
namespace {

/// Rotates the pairs of each token. A head has `padded` columns, of which `half` are in use. Leaves
/// tokens with a position outside the table unchanged.
template <class T>
struct Rotate {
  Rows<T> x;
  const std::int32_t* positions;
  Rows<float> cosine, sine;
  std::int64_t table_rows, half, padded;
  bool inverse;
  std::uint32_t* faults;

  __device__ void operator()(std::int64_t token, std::int64_t pair, int) const {
    // A token has fewer than 2^31 pairs, so a fast 32-bit division suffices.
    const auto head = static_cast<std::uint32_t>(pair) / static_cast<std::uint32_t>(padded);
    const std::int64_t col = pair - std::int64_t{head} * padded;
    const int count = half - col < kGroup ? static_cast<int>(half - col) : kGroup;
    const std::int64_t lower_col = std::int64_t{head} * (2 * half) + col;
    const std::int64_t upper_col = lower_col + half;
    const std::int64_t position = positions[token];
    if (position < 0 || position >= table_rows) {
      report(faults, Fault::position_outside_table);
      return;
    }
    float c[kGroup], s[kGroup], a[kGroup], b[kGroup], lower[kGroup], upper[kGroup];
    cosine.load_group(position, col, count, c);
    sine.load_group(position, col, count, s);
    x.load_group(token, lower_col, count, a);
    x.load_group(token, upper_col, count, b);
    for (int i = 0; i < kGroup; ++i) {
      const float signed_sine = inverse ? -s[i] : s[i];
      lower[i] = (a[i] * c[i]) - (b[i] * signed_sine);
      upper[i] = (b[i] * c[i]) + (a[i] * signed_sine);
    }
    x.store_group(token, lower_col, count, lower);
    x.store_group(token, upper_col, count, upper);
  }
};

}  // namespace

void run(Context& context, const ops::Rope& op) {
  op.check();
  const std::int64_t half = op.head_dim / 2;
  const std::int64_t padded = (half + kGroup - 1) / kGroup * kGroup;
  with_rows(
      [&]<class T>(Rows<T> rows) {
        rows.wide = rows.wide && half % kGroup == 0;  // groups also start at multiples of half
        const Rotate<T> body{rows,
                             op.positions.row<std::int32_t>(0),
                             rows_of<float>(op.cosine),
                             rows_of<float>(op.sine),
                             op.cosine.rows,
                             half,
                             padded,
                             op.inverse,
                             context.faults()};
        launch_groups(context, op.x.rows, op.x.cols / op.head_dim * padded, body, "rope");
      },
      op.x);
}

}  // namespace fp8lab::cuda
