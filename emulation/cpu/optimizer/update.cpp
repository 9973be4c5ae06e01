#include <algorithm>
#include <cstdint>

#include "emulation/cpu/operations.hpp"
#include "emulation/cpu/row_access.hpp"

namespace fp8lab::cpu {
namespace {

constexpr std::int64_t kRange = 1024;  // elements updated at a time; no effect on bits

/// Calls body(first, count, gradient) for ranges of the elements, with the gradient widened.
template <class Body>
void for_each_range(const TensorView& gradient, const Body& body) {
  const PointwiseKernels& kernels = pointwise_kernels();
  const TensorView flat = gradient.flat();
#pragma omp parallel for schedule(static)
  for (std::int64_t range = 0; range < (flat.cols + kRange - 1) / kRange; ++range) {
    const std::int64_t first = range * kRange, count = std::min(kRange, flat.cols - first);
    float scratch[kRange];
    body(first, count, read_row(kernels, flat, 0, first, count, scratch));
  }
}

float* values_or_null(const TensorView& moment) {
  return moment.empty() ? nullptr : moment.row<float>(0);
}

}  // namespace

void run(const ops::AdvanceMoments& op) {
  op.check();
  const UpdateFactors factors = update_factors(op.spec, op.scalars.row<float>(0), 0.0f);
  float* const m = values_or_null(op.first_moment);
  float* const v = values_or_null(op.second_moment);
  for_each_range(op.gradient, [&](std::int64_t first, std::int64_t count, const float* gradient) {
    for (std::int64_t k = 0; k < count; ++k) {
      const std::int64_t i = first + k;
      const float g = gradient[k] * factors.clip;
      if (m != nullptr) {
        m[i] = numerics::canonical_nan(next_first_moment(op.spec, factors, m[i], g));
      }
      if (v != nullptr) {
        v[i] = numerics::canonical_nan(next_second_moment(op.spec, factors, v[i], g));
      }
    }
  });
}

void run(const ops::UpdateWeights& op) {
  op.check();
  const PointwiseKernels& kernels = pointwise_kernels();
  const UpdateFactors factors = update_factors(op.spec, op.scalars.row<float>(0), op.decay_mask);
  const TensorView master = op.master.flat();
  const float* const m = values_or_null(op.first_moment);
  const float* const v = values_or_null(op.second_moment);
  const float bound = op.weight_bound.empty() ? 0.0f : *op.weight_bound.row<float>(0);
  for_each_range(op.gradient, [&](std::int64_t first, std::int64_t count, const float* gradient) {
    float scratch[kRange], weights[kRange];
    const float* const old = read_row(kernels, master, 0, first, count, scratch);
    for (std::int64_t k = 0; k < count; ++k) {
      const std::int64_t i = first + k;
      weights[k] = updated_weight(op.spec, factors, old[k], gradient[k] * factors.clip,
                                  m == nullptr ? 0.0f : m[i], v == nullptr ? 0.0f : v[i], bound);
    }
    write_row(kernels, weights, count, master, 0, first);
    if (!op.working.empty()) write_row(kernels, weights, count, op.working.flat(), 0, first);
  });
}

}  // namespace fp8lab::cpu
