// Runs the shared codec, and the instructions that replace it in kernels, on the
// device over every FP32 input.
#pragma once

#include <cstdint>
#include <vector>

namespace fp8lab::cuda {

/// The implementation that produces the codes.
enum class CodecSource : std::uint8_t {
  numerics,  ///< emulation/numerics/codec.hpp, compiled for the device
  hardware,  ///< the cvt instruction that kernels may use instead
};

enum class SweptFormat : std::uint8_t { e4m3, e5m2, bf16 };

/// Converts every FP32 value, to nearest even and saturating for the FP8 formats. Returns one hash
/// for each of the 256 chunks of 2^24 consecutive bit patterns: the sum over x modulo 2^64 of
/// mix((x << 16 | code) ^ mix(seed)), where mix is the finaliser of splitmix64.
std::vector<std::uint64_t> codec_sweep(SweptFormat format, CodecSource source, std::uint32_t seed);

/// Returns the number of floats x with 2^-125 <= x < 2^126 whose reciprocal in reciprocal.cuh
/// differs from the compiler's division.
std::uint64_t reciprocal_sweep();

/// Returns the number of usable devices; 0 if there is no driver.
int device_count();

}  // namespace fp8lab::cuda
