// Checks of shapes and types, with the same messages for every operation.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>

#include "emulation/base/tensor_view.hpp"

namespace fp8lab {

/// Returns a text such as "f32 (3, 128)".
std::string describe(const TensorView& view);

/// Checks the tensors of one operation. Every failure throws Error that starts with `operation`.
class Checks {
 public:
  explicit Checks(std::string_view operation) : operation_(operation) {}

  /// Requires a tensor of shape (rows, cols) and of one of the accepted types.
  void tensor(std::string_view name, const TensorView& view, std::int64_t rows, std::int64_t cols,
              std::initializer_list<DType> accepted) const;
  /// As `tensor`, for a vector: one contiguous row.
  void vector(std::string_view name, const TensorView& view, std::int64_t length,
              std::initializer_list<DType> accepted) const;
  /// As `tensor`, bf16 or f32.
  void activation(std::string_view name, const TensorView& view, std::int64_t rows,
                  std::int64_t cols) const;
  /// Requires rows without gaps between them.
  void contiguous(std::string_view name, const TensorView& view) const;
  /// Throws Error "operation: message" unless `condition`.
  void require(bool condition, const std::string& message) const;
  [[noreturn]] void fail(const std::string& message) const;

 private:
  std::string operation_;
};

}  // namespace fp8lab
