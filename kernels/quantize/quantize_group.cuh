// Groups of elements on their way from a source to codes: magnitudes, scales of tiles that lie in
// one warp, and the cast by instruction.
#pragma once

#include <cuda_fp8.h>

#include <cstring>

#include "kernels/pointwise/rows.cuh"
#include "kernels/pointwise/tree_sum.cuh"
#include "kernels/quantize/quantize_blocks.hpp"

namespace fp8lab::cuda {

/// The formats of the conversion instruction.
enum class Fp8Codec { e4m3, e5m2 };

/// The FP32 operation before the cast, and the cast.
template <Fp8Codec kCodec, bool kDivide>
struct Fp8Cast {
  static __device__ float scaled(float x, float factor) {
    return kDivide ? x / factor : x * factor;
  }
  static __device__ std::uint32_t pair(float low, float high) {
    return __nv_cvt_float2_to_fp8x2({low, high}, __NV_SATFINITE,
                                    kCodec == Fp8Codec::e4m3 ? __NV_E4M3 : __NV_E5M2);
  }
  /// Codes of four values, the first in the low byte.
  static __device__ std::uint32_t four(float a, float b, float c, float d) {
    return pair(a, b) | pair(c, d) << 16;
  }
};

/// Calls launch(Fp8Cast) with the one that fits.
template <class Launch>
void with_cast(const numerics::FormatSpec& format, bool divide, const Launch& launch) {
  if (format == numerics::kE4M3) {
    divide ? launch(Fp8Cast<Fp8Codec::e4m3, true>{}) : launch(Fp8Cast<Fp8Codec::e4m3, false>{});
  } else {
    divide ? launch(Fp8Cast<Fp8Codec::e5m2, true>{}) : launch(Fp8Cast<Fp8Codec::e5m2, false>{});
  }
}

/// Calls launch(rows of the source, Fp8Cast) with the types that fit.
template <class Launch>
void with_cast(const TensorView& source, const numerics::FormatSpec& format, bool divide,
               const Launch& launch) {
  with_rows(
      [&](const auto& rows) { with_cast(format, divide, [&](auto cast) { launch(rows, cast); }); },
      source);
}

/// kGroup consecutive elements of a row as loaded.
template <class T>
struct Group {
  static constexpr int kWords = kGroup * sizeof(T) / sizeof(std::uint32_t);
  std::uint32_t words[kWords];

  /// From a 16-byte boundary.
  __device__ void load(const T* source) {
#pragma unroll
    for (int i = 0; i < kWords; i += 4) {
      const uint4 part = *reinterpret_cast<const uint4*>(source + i * kGroup / kWords);
      words[i] = part.x, words[i + 1] = part.y, words[i + 2] = part.z, words[i + 3] = part.w;
    }
  }
  /// At most `count` elements, zeros after them.
  __device__ void load_some(const T* source, int count) {
    T values[kGroup];
#pragma unroll
    for (int i = 0; i < kGroup; ++i) values[i] = i < count ? source[i] : T{};
    set(values);
  }
  __device__ void set(const T (&values)[kGroup]) { std::memcpy(words, values, sizeof words); }
  __device__ float value(int i) const {
    if constexpr (sizeof(T) == sizeof(float)) {
      return numerics::bits_float(words[i]);
    } else {  // numerics::from_bf16
      return numerics::bits_float(i % 2 != 0 ? words[i / 2] & 0xFFFF0000u : words[i / 2] << 16);
    }
  }
};

/// Magnitudes of a group as integers in their order, a NaN above infinity: two bf16 ones a word.
template <class T>
struct Magnitudes {
  static constexpr int kWords = Group<T>::kWords;
  static constexpr bool kPairs = sizeof(T) == sizeof(std::uint16_t);
  std::uint32_t words[kWords];

  __device__ explicit Magnitudes(const Group<T>& group) {
#pragma unroll
    for (int i = 0; i < kWords; ++i) {
      words[i] = group.words[i] & (kPairs ? 0x7FFF7FFFu : 0x7FFFFFFFu);
    }
  }
  static __device__ std::uint32_t larger(std::uint32_t a, std::uint32_t b) {
    return kPairs ? __vmaxu2(a, b) : max(a, b);
  }
  __device__ void raise(const Magnitudes& other) {
#pragma unroll
    for (int i = 0; i < kWords; ++i) words[i] = larger(words[i], other.words[i]);
  }
  /// FP32 bits of magnitude i.
  __device__ std::uint32_t at(int i) const {
    if constexpr (!kPairs) {
      return words[i];
    } else {
      return i % 2 != 0 ? words[i / 2] & 0xFFFF0000u : words[i / 2] << 16;
    }
  }
  /// FP32 bits of the largest one.
  __device__ std::uint32_t amax() const {
    std::uint32_t largest = words[0];
#pragma unroll
    for (int i = 1; i < kWords; ++i) largest = larger(largest, words[i]);
    return kPairs ? max(largest & 0xFFFF0000u, largest << 16) : largest;
  }
};

/// kCount values a thread, each to be maximised over kLanes lanes that lie kStride apart. Half of
/// the values change places at each step, so that at the end every lane keeps kKept of the maxima,
/// beginning with number first(lane), and as many lanes as there are find scales.
template <int kCount, int kLanes, int kStride>
struct Spread {
  static constexpr int kKept = kLanes < kCount ? kCount / kLanes : 1;

