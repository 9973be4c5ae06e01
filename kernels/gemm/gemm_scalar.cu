#include "kernels/gemm/gemm_scalar.hpp"

namespace fp8lab::cuda {
namespace {

constexpr int kTile = 16;

template <class Code>
__global__ void scalar_kernel(const __grid_constant__ ScalarGemm gemm) {
  const std::int64_t row = std::int64_t{blockIdx.y} * kTile + threadIdx.y;
  const std::int64_t column = std::int64_t{blockIdx.x} * kTile + threadIdx.x;
  if (row >= gemm.m || column >= gemm.n) return;
  const float one = 1.0f;
  const auto scales = [&one](const ScaleGrid& grid, std::int64_t index) {
    return grid.data == nullptr ? &one : grid.data + index / grid.rows * grid.stride;
  };
  const float* sa = scales(gemm.scale_a, row);
  const float* sb = scales(gemm.scale_b, column);
  const float acc = numerics::accumulate_element(
      gemm.element, static_cast<const Code*>(gemm.a) + row * gemm.a_stride,
      static_cast<const Code*>(gemm.b) + column * gemm.b_stride, gemm.k, sa, sb);
  const std::int64_t at = row * gemm.d_stride + column;
  const float c = gemm.epilogue.beta == 0.0f ? 0.0f : static_cast<const float*>(gemm.d)[at];
  float bias = 0.0f;
  if (gemm.bias != nullptr) {
    bias = gemm.bias_bf16
               ? numerics::from_bf16(static_cast<const std::uint16_t*>(gemm.bias)[column])
               : static_cast<const float*>(gemm.bias)[column];
  }
  const std::uint32_t code = numerics::finish_element(gemm.epilogue, acc, *sa, *sb, c,
                                                      gemm.bias == nullptr ? nullptr : &bias);
  if (gemm.epilogue.output.bits() == 16) {
    static_cast<std::uint16_t*>(gemm.d)[at] = static_cast<std::uint16_t>(code);
  } else {
    static_cast<std::uint32_t*>(gemm.d)[at] = code;
  }
}

}  // namespace

void gemm_scalar(Context& context, const ScalarGemm& gemm) {
  if (gemm.m == 0 || gemm.n == 0) return;
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
