// Checks of the number formats' conversions: against hardware, against exact interval boundaries
// and against each other.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "emulation/numerics/format.hpp"

namespace fp8lab {

/// Outcome of one check. Where a check compares hashes, a case is a conversion and each hash over
/// 2^24 of them that differs counts as one mismatch.
struct CodecReport {
  std::string name;
  std::uint64_t cases = 0;
  std::uint64_t mismatches = 0;
};

/// Runs every check of the codecs, using all OpenMP threads.
///
/// Always: all 2^32 floats into e4m3 and e5m2 under both overflow policies against the recorded
/// hardware hashes, the fast conversions (of bf16 too) against the general one, and every code of
/// every format of at most 16 bits through decode and encode. With `exhaustive_all_formats` also
/// all 2^32 floats into each of the floating ones among those formats against the exact boundaries
/// between neighbouring values. `progress` receives a line now and then on the calling thread; it
/// may be empty.
std::vector<CodecReport> validate_codecs(bool exhaustive_all_formats,
                                         const std::function<void(const std::string&)>& progress);

/// Sum modulo 2^64 of mix((x << 16 | output) ^ mix(seed)) over the FP32 bit patterns x = first,
/// first + 1, ... and their `count` outputs; mix is the finaliser of SplitMix64. Sums of
/// consecutive ranges add up.
std::uint64_t hash_conversions(std::uint32_t first, const std::uint16_t* outputs, std::size_t count,
                               std::uint32_t seed);

enum class Fp8Format : std::uint8_t { e4m3, e5m2 };

/// Results for the 2^24 FP32 bit patterns from chunk * 2^24 on.
struct Fp8ChunkResult {
  std::uint64_t saturating_hash = 0;
  std::uint64_t special_hash = 0;
  std::uint64_t fast_mismatches = 0;  ///< to_e4m3 or to_e5m2 unlike encode
};

Fp8ChunkResult sweep_fp8_chunk(Fp8Format format, std::uint32_t chunk, std::uint32_t seed);

/// The same for bf16, whose overflow gives infinity.
struct Bf16ChunkResult {
  std::uint64_t hash = 0;
  std::uint64_t fast_mismatches = 0;  ///< to_bf16 unlike encode
};

/// One result for each of the 256 chunks, using all OpenMP threads.
std::vector<Bf16ChunkResult> sweep_bf16(std::uint32_t seed);

/// The magnitudes at which nearest-even rounding moves to the next code: element c is the smallest
/// FP32 bit pattern that rounds to more than code c, for c = 0 .. max_finite_code. Derived from the
/// decoded values and their midpoints in FP64 alone. For formats with a sign and at most 16 bits.
std::vector<std::uint32_t> rounding_thresholds(const numerics::FormatSpec& format);

/// Counts the values among 2^24 magnitudes from chunk * 2^24 on (chunk < 128), both signs and both
/// overflow policies, whose code is not the one that the thresholds say.
std::uint64_t sweep_boundaries(const numerics::FormatSpec& format,
                               const std::vector<std::uint32_t>& thresholds, std::uint32_t chunk);

/// Codes that decode and encode (nearest; e8m0 toward zero) do not return to themselves, NaN codes
/// to the canonical one and the most negative integer to its neighbour.
std::uint64_t round_trip_mismatches(const numerics::FormatSpec& format);

}  // namespace fp8lab
