// Element types of tensors in files, and their values as FP32.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "emulation/base/tensor_view.hpp"

namespace fp8lab {

/// The element types of safetensors files whose elements fill whole bytes.
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
};

std::size_t size_of(StoredType type);

/// The name in a file's header, for example "BF16" or "F8_E4M3".
std::string_view stored_name(StoredType type);
std::optional<StoredType> parse_stored_type(std::string_view name);

/// How a tensor of the backend is stored: u8 codes as U8.
StoredType stored_type(DType dtype);

/// True where decode_elements has a value for each element: F16, BF16, F32 and the 8-bit floats.
bool is_decodable(StoredType type);

/// Those of which weights are: all but F8_E8M0, which holds scales alone.
inline bool is_weight_type(StoredType type) {
  return is_decodable(type) && type != StoredType::f8_e8m0;
}

/// FP32 values of the elements in `source`, destination.size() of them; exact. `type` must be
/// decodable; `source` needs no alignment.
void decode_elements(StoredType type, std::span<const std::byte> source,
                     std::span<float> destination);

/// Elements of `type`, F32, BF16 or F16, from FP32 values rounded to nearest even; what is too
/// large becomes infinity. `destination` needs no alignment.
void encode_elements(StoredType type, std::span<const float> source,
                     std::span<std::byte> destination);

}  // namespace fp8lab
