#include "kernels/probes/wgmma_probe.hpp"

#include "emulation/base/error.hpp"
#include "emulation/numerics/mma.hpp"
#include "kernels/ptx/wgmma.cuh"
#include "kernels/runtime/cuda_handles.hpp"

namespace fp8lab::cuda {
namespace {

constexpr int kRows = 64;
constexpr int kColumns = 8;
constexpr int kBytesK = 32;  ///< of one instruction
constexpr int kThreads = 128;

/// Returns the offset of a byte in a shared tile without swizzle: core matrices of 8 rows by 16
/// bytes, the two along K side by side (PTX ISA, wgmma, "Shared memory matrix layout").
__device__ int core_place(int row, int byte) {
  return row / 8 * 256 + byte / 16 * 128 + row % 8 * 16 + byte % 16;
}
__device__ std::uint64_t core_descriptor(const void* tile) {
  constexpr std::uint64_t kAlongK = 128 >> 4, kAlongRows = 256 >> 4;
  return ((shared_address(tile) & 0x3FFFFu) >> 4) | kAlongK << 16 | kAlongRows << 32;
}

#define FP8LAB_PROBE(types, shared_tail, register_tail)                               \
  if constexpr (kRegisters) {                                                         \
    asm volatile("wgmma.mma_async.sync.aligned.m64n8" types                           \
                 " {%0, %1, %2, %3}, {%4, %5, %6, %7}, %8, 1, 1, 1" register_tail ";" \
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])                     \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));               \
  } else {                                                                            \
    asm volatile("wgmma.mma_async.sync.aligned.m64n8" types                           \
                 " {%0, %1, %2, %3}, %4, %5, 1, 1, 1" shared_tail ";"                 \
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])                     \
                 : "l"(a_tile), "l"(b));                                              \
  }

/// Computes d += A B^T with A from registers or from shared memory.
template <WgmmaTypes kTypes, bool kRegisters>
__device__ void multiply(float (&d)[4], const std::uint32_t (&a)[4], std::uint64_t a_tile,
                         std::uint64_t b) {
  keep(d);
  wgmma_fence();
  if constexpr (kTypes == WgmmaTypes::e4m3_e4m3) {
    FP8LAB_PROBE("k32.f32.e4m3.e4m3", "", "")
  } else if constexpr (kTypes == WgmmaTypes::e4m3_e5m2) {
    FP8LAB_PROBE("k32.f32.e4m3.e5m2", "", "")
  } else if constexpr (kTypes == WgmmaTypes::e5m2_e4m3) {
    FP8LAB_PROBE("k32.f32.e5m2.e4m3", "", "")
  } else if constexpr (kTypes == WgmmaTypes::e5m2_e5m2) {
    FP8LAB_PROBE("k32.f32.e5m2.e5m2", "", "")
  } else {
    FP8LAB_PROBE("k16.f32.bf16.bf16", ", 0, 0", ", 0")
  }
  wgmma_commit();
  wgmma_wait<0>();
  keep(d);
}
#undef FP8LAB_PROBE

/// Returns the model's bits of one output.
template <WgmmaTypes kTypes>
__device__ std::uint32_t model(const unsigned char* a, const unsigned char* b, float c) {
  const std::uint32_t c_bits = numerics::float_bits(c);
  if constexpr (kTypes == WgmmaTypes::bf16) {
    return numerics::fused_group(numerics::GroupModel(numerics::kSm90Bf16F32), numerics::kBF16,
                                 numerics::kBF16, reinterpret_cast<const std::uint16_t*>(a),
                                 reinterpret_cast<const std::uint16_t*>(b), kBytesK / 2, c_bits);
  } else {
    constexpr bool kE5M2A = kTypes == WgmmaTypes::e5m2_e4m3 || kTypes == WgmmaTypes::e5m2_e5m2;
    constexpr bool kE5M2B = kTypes == WgmmaTypes::e4m3_e5m2 || kTypes == WgmmaTypes::e5m2_e5m2;
    return numerics::fused_group(numerics::GroupModel(numerics::kSm90WgmmaFp8F32),
                                 kE5M2A ? numerics::kE5M2 : numerics::kE4M3,
                                 kE5M2B ? numerics::kE5M2 : numerics::kE4M3, a, b, kBytesK, c_bits);
  }
}

struct Counts {
  unsigned long long registers_shared, registers_model, first;
};

