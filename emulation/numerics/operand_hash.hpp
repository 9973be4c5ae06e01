// Hashes of tensors that do not depend on the order in which their parts are visited.
#pragma once

#include <cstdint>

#include "emulation/numerics/host_device.hpp"

FP8LAB_NUMERICS_BEGIN

/// The kind of data that a hashed word belongs to; the value is the key of its terms.
enum class HashedPart : std::uint64_t {
  codes = 0x9E3779B97F4A7C15u,
  scales = 0xD1B54A32D192ED03u,
  weights = 0xA0761D6478BD642Fu,
};

/// Output function of SplitMix64 (Steele, Lea and Flood 2014, variant 13 of Stafford): a bijection
/// in which every bit of `x` reaches every bit of the result.
FP8LAB_HD_INLINE constexpr std::uint64_t mix64(std::uint64_t x) {
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}

/// Returns the place of word `index`; neighbours are 1 apart.
FP8LAB_HD_INLINE constexpr std::uint64_t hash_place(HashedPart part, std::uint64_t index) {
  return static_cast<std::uint64_t>(part) + index;
}
FP8LAB_HD_INLINE constexpr std::uint64_t hash_term_at(std::uint64_t place, std::uint64_t word) {
  return mix64(word ^ mix64(place));
}

/// Returns one term of a hash, mix64(word ^ mix64(key + index)). This is a bijection of `word`, so
/// a single changed word always changes the hash.
///
/// The hash of an operand of `rows` vectors of length `k` is the sum, modulo 2^64, of
/// - codes: word j of row r, index r * ceil(k * size / 8) + j, where the `k` elements of the row,
///   `size` bytes each (1 for codes, 2 for bf16, 4 for f32 values), are written one after the other
///   in little-endian order, padded with zeros to a multiple of 8 bytes and split into words;
/// - scales: the FP32 bits of scale (i, j), zero-extended, index i * columns + j.
/// Rows are counted one after another, whatever their distance and order in memory. The order of
/// additions does not matter.
///
/// The hash of a model's weights is the sum over its parameters of the terms of `weights`. Words
/// are split as those of codes, and indices continue from parameter to parameter.
FP8LAB_HD_INLINE constexpr std::uint64_t hash_term(HashedPart part, std::uint64_t index,
                                                   std::uint64_t word) {
  return hash_term_at(hash_place(part, index), word);
}

FP8LAB_NUMERICS_END
