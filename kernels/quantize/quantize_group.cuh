// Groups of elements between source and codes: magnitudes, scales of tiles
// inside one warp, and the casts.
#pragma once

#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include <cstring>

#include "emulation/numerics/philox.hpp"
#include "kernels/pointwise/group.cuh"
#include "kernels/pointwise/reciprocal.cuh"
#include "kernels/pointwise/tree_sum.cuh"
#include "kernels/quantize/quantize_blocks.hpp"
#include "kernels/quantize/quantize_scales.hpp"

namespace fp8lab::cuda {

/// The formats that the conversion instruction supports.
enum class Fp8Codec { e4m3, e5m2 };

// A cast consists of `scaled`, the FP32 operation before the rounding, and `four`, which rounds and
// returns the codes of four neighbours, the first in the low byte. `position` is the index of the
// first neighbour in the source, row * columns + column. Integer operations run at half the rate of
// FP32 additions and can limit a quantizer before memory does, so the casts use few of them.

/// Returns the low bytes of four words in one word.
__device__ inline std::uint32_t low_bytes(std::uint32_t a, std::uint32_t b, std::uint32_t c,
                                          std::uint32_t d) {
  return __byte_perm(__byte_perm(a, b, 0x0040), __byte_perm(c, d, 0x0040), 0x5410);
}

/// Encodes by the conversion instruction.
template <Fp8Codec kCodec, bool kDivide>
struct Fp8Cast {
  __device__ explicit Fp8Cast(const BlockOperand&) {}
  __device__ float scaled(float x, float factor) const { return kDivide ? x / factor : x * factor; }
  __device__ std::uint32_t four(float a, float b, float c, float d, std::int64_t) const {
    const std::uint16_t pairs[] = {pair(a, b), pair(c, d)};
    std::uint32_t codes;
    std::memcpy(&codes, pairs, sizeof codes);
    return codes;
  }

 private:
  static __device__ std::uint16_t pair(float low, float high) {
    return __nv_cvt_float2_to_fp8x2({low, high}, __NV_SATFINITE,
                                    kCodec == Fp8Codec::e4m3 ? __NV_E4M3 : __NV_E5M2);
  }
};

/// Encodes by numerics::NearestCodec: about twenty integer operations an element.
class NearestCast {
 public:
  __device__ explicit NearestCast(const BlockOperand& operand)
      : codec_(operand.nearest), divide_(operand.rule.divides()) {}
  __device__ float scaled(float x, float factor) const { return divide_ ? x / factor : x * factor; }
  __device__ std::uint32_t four(float a, float b, float c, float d, std::int64_t) const {
    return low_bytes(codec_.encode(a), codec_.encode(b), codec_.encode(c), codec_.encode(d));
  }

 private:
  const numerics::NearestCodec& codec_;
  bool divide_;
};

/// The slow path of a cast, out of line.
__device__ __noinline__ inline std::uint32_t rare_four(const BlockOperand& operand, float a,
                                                       float b, float c, float d) {
  return NearestCast(operand).four(a, b, c, d, 0);
}

/// Returns true if a value is NaN; also for infinities of both signs.
__device__ inline bool may_have_nan(float a, float b, float c, float d) {
  const float sum = (a + b) + (c + d);
  return sum != sum;
}

/// E2M1, saturating. The code of |x| is the smallest of 7,
///   round(2 |x|),  2 + round(|x|),  4 + round(|x| / 2)
/// which stand for the steps of 1/2 from 0, of 1 from 2 and of 2 from 4. The addition
/// of 2^23 leaves that integer, rounded to even, in the last bits of the sum; adding 2
/// or 4 keeps even numbers even.
class E2m1Cast {
 public:
  __device__ explicit E2m1Cast(const BlockOperand& operand) : operand_(operand) {}
  __device__ float scaled(float x, float factor) const { return x * factor; }
  __device__ std::uint32_t four(float a, float b, float c, float d, std::int64_t) const {
    if (may_have_nan(a, b, c, d)) return rare_four(operand_, a, b, c, d);
    const std::uint32_t signs = __byte_perm(__byte_perm(bits(a), bits(b), 0x0073),
                                            __byte_perm(bits(c), bits(d), 0x0073), 0x5410);
    return low_bytes(magnitude(a), magnitude(b), magnitude(c), magnitude(d)) |
           (signs >> 4 & 0x08080808u);
  }

