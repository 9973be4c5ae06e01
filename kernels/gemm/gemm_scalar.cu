#include "kernels/gemm/gemm_element.cuh"

namespace fp8lab::cuda {
namespace {

constexpr int kTile = 16;

template <class Code>
__global__ void scalar_kernel(const __grid_constant__ ScalarGemm gemm) {
  const std::int64_t row = std::int64_t{blockIdx.y} * kTile + threadIdx.y;
  const std::int64_t column = std::int64_t{blockIdx.x} * kTile + threadIdx.x;
  if (row >= gemm.m || column >= gemm.n) return;
  const float one = 1.0f;
  const float* sa = row_scales(gemm.scale_a, row, &one);
  const float* sb = row_scales(gemm.scale_b, column, &one);
  const float acc = numerics::accumulate_element(
      gemm.element, static_cast<const Code*>(gemm.a) + row * gemm.a_stride,
      static_cast<const Code*>(gemm.b) + column * gemm.b_stride, gemm.k, sa, sb);
  store_element(gemm, row, column, acc, *sa, *sb);
}

}  // namespace

void gemm_scalar(Context& context, const ScalarGemm& gemm) {
  if (gemm.m == 0 || gemm.n == 0) return;
  if (gemm.element.unit == numerics::ChainUnit::ideal_exact) return gemm_exact(context, gemm);
  const dim3 threads(kTile, kTile);
  const dim3 grid(static_cast<unsigned>((gemm.n + kTile - 1) / kTile),
                  static_cast<unsigned>((gemm.m + kTile - 1) / kTile));
  switch (gemm.code_bytes) {
    case 1: scalar_kernel<std::uint8_t><<<grid, threads, 0, context.stream()>>>(gemm); break;
    case 2: scalar_kernel<std::uint16_t><<<grid, threads, 0, context.stream()>>>(gemm); break;
    default: scalar_kernel<std::uint32_t><<<grid, threads, 0, context.stream()>>>(gemm); break;
  }
  check_launch("gemm_scalar");
}

}  // namespace fp8lab::cuda
