#include "emulation/ops/checks.hpp"

#include <algorithm>

#include "emulation/base/error.hpp"

namespace fp8lab {
namespace {

std::string shape_of(std::int64_t rows, std::int64_t cols) {
  return std::string("(") + std::to_string(rows) + ", " + std::to_string(cols) + ")";
}

}  // namespace

std::string describe(const TensorView& view) {
  return std::string(name_of(view.dtype)) + " " + shape_of(view.rows, view.cols);
}

void Checks::fail(const std::string& message) const { throw Error(operation_ + ": " + message); }

void Checks::require(bool condition, const std::string& message) const {
  if (!condition) fail(message);
}

void Checks::tensor(std::string_view name, const TensorView& view, std::int64_t rows,
                    std::int64_t cols, std::initializer_list<DType> accepted) const {
  const bool type_fits = std::find(accepted.begin(), accepted.end(), view.dtype) != accepted.end();
  if (view.has_memory() && type_fits && view.rows == rows && view.cols == cols) return;
  std::string types;
  for (const DType dtype : accepted) {
    types += (types.empty() ? "" : " or ") + std::string(name_of(dtype));
  }
  fail(std::string(name) + " is " + (view.has_memory() ? describe(view) : "missing") +
       ", expected " + types + " " + shape_of(rows, cols));
}

void Checks::vector(std::string_view name, const TensorView& view, std::int64_t length,
                    std::initializer_list<DType> accepted) const {
  tensor(name, view, 1, length, accepted);
}

void Checks::activation(std::string_view name, const TensorView& view, std::int64_t rows,
                        std::int64_t cols) const {
  tensor(name, view, rows, cols, {DType::bf16, DType::f32});
}

void Checks::contiguous(std::string_view name, const TensorView& view) const {
  if (!view.contiguous()) {
    fail(std::string(name) + " " + describe(view) + " must be contiguous; its row stride is " +
         std::to_string(view.row_stride));
  }
}

}  // namespace fp8lab
