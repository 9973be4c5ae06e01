// NumPy's .npy files: plain arrays of one or two dimensions, read strictly.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "emulation/base/tensor_view.hpp"

namespace fp8lab {

/// A matrix in row-major order. NumPy types: '<f4' f32, '<f8' f64, '|u1' u8, '<i4' i32, '<u4' read
/// as the bits of i32, and '<u2' for the bits of bf16, which NumPy does not know.
struct NpyArray {
  DType dtype = DType::f32;
  std::int64_t rows = 0;  ///< 1 when `dimensions` is 1
  std::int64_t cols = 0;
  std::vector<std::byte> data;  ///< rows * cols elements
  int dimensions = 2;           ///< of the file, 1 or 2

  /// The matrix as a view; valid as long as `data` is.
  TensorView view();
};

/// Decodes the bytes of a .npy file, format version 1.0 or 2.0; `origin` stands for it in messages.
/// Throws Error for anything else: truncated or longer than its shape says, Fortran order, objects,
/// structures, big-endian or other types, more dimensions, sizes that overflow.
NpyArray parse_npy(std::string_view bytes, const std::string& origin);

/// Bytes of a version 1.0 file, data aligned to 64 bytes as NumPy does.
std::string format_npy(const NpyArray& array);

NpyArray read_npy(const std::filesystem::path& path);
void write_npy(const std::filesystem::path& path, const NpyArray& array);

}  // namespace fp8lab
