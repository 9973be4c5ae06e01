#include "src/validate/codec.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <iterator>
#include <utility>

#include "emulation/base/input_error.hpp"
#include "emulation/base/processors.hpp"
#include "emulation/numerics/codec.hpp"
#include "emulation/numerics/nearest_codec.hpp"
#include "src/validate/conv_hashes.hpp"

namespace fp8lab {
namespace {

using numerics::FormatSpec;
using numerics::Overflow;
using numerics::Rounding;

constexpr std::uint32_t kChunkSize = 1u << 24;
constexpr std::uint32_t kBlockSize = 4096;
constexpr std::uint32_t kChunks = 256;
constexpr std::uint64_t kAllFloats = std::uint64_t{1} << 32;

constexpr std::uint64_t mix(std::uint64_t x) {
  std::uint64_t z = x + 0x9E3779B97F4A7C15u;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return z ^ (z >> 31);
}

struct Fp8Block {
  std::array<std::uint16_t, kBlockSize> saturating;
  std::array<std::uint16_t, kBlockSize> special;
  std::array<std::uint16_t, kBlockSize> fast;
};

// The formats are template constants, so that the compiler specialises the codec
// and vectorises the loops.
template <FormatSpec kFormat>
[[gnu::always_inline]] inline void convert_block(std::uint32_t first, Fp8Block& block) {
  for (std::uint32_t i = 0; i < kBlockSize; ++i) {
    block.saturating[i] = static_cast<std::uint16_t>(
        numerics::encode(kFormat, first + i, Rounding::nearest, Overflow::saturate));
  }
  for (std::uint32_t i = 0; i < kBlockSize; ++i) {
    block.special[i] = static_cast<std::uint16_t>(
        numerics::encode(kFormat, first + i, Rounding::nearest, Overflow::special));
  }
  for (std::uint32_t i = 0; i < kBlockSize; ++i) {
    const float value = numerics::bits_float(first + i);
    block.fast[i] =
        kFormat == numerics::kE4M3 ? numerics::to_e4m3(value) : numerics::to_e5m2(value);
  }
}

FP8LAB_FOR_EACH_PROCESSOR
void convert_block_e4m3(std::uint32_t first, Fp8Block& block) {
  convert_block<numerics::kE4M3>(first, block);
}

struct Bf16Block {
  std::array<std::uint16_t, kBlockSize> general;
  std::array<std::uint16_t, kBlockSize> fast;
};

FP8LAB_FOR_EACH_PROCESSOR
void convert_block_bf16(std::uint32_t first, Bf16Block& block) {
  for (std::uint32_t i = 0; i < kBlockSize; ++i) {
    block.general[i] = static_cast<std::uint16_t>(
        numerics::encode(numerics::kBF16, first + i, Rounding::nearest, Overflow::special));
  }
  for (std::uint32_t i = 0; i < kBlockSize; ++i) {
    block.fast[i] = numerics::to_bf16(numerics::bits_float(first + i));
  }
}

FP8LAB_FOR_EACH_PROCESSOR
void convert_block_e5m2(std::uint32_t first, Fp8Block& block) {
  convert_block<numerics::kE5M2>(first, block);
}

std::uint32_t count_differences(const std::array<std::uint16_t, kBlockSize>& a,
                                const std::array<std::uint16_t, kBlockSize>& b) {
  std::uint32_t unlike = 0;
  for (std::uint32_t i = 0; i < kBlockSize; ++i) unlike += a[i] != b[i] ? 1u : 0u;
  return unlike;
}

// Counts the inputs first .. first + count - 1 whose code is not `expected`.
template <FormatSpec kFormat, Overflow kOverflow>
[[gnu::always_inline]] inline std::uint32_t count_one(std::uint32_t first, std::uint32_t count,
                                                      std::uint32_t expected) {
  std::uint32_t unlike = 0;
  for (std::uint32_t i = 0; i < count; ++i) {
    const std::uint32_t code = numerics::encode(kFormat, first + i, Rounding::nearest, kOverflow);
    unlike += code != expected ? 1u : 0u;
  }
  return unlike;
}

// Counts the values first .. last - 1 and their negatives whose code is not the
// expected one of each policy.
template <FormatSpec kFormat>
[[gnu::always_inline]] inline std::uint32_t count_unlike(std::uint32_t first, std::uint32_t last,
                                                         std::uint32_t saturated,
                                                         std::uint32_t special,
                                                         std::uint32_t sign) {
  const std::uint32_t count = last - first;
  const std::uint32_t negative = first | 0x80000000u;
  return count_one<kFormat, Overflow::saturate>(first, count, saturated) +
         count_one<kFormat, Overflow::saturate>(negative, count, saturated | sign) +
         count_one<kFormat, Overflow::special>(first, count, special) +
         count_one<kFormat, Overflow::special>(negative, count, special | sign);
}

/// Returns true for the named formats whose boundaries are swept; each is passed to
/// the compiler as a constant.
constexpr bool is_swept(const FormatSpec& format) {
  return format.bits() <= 16 && format.has_sign && format.encoding == numerics::Encoding::floating;
}

using CountUnlike = std::uint32_t (*)(std::uint32_t, std::uint32_t, std::uint32_t, std::uint32_t,
                                      std::uint32_t);

template <std::size_t kIndex>
FP8LAB_FOR_EACH_PROCESSOR std::uint32_t count_unlike_named(std::uint32_t first, std::uint32_t last,
                                                           std::uint32_t saturated,
                                                           std::uint32_t special,
                                                           std::uint32_t sign) {
  return count_unlike<numerics::kNamedFormats[kIndex].format>(first, last, saturated, special,
                                                              sign);
}

template <std::size_t kIndex>
constexpr CountUnlike counter() {
  if constexpr (is_swept(numerics::kNamedFormats[kIndex].format)) {
    return &count_unlike_named<kIndex>;
  } else {
    return nullptr;
  }
}

constexpr std::size_t kNamedCount = std::size(numerics::kNamedFormats);

template <std::size_t... kIndex>
constexpr std::array<CountUnlike, kNamedCount> counters(std::index_sequence<kIndex...>) {
  return {counter<kIndex>()...};
}

CountUnlike counter_of(const FormatSpec& format) {
  constexpr auto kCounters = counters(std::make_index_sequence<kNamedCount>{});
  for (std::size_t i = 0; i < kNamedCount; ++i) {
    const bool found = numerics::kNamedFormats[i].format == format;
    if (found && kCounters[i] != nullptr) return kCounters[i];
  }
  throw InputError({.where = "codec sweep",
                    .reason = fmt::format("no sweep for a format of {} bits", format.bits()),
                    .accepted = "the named sign-magnitude formats of at most 16 bits"});
}

// Calls body(chunk) for all chunks in parallel; prints a progress line after every eighth of them.
template <class Body>
void for_each_chunk(std::uint32_t count, const std::string& name,
                    const std::function<void(const std::string&)>& progress, const Body& body) {
  const std::uint32_t group = count / 8;
  for (std::uint32_t first = 0; first < count; first += group) {
#pragma omp parallel for schedule(dynamic, 1)
    for (std::uint32_t chunk = first; chunk < first + group; ++chunk) body(chunk);
    if (progress) {
      progress(name + ": " + std::to_string(100 * (first + group) / count) + " % of all floats");
    }
  }
}

void check_fp8(Fp8Format format, const std::string& name,
               const std::function<void(const std::string&)>& progress,
               std::vector<CodecReport>& reports) {
  std::array<Fp8ChunkResult, kChunks> results;
  for_each_chunk(kChunks, name, progress, [&](std::uint32_t chunk) {
    results[chunk] = sweep_fp8_chunk(format, chunk, kConversionHashSeed);
  });
  const std::size_t row = format == Fp8Format::e4m3 ? 0 : 1;
  CodecReport saturating{name + " saturating, all floats, recorded hashes", kAllFloats, 0};
  CodecReport special{name + " without saturation, all floats, recorded hashes", kAllFloats, 0};
  CodecReport fast{name + " fast conversion, all floats", kAllFloats, 0};
  for (std::size_t chunk = 0; chunk < kChunks; ++chunk) {
    const Fp8ChunkResult& result = results[chunk];
    saturating.mismatches += result.saturating_hash != kConversionHashes[row][chunk] ? 1u : 0u;
    special.mismatches += result.special_hash != kConversionHashes[row + 2][chunk] ? 1u : 0u;
    fast.mismatches += result.fast_mismatches;
  }
  reports.insert(reports.end(), {saturating, special, fast});
}

Bf16ChunkResult sweep_bf16_chunk(std::uint32_t chunk, std::uint32_t seed) {
  Bf16Block block;
  Bf16ChunkResult result;
  for (std::uint32_t offset = 0; offset < kChunkSize; offset += kBlockSize) {
    const std::uint32_t first = chunk * kChunkSize + offset;
    convert_block_bf16(first, block);
    result.fast_mismatches += count_differences(block.fast, block.general);
    result.hash += hash_conversions(first, block.general.data(), kBlockSize, seed);
  }
  return result;
}

CodecReport check_boundaries(const numerics::NamedFormat& named,
                             const std::function<void(const std::string&)>& progress) {
  const std::string name(named.name);
  const std::vector<std::uint32_t> thresholds = rounding_thresholds(named.format);
  std::array<std::uint64_t, kChunks / 2> mismatches{};
  for_each_chunk(kChunks / 2, name, progress, [&](std::uint32_t chunk) {
    mismatches[chunk] = sweep_boundaries(named.format, thresholds, chunk);
  });
  CodecReport report{name + " both overflow policies, all floats, exact boundaries", 2 * kAllFloats,
                     0};
  for (const std::uint64_t count : mismatches) report.mismatches += count;
  return report;
}

}  // namespace

FP8LAB_FOR_EACH_PROCESSOR
std::uint64_t hash_conversions(std::uint32_t first, const std::uint16_t* outputs, std::size_t count,
                               std::uint32_t seed) {
  const std::uint64_t salt = mix(seed);
  std::uint64_t hash = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const std::uint64_t input = std::uint64_t{first} + i;
    hash += mix((input << 16 | outputs[i]) ^ salt);
  }
  return hash;
}

