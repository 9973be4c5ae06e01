// The header of a safetensors file: JSON text with the position of each
// tensor. Input may be hostile.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "src/io/tensors/stored_type.hpp"

namespace fp8lab {

/// Name, type and shape of a tensor in a file.
struct TensorHeader {
  std::string name;
  StoredType type = StoredType::f32;
  std::vector<std::int64_t> shape;  ///< row-major; empty for a scalar

  std::int64_t size() const;  ///< number of elements
  std::uint64_t bytes() const { return static_cast<std::uint64_t>(size()) * size_of(type); }
};

/// "BF16 (4, 3)", for messages.
std::string shape_text(const TensorHeader& tensor);

/// A tensor and its position: bytes [begin, end) after the header.
struct TensorPlace {
  TensorHeader tensor;
  std::uint64_t begin = 0, end = 0;
};

struct SafetensorsHeader {
  std::map<std::string, std::string> metadata;
  std::vector<TensorPlace> tensors;  ///< by ascending position; together they fill the data exactly
};

/// Parses the JSON text of a header in front of `data_size` bytes of tensors. Throws Error
/// that names `origin` and the tensor for text that is not a header, repeated names,
/// unknown types, shapes that overflow or do not fit, and positions that lie outside the
/// data, overlap or leave gaps.
SafetensorsHeader parse_safetensors_header(std::string_view text, std::uint64_t data_size,
                                           const std::string& origin);

/// Returns the header text of tensors that are contiguous in this order, padded with spaces so that
/// 8 + text.size() is a multiple of 8.
std::string format_safetensors_header(const std::map<std::string, std::string>& metadata,
                                      const std::vector<TensorHeader>& tensors);

}  // namespace fp8lab
