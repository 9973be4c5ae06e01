// A typed, non-owning matrix in backend memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "emulation/base/error.hpp"

namespace fp8lab {

/// Storage type of a tensor element. FP8 and narrower codes are u8, one code per byte.
enum class DType : std::uint8_t { u8, i32, bf16, f32, f64 };

constexpr std::size_t size_of(DType dtype) {
  switch (dtype) {
    case DType::u8: return 1;
    case DType::bf16: return 2;
    case DType::i32:
    case DType::f32: return 4;
    case DType::f64: return 8;
  }
  return 0;
}

constexpr std::string_view name_of(DType dtype) {
  switch (dtype) {
    case DType::u8: return "u8";
    case DType::i32: return "i32";
    case DType::bf16: return "bf16";
    case DType::f32: return "f32";
    case DType::f64: return "f64";
  }
  return "?";
}

/// Matrix of shape (rows, cols), row-major, with `row_stride` elements from row to row. A vector is
/// a matrix of one row. Each operation's contract says whether it writes the data.
struct TensorView {
  void* data = nullptr;
  DType dtype = DType::f32;
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  std::int64_t row_stride = 0;

  /// Returns a view with a shape and a type only, for queries before any memory is allocated.
  static constexpr TensorView without_memory(DType dtype, std::int64_t rows, std::int64_t cols) {
    return {nullptr, dtype, rows, cols, cols};
  }

  constexpr std::int64_t size() const { return rows * cols; }
  /// True for a default view, which stands for a tensor that is not given.
  constexpr bool empty() const { return data == nullptr && rows == 0 && cols == 0; }
  /// False for an empty view, and for one that is without_memory().
  constexpr bool has_memory() const { return data != nullptr; }
  constexpr bool contiguous() const { return row_stride == cols || rows == 1; }

  /// Returns a pointer to element (row, 0). Precondition: T is the storage type of `dtype`.
  template <class T>
  T* row(std::int64_t r) const {
    return static_cast<T*>(data) + r * row_stride;
  }

  /// Returns the elements of a contiguous matrix as one row.
  TensorView flat() const {
    FP8LAB_ASSERT(contiguous());
    return {data, dtype, 1, size(), size()};
  }

  /// Returns columns [first, first + count) of every row.
  TensorView columns(std::int64_t first, std::int64_t count) const {
    FP8LAB_ASSERT(first >= 0 && count >= 0 && first + count <= cols);
    TensorView part = *this;
    part.data = static_cast<std::byte*>(data) + static_cast<std::size_t>(first) * size_of(dtype);
    part.cols = count;
    return part;
  }

  /// Returns rows [first, first + count).
  TensorView row_range(std::int64_t first, std::int64_t count) const {
    FP8LAB_ASSERT(first >= 0 && count >= 0 && first + count <= rows);
    TensorView part = *this;
    part.data = static_cast<std::byte*>(data) +
                static_cast<std::size_t>(first * row_stride) * size_of(dtype);
    part.rows = count;
    return part;
  }
};

}  // namespace fp8lab
