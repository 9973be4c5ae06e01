// Checks the conversions of number formats against hardware, against exact interval
// boundaries and against each other.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "emulation/numerics/format.hpp"

namespace fp8lab {

/// Result of one check. If a check compares hashes, a case is a conversion, and each differing hash
/// over 2^24 conversions counts as one mismatch.
struct CodecReport {
  std::string name;
  std::uint64_t cases = 0;
  std::uint64_t mismatches = 0;
};

/// Runs every check of the codecs on all OpenMP threads.
///
/// Always: converts all 2^32 floats to e4m3 and e5m2 under both overflow policies and compares with
/// the recorded hardware hashes, compares the fast conversions (of bf16 too) with the general one,
/// and decodes and encodes every code of every format of at most 16 bits. With
/// `exhaustive_all_formats`, also converts all 2^32 floats to each floating-point format among
/// these and compares with the exact boundaries between neighbouring values. `progress`
/// occasionally receives a line on the calling thread; it may be empty.
std::vector<CodecReport> validate_codecs(bool exhaustive_all_formats,
                                         const std::function<void(const std::string&)>& progress);

/// Returns the sum modulo 2^64 of mix((x << 16 | output) ^ mix(seed)) over the FP32 bit patterns x
/// = first, first + 1, ... and their `count` outputs; mix is the finaliser of SplitMix64. The hash
/// of a range is the sum of the hashes of its parts.
std::uint64_t hash_conversions(std::uint32_t first, const std::uint16_t* outputs, std::size_t count,
                               std::uint32_t seed);

enum class Fp8Format : std::uint8_t { e4m3, e5m2 };

/// Results for the 2^24 FP32 bit patterns from chunk * 2^24 on.
struct Fp8ChunkResult {
  std::uint64_t saturating_hash = 0;
  std::uint64_t special_hash = 0;
  std::uint64_t fast_mismatches = 0;  ///< results of to_e4m3 or to_e5m2 that differ from encode
};

Fp8ChunkResult sweep_fp8_chunk(Fp8Format format, std::uint32_t chunk, std::uint32_t seed);

/// Like Fp8ChunkResult for bf16, which overflows to infinity.
struct Bf16ChunkResult {
  std::uint64_t hash = 0;
  std::uint64_t fast_mismatches = 0;  ///< results of to_bf16 that differ from encode
};

/// Returns one result for each of the 256 chunks, computed on all OpenMP threads.
std::vector<Bf16ChunkResult> sweep_bf16(std::uint32_t seed);

/// Returns the magnitudes at which nearest-even rounding moves to the next code: element c is the
/// smallest FP32 bit pattern that rounds to more than code c, for c = 0 .. max_finite_code.
/// Derived only from the decoded values and their midpoints in FP64. Precondition: the format has
/// a sign and at most 16 bits.
std::vector<std::uint32_t> rounding_thresholds(const numerics::FormatSpec& format);

/// Counts the values among 2^24 magnitudes from chunk * 2^24 on (chunk < 128), with both signs and
/// both overflow policies, whose code differs from the one that follows from the thresholds.
std::uint64_t sweep_boundaries(const numerics::FormatSpec& format,
                               const std::vector<std::uint32_t>& thresholds, std::uint32_t chunk);

/// Counts the codes that do not survive decode and encode (nearest; e8m0 toward zero). NaN codes
/// must return the canonical NaN, and the most negative integer its neighbour.
std::uint64_t round_trip_mismatches(const numerics::FormatSpec& format);

}  // namespace fp8lab
