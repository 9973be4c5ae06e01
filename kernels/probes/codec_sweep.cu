#include "kernels/probes/codec_sweep.hpp"

#include <cuda_fp8.h>

#include "emulation/numerics/codec.hpp"
#include "kernels/pointwise/reciprocal.cuh"
#include "kernels/pointwise/rows.cuh"
#include "kernels/runtime/cuda_handles.hpp"

namespace fp8lab::cuda {
namespace {

constexpr int kChunks = 256;
constexpr int kBlocksPerChunk = 64;
constexpr int kThreads = 256;
constexpr std::uint64_t kChunkSize = 1ull << 24;

__host__ __device__ constexpr std::uint64_t mix(std::uint64_t x) {
  std::uint64_t z = x + 0x9E3779B97F4A7C15ull;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
  return z ^ (z >> 31);
}

template <SweptFormat kFormat>
__device__ std::uint32_t convert(std::uint32_t bits, CodecSource source) {
  const float value = numerics::bits_float(bits);
  const bool by_instruction = source == CodecSource::hardware;
  if constexpr (kFormat == SweptFormat::bf16) {
    return by_instruction ? narrow<std::uint16_t>(value) : numerics::to_bf16(value);
  } else {
    constexpr bool kE5M2 = kFormat == SweptFormat::e5m2;
    if (by_instruction) {
      return __nv_cvt_float_to_fp8(value, __NV_SATFINITE, kE5M2 ? __NV_E5M2 : __NV_E4M3);
    }
    return numerics::encode(kE5M2 ? numerics::kE5M2 : numerics::kE4M3, bits);
  }
}

/// Adds the hash terms of a block's share of a chunk; the order of a sum
/// modulo 2^64 does not matter.
template <SweptFormat kFormat>
__global__ void sweep(CodecSource source, std::uint64_t seed_mix, unsigned long long* hashes) {
  const std::uint64_t chunk = blockIdx.y;
  unsigned long long sum = 0;
  for (std::uint64_t i = blockIdx.x * kThreads + threadIdx.x; i < kChunkSize;
       i += kBlocksPerChunk * kThreads) {
    const std::uint64_t x = chunk * kChunkSize + i;
    const std::uint32_t code = convert<kFormat>(static_cast<std::uint32_t>(x), source);
    sum += mix((x << 16 | code) ^ seed_mix);
  }
  atomicAdd(&hashes[chunk], sum);
}

/// Counts the floats from kSmallestDivisor to kLargestDivisor whose reciprocal
/// differs from that of a division.
__global__ void sweep_reciprocals(unsigned long long* differences) {
  const std::uint32_t end = numerics::float_bits(kLargestDivisor);
  unsigned long long count = 0;
  for (std::uint32_t bits =
           numerics::float_bits(kSmallestDivisor) + blockIdx.x * kThreads + threadIdx.x;
       bits < end; bits += gridDim.x * kThreads) {
    const float x = numerics::bits_float(bits);
    if (numerics::float_bits(reciprocal(x)) != numerics::float_bits(1.0f / x)) ++count;
  }
  atomicAdd(differences, count);
}

}  // namespace

int device_count() {
  int count = 0;
  return cudaGetDeviceCount(&count) == cudaSuccess ? count : 0;
}

std::vector<std::uint64_t> codec_sweep(SweptFormat format, CodecSource source, std::uint32_t seed) {
  DeviceArray<unsigned long long> hashes(kChunks);
  check(cudaMemset(hashes.data(), 0, kChunks * sizeof(unsigned long long)), "cudaMemset");
  const dim3 grid(kBlocksPerChunk, kChunks);
  const auto launch = [&](auto kernel) {
    kernel<<<grid, kThreads>>>(source, mix(seed), hashes.data());
  };
  switch (format) {
    case SweptFormat::e4m3: launch(sweep<SweptFormat::e4m3>); break;
    case SweptFormat::e5m2: launch(sweep<SweptFormat::e5m2>); break;
    case SweptFormat::bf16: launch(sweep<SweptFormat::bf16>); break;
  }
  check(cudaGetLastError(), "codec_sweep launch");
  std::vector<std::uint64_t> result(kChunks);
  check(cudaMemcpy(result.data(), hashes.data(), kChunks * sizeof(std::uint64_t),
                   cudaMemcpyDeviceToHost),
        "cudaMemcpy");
  return result;
}

std::uint64_t reciprocal_sweep() {
  DeviceArray<unsigned long long> differences(1);
  check(cudaMemset(differences.data(), 0, sizeof(unsigned long long)), "cudaMemset");
  sweep_reciprocals<<<kChunks * kBlocksPerChunk, kThreads>>>(differences.data());
  check(cudaGetLastError(), "reciprocal_sweep launch");
  std::uint64_t result = 0;
  check(cudaMemcpy(&result, differences.data(), sizeof result, cudaMemcpyDeviceToHost),
        "cudaMemcpy");
  return result;
}

}  // namespace fp8lab::cuda
