// What nvcc knows in device code, for the simulator: places, barriers, warp instructions, atomics,
// arithmetic. Contraction is off, as in the kernels.
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <tuple>
#include <type_traits>

#include "tests/simulator/device.hpp"

// NOLINTBEGIN: names of CUDA C++

namespace fp8lab::simulator {

/// Runs `work` now, or records it.
cudaError_t enqueue(cudaStream_t stream, std::function<void()> work);
cudaError_t enqueue_kernel(const char* name, const Shape& shape, cudaStream_t stream,
                           std::function<void()> kernel);
cudaError_t set_last_error(cudaError_t status);

/// kernel<<<grid, block, shared, stream>>>(arguments...): the arguments are copied, as by a launch.
struct Launch {
  const char* name;
  dim3 grid, block;
  std::size_t shared = 0;
  cudaStream_t stream = nullptr;

  template <class Kernel, class... Arguments>
  void operator()(const Kernel& kernel, const Arguments&... arguments) const {
    set_last_error(enqueue_kernel(
        name, {{grid.x, grid.y, grid.z}, {block.x, block.y, block.z}, shared, 1}, stream,
        [kernel, copies = std::tuple<Arguments...>(arguments...)] { std::apply(kernel, copies); }));
  }
};

template <class To, class From>
To bits_as(const From& from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  std::memcpy(&to, &from, sizeof to);
  return to;
}

template <class T>
std::uint64_t as_word(T value) {
  static_assert(sizeof(T) <= sizeof(std::uint64_t));
  std::uint64_t word = 0;
  std::memcpy(&word, &value, sizeof value);
  return word;
}
template <class T>
T from_word(std::uint64_t word) {
  T value;
  std::memcpy(&value, &word, sizeof value);
  return value;
}

/// The value of lane `from`, or the caller's own where that is outside its segment of `width`.
template <class T>
T shuffle(unsigned mask, T value, int from, bool inside) {
  const std::uint64_t* given = exchange(Meeting::shuffle, mask, as_word(value));
  if (!inside) return value;
  if ((mask >> from & 1) == 0) fail("a lane reads one that takes no part in the shuffle");
  return from_word<T>(given[from]);
}

template <class T, class Combine>
T reduce(unsigned mask, T value, const Combine& combine) {
  const std::uint64_t* given = exchange(Meeting::reduce, mask, as_word(value));
  T result = value;
  for (unsigned i = 0; i < kWarp; ++i) {
    if ((mask >> i & 1) != 0 && i != lane()) result = combine(result, from_word<T>(given[i]));
  }
  return result;
}

}  // namespace fp8lab::simulator

struct cudaLaunchAttributeValue {
  struct {
    unsigned x, y, z;
  } clusterDim;
  int programmaticStreamSerializationAllowed;
};
enum cudaLaunchAttributeID {
  cudaLaunchAttributeClusterDimension,
  cudaLaunchAttributeProgrammaticStreamSerialization,
};
struct cudaLaunchAttribute {
  cudaLaunchAttributeID id;
  cudaLaunchAttributeValue val;
};
struct cudaLaunchConfig_t {
  dim3 gridDim, blockDim;
  std::size_t dynamicSmemBytes;
  cudaStream_t stream;
  cudaLaunchAttribute* attrs;
  unsigned numAttrs;
};
template <class... Parameters, class... Arguments>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* config, void (*kernel)(Parameters...),
                               const Arguments&... arguments) {
  const dim3& grid = config->gridDim;
  const dim3& block = config->blockDim;
  fp8lab::simulator::Shape shape{
      {grid.x, grid.y, grid.z}, {block.x, block.y, block.z}, config->dynamicSmemBytes, 1};
  for (unsigned i = 0; i < config->numAttrs; ++i) {
    if (config->attrs[i].id == cudaLaunchAttributeClusterDimension) {
      shape.cluster = config->attrs[i].val.clusterDim.x;
    }
  }
  return fp8lab::simulator::enqueue_kernel(
      __PRETTY_FUNCTION__, shape, config->stream,
      [kernel, copies = std::tuple<Arguments...>(arguments...)] { std::apply(kernel, copies); });
}
cudaError_t cudaFuncSetAttribute(const void* kernel, cudaFuncAttribute attribute, int value);
template <class... Parameters>
cudaError_t cudaFuncSetAttribute(void (*kernel)(Parameters...), cudaFuncAttribute attribute,
                                 int value) {
  return cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel), attribute, value);
}