Fp8ChunkResult sweep_fp8_chunk(Fp8Format format, std::uint32_t chunk, std::uint32_t seed) {
  const auto convert = format == Fp8Format::e4m3 ? &convert_block_e4m3 : &convert_block_e5m2;
  Fp8Block block;
  Fp8ChunkResult result;
  for (std::uint32_t offset = 0; offset < kChunkSize; offset += kBlockSize) {
    const std::uint32_t first = chunk * kChunkSize + offset;
    convert(first, block);
    result.fast_mismatches += count_differences(block.fast, block.saturating);
    result.saturating_hash += hash_conversions(first, block.saturating.data(), kBlockSize, seed);
    result.special_hash += hash_conversions(first, block.special.data(), kBlockSize, seed);
  }
  return result;
}

std::vector<Bf16ChunkResult> sweep_bf16(std::uint32_t seed) {
  std::vector<Bf16ChunkResult> results(kChunks);
#pragma omp parallel for schedule(dynamic, 1)
  for (std::uint32_t chunk = 0; chunk < kChunks; ++chunk) {
    results[chunk] = sweep_bf16_chunk(chunk, seed);
  }
  return results;
}

std::vector<std::uint32_t> rounding_thresholds(const FormatSpec& format) {
  const std::uint32_t largest = format.max_finite_code();
  std::vector<std::uint32_t> thresholds;
  thresholds.reserve(largest + 1u);
  for (std::uint32_t code = 0; code <= largest; ++code) {
    const double here = numerics::decode(format, code);
    // Above the maximum the grid continues with the last spacing: overflow
    // is decided after rounding.
    const double next = code < largest
                            ? static_cast<double>(numerics::decode(format, code + 1u))
                            : 2.0 * here - static_cast<double>(numerics::decode(format, code - 1u));
    // Midpoints of formats with at most 16 bits are FP32 values. Ties round to the even code.
    const std::uint32_t middle = numerics::float_bits(static_cast<float>((here + next) / 2.0));
    thresholds.push_back(code % 2 == 1 ? middle : middle + 1u);
  }
  return thresholds;
}

