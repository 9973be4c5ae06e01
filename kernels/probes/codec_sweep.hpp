// The shared codec, and what kernels use in its place, run on the device over every FP32 input.
#pragma once

#include <cstdint>
#include <vector>

namespace fp8lab::cuda {

/// Which implementation produces the codes.
enum class CodecSource : std::uint8_t {
  numerics,  ///< emulation/numerics/codec.hpp, compiled for the device
  hardware,  ///< the cvt instruction that kernels may use in its place
};

enum class SweptFormat : std::uint8_t { e4m3, e5m2, bf16 };

/// Conversion of FP32 to nearest even, saturating to the FP8 formats. One hash for each of the 256
/// chunks of 2^24 consecutive bit patterns: the sum over x of mix((x << 16 | code) ^ mix(seed))
/// modulo 2^64, with mix the finaliser of splitmix64.
std::vector<std::uint64_t> codec_sweep(SweptFormat format, CodecSource source, std::uint32_t seed);

/// The number of floats from 2^-125 to 2^126, without that one, whose reciprocal in
/// reciprocal.cuh differs from the compiler's division.
std::uint64_t reciprocal_sweep();

/// Number of usable devices; 0 when there is no driver.
int device_count();

}  // namespace fp8lab::cuda
