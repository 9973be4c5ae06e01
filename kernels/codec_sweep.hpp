// The shared codec run on the device over every FP32 input.
#pragma once

#include <cstdint>
#include <vector>

namespace fp8lab::cuda {

/// Which implementation produces the codes.
enum class CodecSource : std::uint8_t {
  numerics,  ///< emulation/numerics/codec.hpp, compiled for the device
  hardware,  ///< the cvt instruction that kernels may use in its place
};

/// Conversion of FP32 to E4M3 or E5M2, to nearest even, saturating. One hash for each of the 256
/// chunks of 2^24 consecutive bit patterns: the sum over x of mix((x << 16 | code) ^ mix(seed))
/// modulo 2^64, with mix the finaliser of splitmix64.
std::vector<std::uint64_t> codec_sweep(bool e5m2, CodecSource source, std::uint32_t seed);

/// Number of usable devices; 0 when there is no driver.
int device_count();

}  // namespace fp8lab::cuda