std::uint64_t sweep_boundaries(const FormatSpec& format,
                               const std::vector<std::uint32_t>& thresholds, std::uint32_t chunk) {
  const CountUnlike count_unlike = counter_of(format);
  const std::uint32_t end = (chunk + 1) * kChunkSize;
  const std::uint32_t max_code = format.max_finite_code();
  std::uint32_t first = chunk * kChunkSize;
  std::uint64_t mismatches = 0;
  const auto check_until = [&](std::uint32_t limit, std::uint32_t saturated, std::uint32_t special,
                               std::uint32_t sign) {
    const std::uint32_t last = std::min(end, limit);
    if (first >= last) return;
    mismatches += count_unlike(first, last, saturated, special, sign);
    first = last;
  };
  auto code = static_cast<std::uint32_t>(
      std::upper_bound(thresholds.begin(), thresholds.end(), first) - thresholds.begin());
  for (; code <= max_code && first < end; ++code) {
    const bool is_signed = code != 0 || format.has_negative_zero();
    check_until(thresholds[code], code, code, is_signed ? format.sign_mask() : 0u);
  }
  const std::uint32_t overflowed =
      format.has_infinity() ? format.infinity_code() : format.nan_code();
  check_until(numerics::kF32Infinity + 1u, max_code, overflowed, format.sign_mask());
  check_until(end, format.nan_code(), format.nan_code(), 0u);  // the sign of a NaN is dropped
  return mismatches;
}

