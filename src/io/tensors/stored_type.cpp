#include "src/io/tensors/stored_type.hpp"

#include <array>
#include <cstring>
#include <vector>

#include "emulation/base/error.hpp"
#include "emulation/numerics/codec.hpp"

namespace fp8lab {
namespace {

struct Description {
  StoredType type;
  std::string_view name;
  std::size_t size;
};

constexpr std::array<Description, 18> kDescriptions = {{
    {StoredType::boolean, "BOOL", 1},
    {StoredType::u8, "U8", 1},
    {StoredType::i8, "I8", 1},
    {StoredType::f8_e4m3, "F8_E4M3", 1},
    {StoredType::f8_e5m2, "F8_E5M2", 1},
    {StoredType::f8_e8m0, "F8_E8M0", 1},
    {StoredType::u16, "U16", 2},
    {StoredType::i16, "I16", 2},
    {StoredType::f16, "F16", 2},
    {StoredType::bf16, "BF16", 2},
    {StoredType::u32, "U32", 4},
    {StoredType::i32, "I32", 4},
    {StoredType::f32, "F32", 4},
    {StoredType::u64, "U64", 8},
    {StoredType::i64, "I64", 8},
    {StoredType::f64, "F64", 8},
    {StoredType::f8_e4m3fnuz, "F8_E4M3FNUZ", 1},
    {StoredType::f8_e5m2fnuz, "F8_E5M2FNUZ", 1},
}};

const Description& describe(StoredType type) {
  return kDescriptions[static_cast<std::size_t>(type)];
}

/// Returns the values of all codes of a format of `kBits` bits.
template <int kBits>
std::vector<float> values_of(numerics::FormatSpec format) {
  std::vector<float> values(std::size_t{1} << kBits);
  for (std::uint32_t code = 0; code < values.size(); ++code) {
    values[code] = numerics::decode(format, code);
  }
  return values;
}

/// Returns element `i` of unaligned memory.
template <class Bits>
Bits element(const std::byte* source, std::size_t i) {
  Bits bits{};
  std::memcpy(&bits, source + i * sizeof bits, sizeof bits);
  return bits;
}

template <class Bits>
void look_up(const std::vector<float>& values, const std::byte* source,
             std::span<float> destination) {
  for (std::size_t i = 0; i < destination.size(); ++i) {
    destination[i] = values[element<Bits>(source, i)];
  }
}

template <class Bits, class Encode>
void encode_each(std::span<const float> source, std::byte* destination, Encode encode) {
  for (std::size_t i = 0; i < source.size(); ++i) {
    const Bits bits = encode(source[i]);
    std::memcpy(destination + i * sizeof bits, &bits, sizeof bits);
  }
}

}  // namespace

std::size_t size_of(StoredType type) { return describe(type).size; }

std::string_view stored_name(StoredType type) { return describe(type).name; }

std::optional<StoredType> parse_stored_type(std::string_view name) {
  for (const Description& description : kDescriptions) {
    if (description.name == name) return description.type;
  }
  return std::nullopt;
}

StoredType stored_type(DType dtype) {
  switch (dtype) {
    case DType::u8: return StoredType::u8;
    case DType::i32: return StoredType::i32;
    case DType::bf16: return StoredType::bf16;
    case DType::f32: return StoredType::f32;
    case DType::f64: break;
  }
  return StoredType::f64;
}

bool is_decodable(StoredType type) {
  switch (type) {
    case StoredType::f8_e4m3:
    case StoredType::f8_e5m2:
    case StoredType::f8_e8m0:
    case StoredType::f8_e4m3fnuz:
    case StoredType::f8_e5m2fnuz:
    case StoredType::f16:
    case StoredType::bf16:
    case StoredType::f32: return true;
    default: return false;
  }
}

void decode_elements(StoredType type, std::span<const std::byte> source,
                     std::span<float> destination) {
  FP8LAB_ASSERT(source.size() == destination.size() * size_of(type));
  static const std::vector<float> e4m3 = values_of<8>(numerics::kE4M3),
                                  e5m2 = values_of<8>(numerics::kE5M2),
                                  e8m0 = values_of<8>(numerics::kE8M0),
                                  e4m3fnuz = values_of<8>(numerics::kE4M3Fnuz),
                                  e5m2fnuz = values_of<8>(numerics::kE5M2Fnuz),
                                  fp16 = values_of<16>(numerics::kFP16);
  const std::byte* const first = source.data();
  switch (type) {
    case StoredType::f8_e4m3: return look_up<std::uint8_t>(e4m3, first, destination);
    case StoredType::f8_e5m2: return look_up<std::uint8_t>(e5m2, first, destination);
    case StoredType::f8_e8m0: return look_up<std::uint8_t>(e8m0, first, destination);
    case StoredType::f8_e4m3fnuz: return look_up<std::uint8_t>(e4m3fnuz, first, destination);
    case StoredType::f8_e5m2fnuz: return look_up<std::uint8_t>(e5m2fnuz, first, destination);
    case StoredType::f16: return look_up<std::uint16_t>(fp16, first, destination);
    case StoredType::bf16:
      for (std::size_t i = 0; i < destination.size(); ++i) {
        destination[i] = numerics::from_bf16(element<std::uint16_t>(first, i));
      }
      return;
    case StoredType::f32:
      if (!source.empty()) std::memcpy(destination.data(), first, source.size());
      return;
    default: FP8LAB_ASSERT(is_decodable(type));
  }
}

void encode_elements(StoredType type, std::span<const float> source,
                     std::span<std::byte> destination) {
  FP8LAB_ASSERT(destination.size() == source.size() * size_of(type));
  std::byte* const first = destination.data();
  if (type == StoredType::bf16) {
    encode_each<std::uint16_t>(source, first, numerics::to_bf16);
  } else if (type == StoredType::f16) {
    encode_each<std::uint16_t>(source, first, [](float value) {
      return static_cast<std::uint16_t>(
          numerics::encode(numerics::kFP16, numerics::float_bits(value),
                           numerics::Rounding::nearest, numerics::Overflow::special));
    });
  } else {
    FP8LAB_ASSERT(type == StoredType::f32);
    if (!source.empty()) std::memcpy(first, source.data(), destination.size());
  }
}

}  // namespace fp8lab