 private:
  static __device__ std::uint32_t bits(float x) { return numerics::float_bits(x); }
  static __device__ std::uint32_t magnitude(float x) {
    constexpr float kInteger = 0x1p23f;
    const float halves = fabsf(x * 2.0f) + kInteger, ones = fabsf(x) + (kInteger + 2.0f);
    const float twos = fabsf(x * 0.5f) + (kInteger + 4.0f);
    return bits(fminf(fminf(halves, ones), fminf(twos, kInteger + 7.0f)));
  }

  const BlockOperand& operand_;
};

/// INT8, saturating at -127 and 127: the last byte of the sum with 1.5 * 2^23.
class Int8Cast {
 public:
  __device__ explicit Int8Cast(const BlockOperand& operand) : operand_(operand) {}
  __device__ float scaled(float x, float factor) const { return x * factor; }
  __device__ std::uint32_t four(float a, float b, float c, float d, std::int64_t) const {
    if (may_have_nan(a, b, c, d)) return rare_four(operand_, a, b, c, d);
    return low_bytes(code(a), code(b), code(c), code(d));
  }

 private:
  static __device__ std::uint32_t code(float x) {
    const float bounded = fminf(fmaxf(x, -127.0f), 127.0f);
    return numerics::float_bits(bounded + numerics::kF32ToInteger);
  }

  const BlockOperand& operand_;
};

/// Encodes by numerics::StochasticCodec with the four words of one block of random numbers.
/// Precondition: `position` is a multiple of four.
class StochasticCast {
 public:
  __device__ explicit StochasticCast(const BlockOperand& operand)
      : operand_(operand), step_(operand.key.step_number()) {}
  __device__ float scaled(float x, float factor) const {
    return operand_.rule.divides() ? x / factor : x * factor;
  }
  __device__ std::uint32_t four(float a, float b, float c, float d, std::int64_t position) const {
    const RandomKey& key = operand_.key;
    const numerics::PhiloxCounter random = numerics::random_block(
        key.seed, step_, key.tensor, key.orientation, static_cast<std::uint64_t>(position) / 4);
    const numerics::StochasticCodec& codec = operand_.stochastic;
    return low_bytes(codec.encode(a, random.word[0]), codec.encode(b, random.word[1]),
                     codec.encode(c, random.word[2]), codec.encode(d, random.word[3]));
  }

 private:
  const BlockOperand& operand_;
  std::uint32_t step_;
};

/// Calls launch.operator()<Cast>() with the cast of `spec`. Precondition: encoder_of(spec) is
/// neither general nor stochastic.
template <class Launch>
void with_cast(const QuantSpec& spec, const Launch& launch) {
  const auto by_instruction = [&]<Fp8Codec kCodec>() {
    if (divides(spec)) return launch.template operator()<Fp8Cast<kCodec, true>>();
    launch.template operator()<Fp8Cast<kCodec, false>>();
  };
  switch (encoder_of(spec)) {
    case Encoder::e4m3_instruction: return by_instruction.template operator()<Fp8Codec::e4m3>();
    case Encoder::e5m2_instruction: return by_instruction.template operator()<Fp8Codec::e5m2>();
    case Encoder::e2m1: return launch.template operator()<E2m1Cast>();
    case Encoder::int8: return launch.template operator()<Int8Cast>();
    default: return launch.template operator()<NearestCast>();
  }
}

/// Magnitudes of a group as integers that compare in the same order, a NaN above infinity. A word
/// holds two bf16 magnitudes or one f32.
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
  /// Returns the FP32 bits of magnitude i.
  __device__ std::uint32_t at(int i) const {
    if constexpr (!kPairs) {
      return words[i];
    } else {
      return i % 2 != 0 ? words[i / 2] & 0xFFFF0000u : words[i / 2] << 16;
    }
  }
  /// Returns the FP32 bits of the largest one.
  __device__ std::uint32_t amax() const {
    std::uint32_t largest = words[0];
#pragma unroll
    for (int i = 1; i < kWords; ++i) largest = larger(largest, words[i]);
    return kPairs ? max(largest & 0xFFFF0000u, largest << 16) : largest;
  }
};

/// Maximum of kCount values a thread over kLanes lanes that lie kStride apart. At each step a lane
/// exchanges half of its values, so that at the end it keeps kKept of the maxima, beginning with
/// number first(lane). Thus all lanes compute scales in parallel.
template <int kCount, int kLanes, int kStride>
struct Spread {
  static constexpr int kKept = kLanes < kCount ? kCount / kLanes : 1;