// --- barriers and warps -------------------------------------------------------------------------

inline void __syncthreads() { fp8lab::simulator::sync_threads(); }
inline int __syncthreads_or(int value) { return fp8lab::simulator::sync_threads(value != 0); }
inline void __syncwarp(unsigned mask = 0xffffffffu) {
  fp8lab::simulator::exchange(fp8lab::simulator::Meeting::sync, mask, 0);
}
inline void __threadfence() { std::atomic_thread_fence(std::memory_order_seq_cst); }

template <class T>
T __shfl_sync(unsigned mask, T value, int source, int width = 32) {
  const int lane = static_cast<int>(fp8lab::simulator::lane());
  return fp8lab::simulator::shuffle(mask, value, (lane & -width) | (source & (width - 1)), true);
}
template <class T>
T __shfl_xor_sync(unsigned mask, T value, int lanes, int width = 32) {
  const int lane = static_cast<int>(fp8lab::simulator::lane()), from = lane ^ lanes;
  // A lane of a later segment is not read.
  return fp8lab::simulator::shuffle(mask, value, from, (from & -width) <= (lane & -width));
}
template <class T>
T __shfl_down_sync(unsigned mask, T value, unsigned lanes, int width = 32) {
  const int lane = static_cast<int>(fp8lab::simulator::lane());
  const int from = lane + static_cast<int>(lanes);
  return fp8lab::simulator::shuffle(mask, value, from, from < (lane & -width) + width);
}
template <class T>
T __shfl_up_sync(unsigned mask, T value, unsigned lanes, int width = 32) {
  const int lane = static_cast<int>(fp8lab::simulator::lane());
  const int from = lane - static_cast<int>(lanes);
  return fp8lab::simulator::shuffle(mask, value, from, from >= (lane & -width));
}
inline unsigned __ballot_sync(unsigned mask, int predicate) {
  using namespace fp8lab::simulator;
  const std::uint64_t* given = exchange(Meeting::vote, mask, predicate != 0 ? 1 : 0);
  unsigned votes = 0;
  for (unsigned i = 0; i < kWarp; ++i) {
    if ((mask >> i & 1) != 0 && given[i] != 0) votes |= 1u << i;
  }
  return votes;
}
inline int __any_sync(unsigned mask, int predicate) { return __ballot_sync(mask, predicate) != 0; }
inline int __all_sync(unsigned mask, int predicate) {
  return __ballot_sync(mask, predicate == 0) == 0;
}
template <class T>
unsigned __match_any_sync(unsigned mask, T value) {
  using namespace fp8lab::simulator;
  const std::uint64_t* given = exchange(Meeting::match, mask, as_word(value));
  unsigned equal = 0;
  for (unsigned i = 0; i < kWarp; ++i) {
    if ((mask >> i & 1) != 0 && given[i] == as_word(value)) equal |= 1u << i;
  }
  return equal;
}
template <class T>
T __reduce_max_sync(unsigned mask, T value) {
  return fp8lab::simulator::reduce(mask, value, [](T a, T b) { return a < b ? b : a; });
}
template <class T>
T __reduce_min_sync(unsigned mask, T value) {
  return fp8lab::simulator::reduce(mask, value, [](T a, T b) { return b < a ? b : a; });
}
inline unsigned __reduce_add_sync(unsigned mask, unsigned value) {
  return fp8lab::simulator::reduce(mask, value, std::plus<unsigned>());
}

// --- atomics ------------------------------------------------------------------------------------

