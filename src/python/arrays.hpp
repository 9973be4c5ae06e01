// Converts NumPy arrays to and from the types of the emulator.
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
#include "src/io/tensors/npy.hpp"

namespace fp8lab::python {

/// Returns the format of an ml_dtypes type of at most 8 bits, by its name: float8_NAME has the
/// format NAME.
std::optional<numerics::FormatSpec> format_of_type(std::string_view type);

/// A copy of a NumPy array in row-major order.
struct Input {
  NpyArray matrix;                            ///< (rows, cols), or (1, size) for any shape
  std::vector<pybind11::ssize_t> shape;       ///< shape of the caller's array
  std::optional<numerics::FormatSpec> codes;  ///< format of the codes of an ml_dtypes FP8 array
};

/// A NumPy array in row-major order; a copy only if the caller's array has another order.
struct Borrowed {
  pybind11::array owner;  ///< keeps the memory
  TensorView view;        ///< (1, size); f32, bf16 or u8
  std::optional<numerics::FormatSpec> codes;
};

/// Borrows an array of a type that copy_array accepts. Precondition: no one writes to the array
/// while the view is in use.
Borrowed borrow_array(pybind11::handle object, const std::string& name);

/// borrow_array of a two-dimensional array with at least one element.
Borrowed borrow_matrix(pybind11::handle object, const std::string& name);

/// Copies an array of any shape. Accepted types: float32; float16, widened exactly; uint16 (the
/// bits of bf16) and ml_dtypes.bfloat16; uint8 (codes) and the ml_dtypes types of at most 8 bits
/// whose format is in emulation/numerics. Throws Error that names the array for other types and
/// other byte orders.
Input copy_array(pybind11::handle object, const std::string& name);

/// copy_array of a two-dimensional array with at least one element.
Input copy_matrix(pybind11::handle object, const std::string& name);

/// Throws Error if `codes`, the format of an array's type, is not `format`. Plain uint8 arrays have
/// no such format and are accepted.
void check_codes_are(const std::string& name, const std::optional<numerics::FormatSpec>& codes,
                     const numerics::FormatSpec& format);

/// Returns a matrix of float32 or uint8 elements as a new NumPy array of `shape`.
pybind11::array to_numpy(const NpyArray& array, const std::vector<pybind11::ssize_t>& shape);
pybind11::array to_numpy(const NpyArray& array);

}  // namespace fp8lab::python
