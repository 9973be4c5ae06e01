// Element types of tensors in files, and their conversion to and from FP32.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "emulation/base/tensor_view.hpp"

namespace fp8lab {

/// The element types of safetensors files that occupy whole bytes.
enum class StoredType : std::uint8_t {
  boolean,
  u8,
  i8,
  f8_e4m3,
  f8_e5m2,
  f8_e8m0,
  u16,
  i16,
  f16,
  bf16,
  u32,
  i32,
  f32,
  u64,
  i64,
  f64,
  f8_e4m3fnuz,
  f8_e5m2fnuz,
};

std::size_t size_of(StoredType type);

/// Returns the name in a file's header, for example "BF16" or "F8_E4M3".
std::string_view stored_name(StoredType type);
std::optional<StoredType> parse_stored_type(std::string_view name);

/// Returns the stored type of a backend tensor; u8 codes are stored as U8.
StoredType stored_type(DType dtype);

/// Returns true if decode_elements has a value for each element: F16, BF16,
/// F32 and the 8-bit floats.
bool is_decodable(StoredType type);

/// Returns true for the decodable types that weights may have: all except F8_E8M0,
/// which is for scales only.
inline bool is_weight_type(StoredType type) {
  return is_decodable(type) && type != StoredType::f8_e8m0;
}

/// Converts the elements in `source`, destination.size() of them, to FP32; exact. Precondition:
/// `type` is decodable. `source` needs no alignment.
void decode_elements(StoredType type, std::span<const std::byte> source,
                     std::span<float> destination);

/// Converts FP32 values to elements of `type`, F32, BF16 or F16, rounded to nearest even; values
/// that are too large become infinity. `destination` needs no alignment.
void encode_elements(StoredType type, std::span<const float> source,
                     std::span<std::byte> destination);

}  // namespace fp8lab
