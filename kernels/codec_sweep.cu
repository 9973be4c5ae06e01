#include "kernels/codec_sweep.hpp"

#include <cuda_fp8.h>

#include "emulation/numerics/codec.hpp"
#include "kernels/cuda_handles.hpp"

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

template <bool kE5M2>
__device__ std::uint32_t convert(std::uint32_t bits, CodecSource source) {
  if (source == CodecSource::hardware) {
    return __nv_cvt_float_to_fp8(numerics::bits_float(bits), __NV_SATFINITE,
                                 kE5M2 ? __NV_E5M2 : __NV_E4M3);
  }
  return numerics::encode(kE5M2 ? numerics::kE5M2 : numerics::kE4M3, bits);
}

/// One block adds the hash terms of its share of a chunk; the sum modulo 2^64 has no order.
template <bool kE5M2>
__global__ void sweep(CodecSource source, std::uint64_t seed_mix, unsigned long long* hashes) {
  const std::uint64_t chunk = blockIdx.y;
  unsigned long long sum = 0;
  for (std::uint64_t i = blockIdx.x * kThreads + threadIdx.x; i < kChunkSize;
       i += kBlocksPerChunk * kThreads) {
    const std::uint64_t x = chunk * kChunkSize + i;
    const std::uint32_t code = convert<kE5M2>(static_cast<std::uint32_t>(x), source);
    sum += mix((x << 16 | code) ^ seed_mix);
  }
  atomicAdd(&hashes[chunk], sum);
}

}  // namespace

int device_count() {
  int count = 0;
  return cudaGetDeviceCount(&count) == cudaSuccess ? count : 0;
}

std::vector<std::uint64_t> codec_sweep(bool e5m2, CodecSource source, std::uint32_t seed) {
  DeviceArray<unsigned long long> hashes(kChunks);
  check(cudaMemset(hashes.data(), 0, kChunks * sizeof(unsigned long long)), "cudaMemset");
  const dim3 grid(kBlocksPerChunk, kChunks);
  if (e5m2) {
    sweep<true><<<grid, kThreads>>>(source, mix(seed), hashes.data());
  } else {
    sweep<false><<<grid, kThreads>>>(source, mix(seed), hashes.data());
  }
  check(cudaGetLastError(), "codec_sweep launch");
  std::vector<std::uint64_t> result(kChunks);
  check(cudaMemcpy(result.data(), hashes.data(), kChunks * sizeof(std::uint64_t),
                   cudaMemcpyDeviceToHost),
        "cudaMemcpy");
  return result;
}

}  // namespace fp8lab::cuda
