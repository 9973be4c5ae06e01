// Reads the caller's arrays.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "emulation/base/tensor_view.hpp"
#include "emulation/numerics/format.hpp"
#include "src/interface/fp8lab.h"
#include "src/io/tensors/npy.hpp"

namespace fp8lab::interface {

using Shape = std::vector<std::int64_t>;

/// Returns the format of an ml_dtypes type of at most 8 bits, by its name: float8_NAME has the
/// format NAME.
std::optional<numerics::FormatSpec> format_of_type(std::string_view type);

/// Returns the shape of an array. Throws Error for a missing array or type, a negative extent and
/// for memory that is not the host's.
Shape shape_of(const fp8lab_array* array, const std::string& name);

/// Elements of an array in row-major order.
struct Elements {
  std::vector<std::byte> copy;  ///< of an array with another order or unaligned elements
  const void* data = nullptr;   ///< `copy`, or the caller's memory
  std::int64_t count = 0;
};

/// Returns the elements, of `size` bytes each; a copy only where the caller's memory has another
/// order.
Elements row_major(const fp8lab_array* array, const std::string& name, std::size_t size);

/// Values or codes of an array. Valid as long as the caller's array is; no one may write to it.
struct Input {
  std::vector<std::byte> copy;
  TensorView view;                            ///< (1, size); f32, bf16 or u8
  Shape shape;                                ///< of the caller's array
  std::optional<numerics::FormatSpec> codes;  ///< of a type of ml_dtypes of at most 8 bits
};

/// Reads an array of any shape. Accepted types: float32; float16, widened exactly; uint16 (the bits
/// of bf16) and bfloat16; uint8 (codes) and the ml_dtypes types of at most 8 bits whose format is
/// in emulation/numerics. Throws Error that names the array for other types.
Input read_array(const fp8lab_array* array, const std::string& name);

/// read_array of a two-dimensional array with at least one element; `view` has its rows.
Input read_matrix(const fp8lab_array* array, const std::string& name);

/// read_matrix of a matrix whose elements are not needed: its type and shape.
TensorView matrix_without_memory(const fp8lab_array* array, const std::string& name);

/// Reads an optional matrix of scales.
std::optional<NpyArray> read_scales(const fp8lab_array* array, const std::string& name);

/// Throws Error if `codes`, the format of an array's type, is not `format`. Plain uint8 arrays have
/// no such format and are accepted.
void check_codes_are(const std::string& name, const std::optional<numerics::FormatSpec>& codes,
                     const numerics::FormatSpec& format);

/// Returns the memory of a result. Throws Error if the array is not of this type and shape, or not
/// in row-major order without gaps.
void* result_memory(const fp8lab_array* array, const std::string& name, std::string_view dtype,
                    const Shape& shape);

/// result_memory of (rows, cols) as a view of type u8 (uint8) or f32 (float32).
TensorView result_matrix(const fp8lab_array* array, const std::string& name, DType dtype,
                         std::int64_t rows, std::int64_t cols);

}  // namespace fp8lab::interface