std::uint64_t round_trip_mismatches(const FormatSpec& format) {
  const Rounding rounding = format.has_sign ? Rounding::nearest : Rounding::toward_zero;
  const bool integer = format.encoding == numerics::Encoding::twos_complement;
  std::uint64_t mismatches = 0;
  for (std::uint32_t code = 0; code >> format.bits() == 0; ++code) {
    const std::uint32_t bits = numerics::decode_bits(format, code);
    const bool never_produced = integer && code == format.sign_mask();
    const std::uint32_t expected = bits == numerics::kF32NaN ? format.nan_code()
                                   : never_produced          ? code + 1u
                                                             : code;
    if (numerics::encode(format, bits, rounding, Overflow::special) != expected) ++mismatches;
  }
  return mismatches;
}

std::vector<CodecReport> validate_codecs(bool exhaustive_all_formats,
                                         const std::function<void(const std::string&)>& progress) {
  std::vector<CodecReport> reports;
  for (const numerics::NamedFormat& named : numerics::kNamedFormats) {
    const bool fixed = named.format.encoding != numerics::Encoding::tile_logarithm;
    if (named.format.bits() > 16 || !fixed) continue;
    reports.push_back({std::string(named.name) + " decode and encode, every code",
                       std::uint64_t{1} << named.format.bits(),
                       round_trip_mismatches(named.format)});
  }
  check_fp8(Fp8Format::e4m3, "e4m3fn", progress, reports);
  check_fp8(Fp8Format::e5m2, "e5m2", progress, reports);
  CodecReport bf16{"bf16 fast conversion, all floats", kAllFloats, 0};
  for (const Bf16ChunkResult& result : sweep_bf16(kConversionHashSeed)) {
    bf16.mismatches += result.fast_mismatches;
  }
  reports.push_back(bf16);
  if (!exhaustive_all_formats) return reports;
  for (const numerics::NamedFormat& named : numerics::kNamedFormats) {
    if (is_swept(named.format)) reports.push_back(check_boundaries(named, progress));
  }
  return reports;
}

}  // namespace fp8lab
