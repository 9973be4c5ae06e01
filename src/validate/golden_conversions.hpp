// The conversions of the recorded vectors, in the order of their files.
#pragma once

#include <array>
#include <cstdint>

namespace fp8lab {

inline constexpr int kGoldenConversions = 18;

/// Returns the result of conversion `index` (in the order of conv_sample.bin)
/// for one FP32 bit pattern.
std::uint32_t golden_convert(int index, std::uint32_t f32_bits);

/// Returns the index of the first conversion that is the same function as `index`: two instructions
/// that must agree are computed only once.
int golden_conversion_alias(int index);

/// Returns the hash in conv_hash.bin of conversion `index` over 2^24 patterns from chunk * 2^24 on.
std::uint64_t golden_conversion_hash(int index, std::uint32_t chunk, std::uint32_t seed);

inline constexpr int kGoldenByteTables = 19;  ///< conv_tab.bin: 65536 u8 each
inline constexpr int kGoldenHalfTables = 5;   ///< then 256 u16 each

/// Returns the entry of table `table` for the 16-bit input `input`.
std::uint32_t golden_byte_table(int table, std::uint32_t input);
/// Returns the entry of the table `table` of 256 for the code `input`.
std::uint32_t golden_half_table(int table, std::uint32_t input);

}  // namespace fp8lab
