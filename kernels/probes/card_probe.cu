#include "kernels/probes/card_probe.hpp"

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include "emulation/base/error.hpp"
#include "kernels/ptx/mma_tile.cuh"
#include "kernels/runtime/cuda_handles.hpp"

namespace fp8lab::cuda {
namespace {

constexpr int kLanes = 32;
constexpr int kWords = 8;  ///< 32 bytes of K, those of one instruction
constexpr int kThreads = 256;

/// A warp for each tile. `a` and `b` have `steps` * kWords words a row.
template <MmaTypes kTypes>
__global__ void __launch_bounds__(kLanes)
    multiply_kernel(const std::uint32_t* a, const std::uint32_t* b, const std::uint32_t* c,
                    int steps, int promoted, std::uint32_t* d) {
  constexpr bool kF16 = kToF16<kTypes>;
  const int lane = static_cast<int>(threadIdx.x), g = lane / 4, t = lane % 4;
  const int words = steps * kWords;
  a += std::int64_t{blockIdx.x} * kMmaRows * words;
  b += std::int64_t{blockIdx.x} * kMmaColumns * words;
  const std::int64_t outputs = std::int64_t{blockIdx.x} * kMmaRows * kMmaColumns;
  // Of element i of a lane; two elements of FP16 share a register.
  const auto place = [&](int i) { return outputs + (g + i / 2 * 8) * kMmaColumns + 2 * t + i % 2; };

  std::uint32_t sum[4] = {};
  float total[4] = {};
  for (int i = 0; i < 4 && promoted == 0; ++i) {
    if (kF16) {
      sum[i / 2] |= c[place(i)] << (i % 2 * 16);
    } else {
      sum[i] = c[place(i)];
    }
  }
  for (int step = 0; step < steps; ++step) {
    std::uint32_t left[4], right[2];
    for (int i = 0; i < 4; ++i) {
      left[i] = a[(g + i % 2 * 8) * words + step * kWords + t + i / 2 * 4];
    }
    for (int i = 0; i < 2; ++i) right[i] = b[g * words + step * kWords + t + i * 4];
    multiply_tile<kTypes>(left, right, sum);
    if (promoted > 0 && ((step + 1) % promoted == 0 || step + 1 == steps)) {
      for (int i = 0; i < 4; ++i) {
        total[i] += numerics::bits_float(sum[i]);
        sum[i] = 0;
      }
    }
  }
  for (int i = 0; i < 4; ++i) {
    const std::uint32_t chained = kF16 ? sum[i / 2] >> (i % 2 * 16) & 0xFFFFu : sum[i];
    d[place(i)] = promoted > 0 ? numerics::float_bits(total[i]) : chained;
  }
}

template <CardConversion kConversion>
__device__ std::uint32_t converted(float value) {
  if constexpr (kConversion == CardConversion::e4m3) {
    return __nv_cvt_float_to_fp8(value, __NV_SATFINITE, __NV_E4M3);
  } else if constexpr (kConversion == CardConversion::e5m2) {
    return __nv_cvt_float_to_fp8(value, __NV_SATFINITE, __NV_E5M2);
  } else if constexpr (kConversion == CardConversion::bf16) {
    return __bfloat16_as_ushort(__float2bfloat16_rn(value));
  } else {
    return __half_as_ushort(__float2half_rn(value));
  }
}

template <CardConversion kConversion>
__global__ void convert_kernel(const std::uint32_t* x, int count, std::uint32_t* codes) {
  const int i = static_cast<int>(blockIdx.x * kThreads + threadIdx.x);
  if (i < count) codes[i] = converted<kConversion>(numerics::bits_float(x[i]));
}

template <class T>
void upload(const DeviceArray<T>& to, const void* from, std::size_t bytes) {
  FP8LAB_ASSERT(bytes == to.size() * sizeof(T));
  check(cudaMemcpy(to.data(), from, bytes, cudaMemcpyHostToDevice), "cudaMemcpy");
}

std::vector<std::uint32_t> download(const DeviceArray<std::uint32_t>& from, const char* launch) {
  check(cudaGetLastError(), launch);
  std::vector<std::uint32_t> words(from.size());
  check(cudaMemcpy(words.data(), from.data(), words.size() * sizeof(std::uint32_t),
                   cudaMemcpyDeviceToHost),
        "cudaMemcpy");
  return words;
}

int current_device() {
  int device = 0;
  check(cudaGetDevice(&device), "cudaGetDevice");
  return device;
}

}  // namespace

CardFacts card_facts() {
  cudaDeviceProp properties{};
  check(cudaGetDeviceProperties(&properties, current_device()), "cudaGetDeviceProperties");
  CardFacts facts{properties.name, properties.major, properties.minor, 0, 0};
  check(cudaDriverGetVersion(&facts.driver), "cudaDriverGetVersion");
  check(cudaRuntimeGetVersion(&facts.runtime), "cudaRuntimeGetVersion");
  return facts;
}

std::vector<std::uint32_t> multiply_tiles(const MmaTiles& tiles) {
  const CardFacts facts = card_facts();
  const MmaForm& form = form_of(tiles.types);
  if (facts.major * 10 + facts.minor < form.architecture) {
    throw Error(std::string(form.name) + ": " + facts.name + " has no such instruction");
  }
  FP8LAB_ASSERT(tiles.promoted == 0 || !form.to_f16);
  const auto count = static_cast<std::size_t>(tiles.tiles);
  const std::size_t words = count * static_cast<std::size_t>(tiles.steps) * kWords;
  const DeviceArray<std::uint32_t> a(words * kMmaRows), b(words * kMmaColumns);
  const DeviceArray<std::uint32_t> c(count * kMmaRows * kMmaColumns), d(c.size());
  upload(a, tiles.a.data(), tiles.a.size());
  upload(b, tiles.b.data(), tiles.b.size());
  upload(c, tiles.c.data(), tiles.c.size() * sizeof(std::uint32_t));
  const auto launch = [&]<MmaTypes kTypes>() {
    multiply_kernel<kTypes><<<static_cast<unsigned>(tiles.tiles), kLanes>>>(
        a.data(), b.data(), c.data(), tiles.steps, tiles.promoted, d.data());
  };
  switch (tiles.types) {
    case MmaTypes::e4m3_e4m3_f32: launch.operator()<MmaTypes::e4m3_e4m3_f32>(); break;
    case MmaTypes::e4m3_e5m2_f32: launch.operator()<MmaTypes::e4m3_e5m2_f32>(); break;
    case MmaTypes::e5m2_e4m3_f32: launch.operator()<MmaTypes::e5m2_e4m3_f32>(); break;
    case MmaTypes::e5m2_e5m2_f32: launch.operator()<MmaTypes::e5m2_e5m2_f32>(); break;
    case MmaTypes::e4m3_e4m3_f16: launch.operator()<MmaTypes::e4m3_e4m3_f16>(); break;
    case MmaTypes::e5m2_e5m2_f16: launch.operator()<MmaTypes::e5m2_e5m2_f16>(); break;
    case MmaTypes::bf16_f32: launch.operator()<MmaTypes::bf16_f32>(); break;
    case MmaTypes::f16_f32: launch.operator()<MmaTypes::f16_f32>(); break;
    case MmaTypes::f16_f16: launch.operator()<MmaTypes::f16_f16>(); break;
    case MmaTypes::tf32_f32: launch.operator()<MmaTypes::tf32_f32>(); break;
  }
  return download(d, "multiply_tiles");
}

std::vector<std::uint32_t> convert_values(CardConversion conversion,
                                          const std::vector<std::uint32_t>& f32_bits) {
  const DeviceArray<std::uint32_t> x(f32_bits.size()), codes(f32_bits.size());
  upload(x, f32_bits.data(), f32_bits.size() * sizeof(std::uint32_t));
  const auto count = static_cast<int>(f32_bits.size());
  const auto launch = [&]<CardConversion kConversion>() {
    convert_kernel<kConversion>
        <<<static_cast<unsigned>((count + kThreads - 1) / kThreads), kThreads>>>(x.data(), count,
                                                                                 codes.data());
  };
  switch (conversion) {
    case CardConversion::e4m3: launch.operator()<CardConversion::e4m3>(); break;
    case CardConversion::e5m2: launch.operator()<CardConversion::e5m2>(); break;
    case CardConversion::bf16: launch.operator()<CardConversion::bf16>(); break;
    case CardConversion::f16: launch.operator()<CardConversion::f16>(); break;
  }
  return download(codes, "convert_values");
}

}  // namespace fp8lab::cuda
