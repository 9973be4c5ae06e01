// A host matrix of any storage type, and reproducible random numbers.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

#include "emulation/base/tensor_view.hpp"
#include "emulation/numerics/codec.hpp"

namespace fp8lab::test {

class Matrix {
 public:
  Matrix(DType dtype, std::int64_t rows, std::int64_t cols)
      : bytes_(static_cast<std::size_t>(rows * cols) * size_of(dtype)),
        dtype_(dtype),
        rows_(rows),
        cols_(cols) {}

  /// Uniform in (-scale, scale), rounded to the type.
  static Matrix random(DType dtype, std::int64_t rows, std::int64_t cols, std::uint32_t seed,
                       double scale = 1.0) {
    Matrix matrix(dtype, rows, cols);
    std::mt19937 generator(seed);
    for (std::int64_t i = 0; i < rows * cols; ++i) {
      matrix.set(i, scale * (static_cast<double>(generator()) * 0x1p-31 - 1.0));
    }
    return matrix;
  }

  TensorView view() { return {bytes_.data(), dtype_, rows_, cols_, cols_}; }
  std::int64_t rows() const { return rows_; }
  std::int64_t cols() const { return cols_; }
  const std::vector<std::byte>& bytes() const { return bytes_; }

  double at(std::int64_t r, std::int64_t c) const { return at(r * cols_ + c); }
  double at(std::int64_t i) const {
    switch (dtype_) {
      case DType::u8: return load<std::uint8_t>(i);
      case DType::i32: return load<std::int32_t>(i);
      case DType::bf16: return numerics::from_bf16(load<std::uint16_t>(i));
      case DType::f32: return load<float>(i);
      case DType::f64: return load<double>(i);
    }
    return 0.0;
  }
  void set(std::int64_t i, double value) {
    switch (dtype_) {
      case DType::u8: return store(i, static_cast<std::uint8_t>(value));
      case DType::i32: return store(i, static_cast<std::int32_t>(value));
      case DType::bf16: return store(i, numerics::to_bf16(static_cast<float>(value)));
      case DType::f32: return store(i, static_cast<float>(value));
      case DType::f64: return store(i, value);
    }
  }
  void set(std::int64_t r, std::int64_t c, double value) { set(r * cols_ + c, value); }

 private:
  template <class T>
  T load(std::int64_t i) const {
    T value;
    std::memcpy(&value, bytes_.data() + static_cast<std::size_t>(i) * sizeof(T), sizeof(T));
    return value;
  }
  template <class T>
  void store(std::int64_t i, T value) {
    std::memcpy(bytes_.data() + static_cast<std::size_t>(i) * sizeof(T), &value, sizeof(T));
  }

  std::vector<std::byte> bytes_;
  DType dtype_;
  std::int64_t rows_;
  std::int64_t cols_;
};

/// Random values with infinities, NaN, subnormals and zeros of both signs among them.
inline Matrix difficult(DType dtype, std::int64_t rows, std::int64_t cols, std::uint32_t seed) {
  Matrix matrix = Matrix::random(dtype, rows, cols, seed, 3.0);
  const double special[] = {HUGE_VAL, -HUGE_VAL, NAN, 0x1p-130, -0x1p-133, 0.0, -0.0, 3e38};
  for (std::int64_t i = 0; i < 8 && rows > 8; ++i) {
    matrix.set((8 + 17 * i * i) % (rows * cols), special[i]);
  }
  return matrix;
}

inline std::vector<double> row_of(const Matrix& matrix, std::int64_t r) {
  std::vector<double> values;
  for (std::int64_t c = 0; c < matrix.cols(); ++c) values.push_back(matrix.at(r, c));
  return values;
}

}  // namespace fp8lab::test