/// Block (j, i) multiplies tile i of A with its partner j.
template <WgmmaTypes kTypes>
__global__ void __launch_bounds__(kThreads)
    probe_kernel(const unsigned char* a, const unsigned char* b, const float* c, int tiles,
                 Counts* counts) {
  __shared__ alignas(128) unsigned char tile_a[kRows * kBytesK];
  __shared__ alignas(128) unsigned char tile_b[kColumns * kBytesK];
  const int partner = static_cast<int>((blockIdx.y + blockIdx.x) % tiles);
  a += std::int64_t{blockIdx.y} * kRows * kBytesK;
  b += std::int64_t{partner} * kColumns * kBytesK;
  c += std::int64_t{partner} * kRows * kColumns;
  const int thread = static_cast<int>(threadIdx.x);
  for (int i = thread; i < kRows * kBytesK; i += kThreads) {
    tile_a[core_place(i / kBytesK, i % kBytesK)] = a[i];
  }
  for (int i = thread; i < kColumns * kBytesK; i += kThreads) {
    tile_b[core_place(i / kBytesK, i % kBytesK)] = b[i];
  }
  async_fence();
  __syncthreads();

  // Fragments of A and D (PTX ISA, wgmma): a register has 4 bytes of K; rows are 8 apart, then
  // 16 bytes further along K.
  const int row = thread / 32 * 16 + thread % 32 / 4, column = thread % 4 * 2;
  std::uint32_t fragment[4];
  float from_registers[4], from_shared[4], addend[4];
  for (int i = 0; i < 4; ++i) {
    const int byte = thread % 4 * 4 + i / 2 * 16;
    fragment[i] = *reinterpret_cast<const std::uint32_t*>(a + (row + i % 2 * 8) * kBytesK + byte);
    addend[i] = c[(row + i / 2 * 8) * kColumns + column + i % 2];
    from_registers[i] = from_shared[i] = addend[i];
  }
  const std::uint64_t shared_a = core_descriptor(tile_a), shared_b = core_descriptor(tile_b);
  multiply<kTypes, true>(from_registers, fragment, shared_a, shared_b);
  multiply<kTypes, false>(from_shared, fragment, shared_a, shared_b);

  const std::uint64_t block = std::uint64_t{blockIdx.y} * gridDim.x + blockIdx.x;
  for (int i = 0; i < 4; ++i) {
    const int r = row + i / 2 * 8, col = column + i % 2;
    const std::uint32_t bits = numerics::float_bits(from_registers[i]);
    const bool shared_differs = bits != numerics::float_bits(from_shared[i]);
    const bool model_differs = bits != model<kTypes>(a + r * kBytesK, b + col * kBytesK, addend[i]);
    if (shared_differs) atomicAdd(&counts->registers_shared, 1ull);
    if (model_differs) atomicAdd(&counts->registers_model, 1ull);
    if (shared_differs || model_differs) {
      atomicMin(&counts->first, (block * kRows + r) * kColumns + col);
    }
  }
}

template <class T>
void upload(const DeviceArray<T>& to, const void* from) {
  check(cudaMemcpy(to.data(), from, to.size() * sizeof(T), cudaMemcpyHostToDevice), "cudaMemcpy");
}

}  // namespace

WgmmaProbeResult probe_wgmma_registers(const WgmmaProbe& probe) {
  const auto tiles = static_cast<std::size_t>(probe.tiles);
  const DeviceArray<unsigned char> a(tiles * kRows * kBytesK), b(tiles * kColumns * kBytesK);
  const DeviceArray<float> c(tiles * kRows * kColumns);
  const DeviceArray<Counts> counts(1);
  WgmmaProbeResult result;
  result.outputs = tiles * static_cast<std::size_t>(probe.partners) * kRows * kColumns;
  Counts counted{0, 0, result.outputs};
  upload(a, probe.a);
  upload(b, probe.b);
  upload(c, probe.c);
  upload(counts, &counted);
  const auto launch = [&]<WgmmaTypes kTypes>() {
    const dim3 grid(static_cast<unsigned>(probe.partners), static_cast<unsigned>(probe.tiles));
    probe_kernel<kTypes>
        <<<grid, kThreads>>>(a.data(), b.data(), c.data(), probe.tiles, counts.data());
  };
  switch (probe.types) {
    case WgmmaTypes::e4m3_e4m3: launch.operator()<WgmmaTypes::e4m3_e4m3>(); break;
    case WgmmaTypes::e4m3_e5m2: launch.operator()<WgmmaTypes::e4m3_e5m2>(); break;
    case WgmmaTypes::e5m2_e4m3: launch.operator()<WgmmaTypes::e5m2_e4m3>(); break;
    case WgmmaTypes::e5m2_e5m2: launch.operator()<WgmmaTypes::e5m2_e5m2>(); break;
    case WgmmaTypes::bf16: launch.operator()<WgmmaTypes::bf16>(); break;
    case WgmmaTypes::s8: throw Error("probe_wgmma_registers: s8, whose sums are not rounded");
  }
  check(cudaGetLastError(), "probe_wgmma_registers");
  check(cudaMemcpy(&counted, counts.data(), sizeof(counted), cudaMemcpyDeviceToHost), "cudaMemcpy");
  result.registers_shared = counted.registers_shared;
  result.registers_model = counted.registers_model;
  result.first = counted.first;
  return result;
}

}  // namespace fp8lab::cuda
