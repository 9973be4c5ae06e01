#include "src/validate/golden_conversions.hpp"

#include <utility>

#include "emulation/numerics/codec.hpp"
#include "src/validate/codec.hpp"

namespace fp8lab {
namespace {

using numerics::FormatSpec;
using numerics::Overflow;
using numerics::Rounding;

enum class ConversionKind : std::uint8_t { plain, relu, e8m0_down, e8m0_up };

struct Conversion {
  FormatSpec format;
  Overflow overflow = Overflow::saturate;
  ConversionKind kind = ConversionKind::plain;
  constexpr bool operator==(const Conversion&) const = default;
};

constexpr Overflow kSat = Overflow::saturate;
constexpr Overflow kNoSat = Overflow::special;

constexpr std::array<Conversion, kGoldenConversions> kConversions = {{
    {numerics::kE4M3, kSat},
    {numerics::kE5M2, kSat},
    {numerics::kE4M3, kNoSat},
    {numerics::kE5M2, kNoSat},
    {numerics::kE4M3, kSat},
    {numerics::kE5M2, kSat},
    {numerics::kE4M3, kSat},
    {numerics::kE8M0, kSat, ConversionKind::e8m0_down},
    {numerics::kE8M0, kSat, ConversionKind::e8m0_up},
    {numerics::kE8M0, kNoSat, ConversionKind::e8m0_down},
    {numerics::kE8M0, kNoSat, ConversionKind::e8m0_up},
    {numerics::kE2M1, kSat},
    {numerics::kE2M3, kSat},
    {numerics::kE3M2, kSat},
    {numerics::kBF16, kNoSat},
    {numerics::kFP16, kNoSat},
    {numerics::kE4M3, kSat, ConversionKind::relu},
    {numerics::kE5M2, kSat, ConversionKind::relu},
}};

constexpr std::uint32_t convert(const Conversion& conversion, std::uint32_t bits) {
  if (conversion.kind == ConversionKind::e8m0_down || conversion.kind == ConversionKind::e8m0_up) {
    return numerics::encode_e8m0(bits, conversion.kind == ConversionKind::e8m0_up,
                                 conversion.overflow);
  }
  const std::uint32_t code =
      numerics::encode(conversion.format, bits, Rounding::nearest, conversion.overflow);
  const bool clear =
      conversion.kind == ConversionKind::relu && (code & conversion.format.sign_mask()) != 0;
  return clear ? 0u : code;
}

// One instantiation per conversion, so that the compiler specialises the codec.
template <std::size_t kIndex>
std::uint64_t hash_chunk(std::uint32_t chunk, std::uint32_t seed) {
  constexpr std::uint32_t kBlock = 4096;
  std::array<std::uint16_t, kBlock> outputs;
  std::uint64_t hash = 0;
  for (std::uint32_t offset = 0; offset < 1u << 24; offset += kBlock) {
    const std::uint32_t first = chunk << 24 | offset;
    for (std::uint32_t i = 0; i < kBlock; ++i) {
      outputs[i] = static_cast<std::uint16_t>(convert(kConversions[kIndex], first + i));
    }
    hash += hash_conversions(first, outputs.data(), kBlock, seed);
  }
  return hash;
}

template <std::size_t... kIndices>
std::uint64_t hash_chunk_of(int index, std::uint32_t chunk, std::uint32_t seed,
                            std::index_sequence<kIndices...>) {
  using Function = std::uint64_t (*)(std::uint32_t, std::uint32_t);
  static constexpr Function kFunctions[] = {&hash_chunk<kIndices>...};
  return kFunctions[index](chunk, seed);
}

struct TableConversion {
  FormatSpec source;
  Conversion conversion;
};

constexpr TableConversion kByteTables[kGoldenByteTables] = {
    {numerics::kFP16, {numerics::kE4M3, kSat}},
    {numerics::kFP16, {numerics::kE5M2, kSat}},
    {numerics::kFP16, {numerics::kE4M3, kNoSat}},
    {numerics::kFP16, {numerics::kE5M2, kNoSat}},
    {numerics::kBF16, {numerics::kE4M3, kSat}},
    {numerics::kBF16, {numerics::kE5M2, kSat}},
    {numerics::kBF16, {numerics::kE4M3, kNoSat}},
    {numerics::kBF16, {numerics::kE5M2, kNoSat}},
    {numerics::kFP16, {numerics::kE4M3, kSat}},
    {numerics::kFP16, {numerics::kE5M2, kSat}},
    {numerics::kBF16, {numerics::kE8M0, kSat, ConversionKind::e8m0_down}},
    {numerics::kBF16, {numerics::kE8M0, kSat, ConversionKind::e8m0_up}},
    {numerics::kBF16, {numerics::kE2M1, kSat}},
    {numerics::kBF16, {numerics::kE2M3, kSat}},
    {numerics::kBF16, {numerics::kE3M2, kSat}},
    {numerics::kFP16, {numerics::kE2M1, kSat}},
    {numerics::kFP16, {numerics::kE2M3, kSat}},
    {numerics::kFP16, {numerics::kE3M2, kSat}},
    {numerics::kBF16, {numerics::kE4M3, kSat}},
};

constexpr TableConversion kHalfTables[kGoldenHalfTables] = {
    {numerics::kE4M3, {numerics::kFP16, kNoSat}}, {numerics::kE5M2, {numerics::kFP16, kNoSat}},
    {numerics::kE8M0, {numerics::kBF16, kNoSat}}, {numerics::kE4M3, {numerics::kFP16, kNoSat}},
    {numerics::kE5M2, {numerics::kFP16, kNoSat}},
};

std::uint32_t convert_table(const TableConversion& table, std::uint32_t input) {
  return convert(table.conversion, numerics::decode_bits(table.source, input));
}

}  // namespace

std::uint32_t golden_convert(int index, std::uint32_t f32_bits) {
  return convert(kConversions[static_cast<std::size_t>(index)], f32_bits);
}

int golden_conversion_alias(int index) {
  int first = 0;
  while (kConversions[static_cast<std::size_t>(first)] !=
         kConversions[static_cast<std::size_t>(index)]) {
    ++first;
  }
  return first;
}

std::uint64_t golden_conversion_hash(int index, std::uint32_t chunk, std::uint32_t seed) {
  return hash_chunk_of(index, chunk, seed, std::make_index_sequence<kGoldenConversions>{});
}

std::uint32_t golden_byte_table(int table, std::uint32_t input) {
  return convert_table(kByteTables[table], input);
}

std::uint32_t golden_half_table(int table, std::uint32_t input) {
  return convert_table(kHalfTables[table], input);
}

}  // namespace fp8lab