  static __device__ int place(int lane) { return lane / kStride % kLanes; }
  static __device__ int first(int lane) { return place(lane) * kCount / kLanes; }
  /// Leaves the maxima that this lane keeps in values[0..kKept).
  static __device__ void reduce(int lane, std::uint32_t (&values)[kCount]) {
    step<kLanes / 2, kCount>(place(lane), values);
  }
  /// Returns the value that the keeper of maximum i has computed from it.
  static __device__ float gather(int lane, const float (&kept)[kKept], int i) {
    const int holder = kLanes < kCount ? i / kKept : i * (kLanes / kCount);
    return __shfl_sync(kAllLanes, kept[i % kKept], lane + (holder - place(lane)) * kStride);
  }

 private:
  /// Exchanges with the lane kSpan places away; kHeld values remain.
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

/// Returns the largest value of a warp to all of its lanes.
__device__ inline std::uint32_t warp_max(std::uint32_t value) {
  return __reduce_max_sync(kAllLanes, value);
}

/// Returns a scale that is not an ordinary one. Out of line, because its
/// code is many times as long.
__device__ __noinline__ inline numerics::TileScale rare_scale(const BlockOperand& operand,
                                                              std::uint32_t largest) {
  const float amax = numerics::bits_float(largest);
  if (operand.two_level == nullptr) {
    return numerics::tile_scale(operand.rule, operand.format, amax);
  }
  return numerics::nv_tile_scale(operand.format, operand.two_level->factor, amax);
}

/// Returns numerics::nv_tile_scale, with the rounding to E4M3 by instructions and a
/// reciprocal without branches.
__device__ inline numerics::TileScale two_level_scale(const BlockOperand& operand,
                                                      std::uint32_t largest) {
  const float ratio = numerics::bits_float(largest) * operand.two_level->ratio;
  const __nv_fp8_storage_t code = __nv_cvt_float_to_fp8(ratio, __NV_SATFINITE, __NV_E4M3);
  const float stored = __half2float(__nv_cvt_fp8_to_halfraw(code, __NV_E4M3));
  const float scale = stored * operand.two_level->inverse;
  if (!lies_between<-100, 100>(scale)) return rare_scale(operand, largest);
  return {scale, reciprocal(scale), false};
}

/// Returns the scale of a tile whose largest magnitude has the FP32 bits `largest`.
__device__ inline numerics::TileScale scale_of_tile(const BlockOperand& operand,
                                                    std::uint32_t largest) {
  if (operand.ordinary.holds_for(largest)) return operand.ordinary.scale(largest);
  if (operand.two_level != nullptr) return two_level_scale(operand, largest);
  return rare_scale(operand, largest);
}

/// Returns the multiplier, or the divisor, of x before the cast.
__device__ inline float factor_of(const BlockOperand& operand, const numerics::TileScale& scale) {
  return operand.rule.divides() ? scale.decode : scale.multiplier;
}

/// Returns true if every row of codes is aligned to `bytes`.
__host__ __device__ inline bool is_aligned(const BlockOperand& operand, int bytes) {
  return (reinterpret_cast<std::uintptr_t>(operand.codes) |
          static_cast<std::uintptr_t>(operand.stride)) %
             static_cast<unsigned>(bytes) ==
         0;
}

/// Writes the first `count` of the eight codes of a group; `wide`: all eight in one access.
__device__ inline void write_codes(uint2 codes, bool wide, int count, std::uint8_t* line) {
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

/// Casts and writes a group whose first element has index `position` in the source; other
/// arguments as in write_codes.
template <class Cast, class T>
__device__ void write_group(const Cast& cast, const Group<T>& group, float factor, bool wide,
                            int count, std::int64_t position, std::uint8_t* line) {
  float x[kGroup];
#pragma unroll
  for (int c = 0; c < kGroup; ++c) x[c] = cast.scaled(group.value(c), factor);
  write_codes({cast.four(x[0], x[1], x[2], x[3], position),
               cast.four(x[4], x[5], x[6], x[7], position + 4)},
              wide, count, line);
}

/// Raises *amax to the largest value of a block. Precondition: every thread of the block calls it.
/// A block skips the atomic if its maximum does not exceed *amax.
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
