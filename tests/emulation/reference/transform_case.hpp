// What the tests of transforms share: matrices, and operands with nothing but a transform and a
// key.
#pragma once

#include <catch2/catch.hpp>

#include <cstdint>
#include <optional>
#include <string>

#include "emulation/reference/transform.hpp"
#include "tests/emulation/cpu/quantize/quantize_reference.hpp"

namespace fp8lab::test {

inline constexpr RandomKey kKey{11, 22, 33, 0, 44};

inline Transform named(const std::string& name) {
  const std::optional<Transform> transform = transform_from_name(name);
  REQUIRE(transform);
  return *transform;
}

/// transformed and undo_transform of an operand that has nothing but a transform and a key.
inline QuantizedOperand only(const Transform& transform, const RandomKey& key) {
  QuantizedOperand operand;
  operand.spec.transform = transform;
  operand.key = key;
  return operand;
}
inline reference::FloatMatrix transformed(const TensorView& source, bool transpose,
                                          const Transform& transform, const RandomKey& key) {
  return reference::transformed(source, transpose, only(transform, key));
}
inline void undo_transform(const TensorView& values, bool transpose, const Transform& transform,
                           const RandomKey& key) {
  reference::undo_transform(values, transpose, only(transform, key));
}

inline float at(const TensorView& view, std::int64_t r, std::int64_t c) {
  return view.row<float>(r)[c];
}

/// Whole numbers of magnitude up to `limit`.
inline Matrix whole_numbers(std::int64_t rows, std::int64_t cols, std::uint64_t seed, int limit) {
  Matrix matrix(DType::f32, rows, cols);
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t c = 0; c < cols; ++c) {
      const std::uint32_t bits =
          numerics::random_bits(seed, 0, 0, 0, static_cast<std::uint64_t>(r * cols + c));
      matrix.set(r, c, static_cast<float>(static_cast<int>(bits % (2u * limit + 1u)) - limit));
    }
  }
  return matrix;
}

inline Matrix transpose_of(const Matrix& matrix) {
  Matrix result(DType::f32, matrix.cols(), matrix.rows());
  for (std::int64_t r = 0; r < matrix.rows(); ++r) {
    for (std::int64_t c = 0; c < matrix.cols(); ++c) result.set(c, r, matrix.at(r, c));
  }
  return result;
}

/// Gaussian-like values, every 32nd channel 60 times as large.
inline Matrix with_outliers(std::int64_t rows, std::int64_t cols, std::uint64_t seed) {
  Matrix x(DType::f32, rows, cols);
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t c = 0; c < cols; ++c) {
      float sum = 0.0f;
      for (std::uint64_t i = 0; i < 8; ++i) {
        const auto index = static_cast<std::uint64_t>(r * cols + c) * 8 + i;
        sum += static_cast<float>(numerics::random_bits(seed, 1, 0, 0, index)) * 0x1p-32f - 0.5f;
      }
      x.set(r, c, c % 32 == 5 ? 60.0f * sum : sum);
    }
  }
  return x;
}

}  // namespace fp8lab::test
