#include <cstdint>

#include "emulation/cpu/operation_checks.hpp"
#include "kernels/fault.cuh"
#include "kernels/operations.hpp"
#include "kernels/rows.cuh"

namespace fp8lab::cuda {
namespace {

/// Works on the pairs of each token, a row of `padded` columns for each head, of which `half` are
/// in use. Leaves tokens with a position outside the table as they are.
template <class T>
struct Rotate {
  Rows<T> x;
  const std::int32_t* positions;
  Rows<float> cosine, sine;
  std::int64_t table_rows, half, padded;
  bool inverse;
  std::uint32_t* faults;

  __device__ void operator()(std::int64_t token, std::int64_t pair, int) const {
    const std::int64_t col = pair % padded;
    const int count = half - col < kGroup ? static_cast<int>(half - col) : kGroup;
    const std::int64_t lower_col = pair / padded * (2 * half) + col;
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

void rope(Context& context, const TensorView& x, const TensorView& positions,
          const TensorView& cosine, const TensorView& sine, std::int64_t head_dim, bool inverse) {
  cpu::check_rope(x, positions, cosine, sine, head_dim);
  const std::int64_t half = head_dim / 2;
  const std::int64_t padded = (half + kGroup - 1) / kGroup * kGroup;
  with_rows(
      [&]<class T>(Rows<T> rows) {
        rows.wide = rows.wide && half % kGroup == 0;  // groups start at multiples of half as well
        const Rotate<T> body{rows,
                             positions.row<std::int32_t>(0),
                             rows_of<float>(cosine),
                             rows_of<float>(sine),
                             cosine.rows,
                             half,
                             padded,
                             inverse,
                             context.faults()};
        launch_groups(context, x.rows, x.cols / head_dim * padded, body, "rope");
      },
      x);
}

}  // namespace fp8lab::cuda
