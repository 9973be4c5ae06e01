// Strict reader and writer of NumPy's .npy files: plain arrays of one or two dimensions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "emulation/base/tensor_view.hpp"

namespace fp8lab {

/// A row-major matrix. NumPy types: '<f4' f32, '<f8' f64, '|u1' u8, '<i4' i32, '<u4' (read as the
/// bits of i32), and '<u2' for the bits of bf16, which NumPy lacks.
struct NpyArray {
  DType dtype = DType::f32;
  std::int64_t rows = 0;  ///< 1 if `dimensions` is 1
  std::int64_t cols = 0;
  std::vector<std::byte> data;  ///< rows * cols elements
  int dimensions = 2;           ///< dimensions in the file, 1 or 2

  /// Returns a view of the matrix, valid as long as `data` is.
  TensorView view();
};

/// Decodes the bytes of a .npy file, format version 1.0 or 2.0; messages name `origin` as the file.
/// Throws Error for anything else: files truncated or longer than their shape says, Fortran order,
/// objects, structures, big-endian or other types, more dimensions, sizes that overflow.
NpyArray parse_npy(std::string_view bytes, const std::string& origin);

/// Returns the bytes of a version 1.0 file, with data aligned to 64 bytes as in NumPy.
std::string format_npy(const NpyArray& array);

NpyArray read_npy(const std::filesystem::path& path);
void write_npy(const std::filesystem::path& path, const NpyArray& array);

}  // namespace fp8lab