template <class T, class Change>
T fp8lab_atomic(T* at, const Change& change) {
  std::atomic_ref<T> word(*at);
  T seen = word.load();
  while (!word.compare_exchange_weak(seen, change(seen))) {
  }
  return seen;
}
template <class T>
T atomicAdd(T* at, std::type_identity_t<T> value) {
  static_assert(std::is_integral_v<T>, "sums of floating-point numbers have an order");
  return fp8lab_atomic(at, [&](T seen) { return static_cast<T>(seen + value); });
}
template <class T>
T atomicMax(T* at, std::type_identity_t<T> value) {
  return fp8lab_atomic(at, [&](T seen) { return seen < value ? value : seen; });
}
template <class T>
T atomicMin(T* at, std::type_identity_t<T> value) {
  return fp8lab_atomic(at, [&](T seen) { return value < seen ? value : seen; });
}
template <class T>
T atomicOr(T* at, std::type_identity_t<T> value) {
  return fp8lab_atomic(at, [&](T seen) { return static_cast<T>(seen | value); });
}
inline unsigned atomicInc(unsigned* at, unsigned limit) {
  return fp8lab_atomic(at, [&](unsigned seen) { return seen >= limit ? 0 : seen + 1; });
}

// --- memory -------------------------------------------------------------------------------------

template <class T>
T __ldg(const T* at) {
  return *at;
}
template <class T>
T __ldcg(const T* at) {
  return *at;
}
template <class T>
void __stcg(T* at, const std::type_identity_t<T>& value) {
  *at = value;
}

// --- arithmetic ---------------------------------------------------------------------------------

using std::max;
using std::min;

inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fmaf_rn(float a, float b, float c) { return std::fma(a, b, c); }
inline double __fma_rn(double a, double b, double c) { return std::fma(a, b, c); }
inline float __fsqrt_rn(float a) { return std::sqrt(a); }
inline float __int2float_rn(int a) { return static_cast<float>(a); }
inline float __int2float_rz(int a) {
  const float nearest = static_cast<float>(a);
  const bool beyond = std::fabs(static_cast<double>(nearest)) > std::fabs(static_cast<double>(a));
  return beyond ? std::nextafter(nearest, 0.0f) : nearest;
}
inline float __uint_as_float(unsigned bits) { return fp8lab::simulator::bits_as<float>(bits); }
inline unsigned __float_as_uint(float value) { return fp8lab::simulator::bits_as<unsigned>(value); }
inline unsigned __umulhi(unsigned a, unsigned b) {
  return static_cast<unsigned>(std::uint64_t{a} * b >> 32);
}
inline int __float_as_int(float value) { return fp8lab::simulator::bits_as<int>(value); }
inline int __vimax3_s32(int a, int b, int c) { return std::max({a, b, c}); }
inline int __popc(unsigned a) { return __builtin_popcount(a); }
inline int __ffs(int a) { return __builtin_ffs(a); }

/// Byte i of the result is byte selector[4 i + 2 : 4 i] of (b, a), or its sign eight times.
inline unsigned __byte_perm(unsigned a, unsigned b, unsigned selector) {
  const std::uint64_t bytes = std::uint64_t{b} << 32 | a;
  unsigned result = 0;
  for (int i = 0; i < 4; ++i) {
    const unsigned which = selector >> 4 * i & 0xF;
    unsigned byte = static_cast<unsigned>(bytes >> 8 * (which & 7)) & 0xFF;
    if ((which & 8) != 0) byte = (byte & 0x80) != 0 ? 0xFF : 0;
    result |= byte << 8 * i;
  }
  return result;
}
inline unsigned __vmaxu2(unsigned a, unsigned b) {
  return std::max(a & 0xffffu, b & 0xffffu) | std::max(a >> 16, b >> 16) << 16;
}
inline unsigned __vminu2(unsigned a, unsigned b) {
  return std::min(a & 0xffffu, b & 0xffffu) | std::min(a >> 16, b >> 16) << 16;
}
inline unsigned __vimax3_u16x2(unsigned a, unsigned b, unsigned c) {
  return __vmaxu2(a, __vmaxu2(b, c));
}
inline unsigned __vimax3_u32(unsigned a, unsigned b, unsigned c) { return std::max({a, b, c}); }
/// max(min(a + b, c), 0) of signed halves.
inline unsigned __viaddmin_s16x2_relu(unsigned a, unsigned b, unsigned c) {
  unsigned result = 0;
  for (const int shift : {0, 16}) {
    const auto sum = static_cast<std::int16_t>((a >> shift) + (b >> shift));
    const auto least = std::min(sum, static_cast<std::int16_t>(c >> shift));
    result |= static_cast<unsigned>(std::max<int>(least, 0)) << shift;
  }
  return result;
}
// NOLINTEND