  static __device__ int place(int lane) { return lane / kStride % kLanes; }
  static __device__ int first(int lane) { return place(lane) * kCount / kLanes; }
  /// Leaves the maxima that this lane keeps in values[0..kKept).
  static __device__ void reduce(int lane, std::uint32_t (&values)[kCount]) {
    step<kLanes / 2, kCount>(place(lane), values);
  }
  /// What the lane that keeps maximum i has made of it.
  static __device__ float gather(int lane, const float (&kept)[kKept], int i) {
    const int holder = kLanes < kCount ? i / kKept : i * (kLanes / kCount);
    return __shfl_sync(kAllLanes, kept[i % kKept], lane + (holder - place(lane)) * kStride);
  }

 private:
  /// Exchanges with the lane kSpan places away, kHeld values being left.
  template <int kSpan, int kHeld>
  static __device__ void step(int place, std::uint32_t (&values)[kCount]) {
    if constexpr (kSpan > 0) {
      constexpr int kHalf = kHeld / 2;
      if constexpr (kHalf == 0) {
        values[0] = max(values[0], __shfl_xor_sync(kAllLanes, values[0], kSpan * kStride));
        step<kSpan / 2, kHeld>(place, values);
      } else {
        const bool upper = (place & kSpan) != 0;
#pragma unroll
        for (int i = 0; i < kHalf; ++i) {
          const std::uint32_t sent = upper ? values[i] : values[i + kHalf];
          const std::uint32_t kept = upper ? values[i + kHalf] : values[i];
          values[i] = max(kept, __shfl_xor_sync(kAllLanes, sent, kSpan * kStride));
        }
        step<kSpan / 2, kHalf>(place, values);
      }
    }
  }
};

/// The largest of the values of a warp's lanes; every lane gets it.
__device__ inline std::uint32_t warp_max(std::uint32_t value) {
  return __reduce_max_sync(kAllLanes, value);
}

/// The scale where it is not an ordinary one: called, because its code is many times as long.
__device__ __noinline__ inline numerics::TileScale rare_scale(const BlockOperand& operand,
                                                              std::uint32_t largest) {
  return numerics::tile_scale(operand.rule, operand.format, numerics::bits_float(largest));
}

/// The scale of a tile whose largest magnitude has the FP32 bits `largest`.
__device__ inline numerics::TileScale scale_of_tile(const BlockOperand& operand,
                                                    std::uint32_t largest) {
  if (operand.ordinary.holds_for(largest)) return operand.ordinary.scale(largest);
  return rare_scale(operand, largest);
}

/// What x is multiplied with, or divided by, before the cast.
__device__ inline float factor_of(const BlockOperand& operand, const numerics::TileScale& scale) {
  return operand.rule.divides() ? scale.decode : scale.multiplier;
}

/// True when pieces of `bytes` codes lie on their own multiples in every row.
__device__ inline bool is_aligned(const BlockOperand& operand, int bytes) {
  return (reinterpret_cast<std::uintptr_t>(operand.codes) |
          static_cast<std::uintptr_t>(operand.stride)) %
             static_cast<unsigned>(bytes) ==
         0;
}

/// Writes at most `count` of the eight codes of a group; `wide`: all of them at once.
template <class Cast, class T>
__device__ void write_group(const Group<T>& group, float factor, bool wide, int count,
                            std::uint8_t* line) {
  float x[kGroup];
#pragma unroll
  for (int c = 0; c < kGroup; ++c) x[c] = Cast::scaled(group.value(c), factor);
  const uint2 codes{Cast::four(x[0], x[1], x[2], x[3]), Cast::four(x[4], x[5], x[6], x[7])};
  if (wide) {
    *reinterpret_cast<uint2*>(line) = codes;
    return;
  }
#pragma unroll
  for (int c = 0; c < kGroup; ++c) {
    if (c >= count) break;
    line[c] = static_cast<std::uint8_t>((c < 4 ? codes.x : codes.y) >> c % 4 * 8);
  }
}

/// Raises *amax to the largest of the values of a block; every thread of it must call. A block
/// whose maximum is not above what is there leaves the atomic out.
__device__ inline void raise(std::uint32_t* amax, std::uint32_t largest) {
  __shared__ std::uint32_t of_warp[kWarpSize];
  largest = warp_max(largest);
  if (lane_id() == 0) of_warp[warp_id()] = largest;
  __syncthreads();
  if (warp_id() != 0) return;
  largest = warp_max(lane_id() < warp_count() ? of_warp[lane_id()] : 0);
  if (lane_id() == 0 && largest > *static_cast<volatile std::uint32_t*>(amax)) {
    atomicMax(amax, largest);
  }
}

}  // namespace fp8lab::cuda
