// NumPy arrays in and out of the bindings.
#pragma once

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "emulation/base/tensor_view.hpp"
#include "emulation/numerics/format.hpp"
#include "src/io/npy.hpp"

namespace fp8lab::python {

/// The format of a narrow type of ml_dtypes, by the type's name: float8_NAME has the format NAME.
std::optional<numerics::FormatSpec> format_of_type(std::string_view type);

/// A copy of a NumPy array in row-major order.
struct Input {
  NpyArray matrix;                            ///< (rows, cols), or (1, size) where `shape` is free
  std::vector<pybind11::ssize_t> shape;       ///< as the caller gave it
  std::optional<numerics::FormatSpec> codes;  ///< format of the codes of an ml_dtypes FP8 array
};

/// A NumPy array in row-major order, without a copy where it is that already.
struct Borrowed {
  pybind11::array owner;  ///< keeps the memory
  TensorView view;        ///< (1, size); f32, bf16 or u8
  std::optional<numerics::FormatSpec> codes;
};

/// The array, which nobody may write to before the view is no longer used. Types: see copy_array.
Borrowed borrow_array(pybind11::handle object, const std::string& name);

/// borrow_array of a two-dimensional array with at least one element.
Borrowed borrow_matrix(pybind11::handle object, const std::string& name);

/// Copies an array of any shape. Types: float32; float16, which is widened exactly; uint16, which
/// is the bits of bf16, and ml_dtypes.bfloat16; uint8, which is codes, and the types of ml_dtypes
/// of at most 8 bits that emulation/numerics has. Throws Error naming the array for other types and
/// other byte orders.
Input copy_array(pybind11::handle object, const std::string& name);

/// copy_array of a two-dimensional array with at least one element.
Input copy_matrix(pybind11::handle object, const std::string& name);

/// Throws Error where an array of `codes` is not of `format`. Plain uint8 has none and passes.
void check_codes_are(const std::string& name, const std::optional<numerics::FormatSpec>& codes,
                     const numerics::FormatSpec& format);

/// A matrix of float32 or uint8 elements as a new NumPy array of `shape`.
pybind11::array to_numpy(const NpyArray& array, const std::vector<pybind11::ssize_t>& shape);
pybind11::array to_numpy(const NpyArray& array);

}  // namespace fp8lab::python
