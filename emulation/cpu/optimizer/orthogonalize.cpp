#include <algorithm>
#include <cstdint>

#include "emulation/cpu/operations.hpp"
#include "emulation/cpu/row_access.hpp"

namespace fp8lab::cpu {
namespace {

constexpr std::int64_t kRange = 1024;  // elements at a time; no effect on bits

/// Replaces the elements of a contiguous bf16 matrix: body(first, count, values) changes the
/// widened `values` of elements [first, first + count).
template <class Body>
void update_elements(const TensorView& x, const Body& body) {
  const PointwiseKernels& kernels = pointwise_kernels();
  const TensorView flat = x.flat();
#pragma omp parallel for schedule(static)
  for (std::int64_t range = 0; range < (flat.cols + kRange - 1) / kRange; ++range) {
    const std::int64_t first = range * kRange, count = std::min(kRange, flat.cols - first);
    float values[kRange];
    kernels.widen(flat.row<std::uint16_t>(0) + first, count, values);
    body(first, count, values);
    kernels.narrow(values, count, flat.row<std::uint16_t>(0) + first);
  }
}

void run_part(const ops::Orthogonalize::LookAhead& part) {
  const PointwiseKernels& kernels = pointwise_kernels();
  const TensorView gradient = part.gradient.flat();
  const float* const momentum = part.first_moment.row<float>(0);
  const float clip = part.scalars.row<float>(0)[StepScalar::kClipFactor];
  part.squares.row<float>(0)[StepScalar::kGradNormSquared] = 0.0f;
  update_elements(part.x, [&](std::int64_t first, std::int64_t count, float* x) {
    float scratch[kRange];
    const float* const g = read_row(kernels, gradient, 0, first, count, scratch);
    for (std::int64_t k = 0; k < count; ++k) {
      x[k] = look_ahead(part.spec.momentum, momentum[first + k], g[k] * clip);
    }
  });
}

void run_part(const ops::Orthogonalize::Normalize& part) {
  const float norm = direction_norm(part.squares.row<float>(0)[StepScalar::kGradNormSquared]);
  update_elements(part.x, [&](std::int64_t, std::int64_t count, float* x) {
    for (std::int64_t k = 0; k < count; ++k) x[k] = x[k] / norm;
  });
}

void run_part(const ops::Orthogonalize::AddProduct& part) {
  const float* const product = part.product.row<float>(0);
  update_elements(part.x, [&](std::int64_t first, std::int64_t count, float* x) {
    for (std::int64_t k = 0; k < count; ++k) {
      x[k] = (part.factor * x[k]) + (part.product_factor * product[first + k]);
    }
  });
}

template <class Operation>
void run_part(const Operation& op) {
  run(op);
}

}  // namespace

void run(const ops::Orthogonalize& op) {
  op.check();
  op.for_each_part([](const auto& part) { run_part(part); });
}

}  // namespace fp8lab::cpu
