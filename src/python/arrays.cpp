#include "src/python/arrays.hpp"

#include <fmt/format.h>

#include <array>
#include <cstring>
#include <string_view>

#include "emulation/base/error.hpp"
#include "emulation/spec/quant_spec.hpp"

namespace fp8lab::python {
namespace {

namespace py = pybind11;

/// How the elements of a NumPy type are stored, and what their codes mean.
struct NumpyType {
  std::string_view name;
  DType dtype;
  std::string_view codes = {};
};

/// The names of ml_dtypes differ from ours: its e4m3 and e3m4 are the IEEE-like formats.
constexpr std::array<NumpyType, 12> kNumpyTypes = {{
    {"float32", DType::f32},
    {"float16", DType::f32},
    {"uint16", DType::bf16},
    {"bfloat16", DType::bf16},
    {"uint8", DType::u8},
    {"float8_e4m3fn", DType::u8, "e4m3fn"},
    {"float8_e5m2", DType::u8, "e5m2"},
    {"float8_e4m3", DType::u8, "e4m3b7"},
    {"float8_e3m4", DType::u8, "e3m4b3"},
    {"float6_e2m3fn", DType::u8, "e2m3"},
    {"float6_e3m2fn", DType::u8, "e3m2"},
    {"float4_e2m1fn", DType::u8, "e2m1"},
}};

const NumpyType& numpy_type(const py::array& array, const std::string& name) {
  const auto type = array.dtype().attr("name").cast<std::string>();
  if (!array.dtype().attr("isnative").cast<bool>()) {
    throw Error(fmt::format("{}: {} of the other byte order; accepted: native", name, type));
  }
  for (const NumpyType& known : kNumpyTypes) {
    if (known.name == type) return known;
  }
  throw Error(
      fmt::format("{}: elements are {}; accepted: float32, float16, bfloat16 or uint16 (bits of "
                  "bf16), uint8 (codes) or a narrow float of ml_dtypes",
                  name, type));
}

std::string shape_text(const std::vector<py::ssize_t>& shape) {
  std::string text;
  for (const py::ssize_t extent : shape)
    text += fmt::format("{}{}", text.empty() ? "" : ", ", extent);
  return "(" + text + ")";
}

std::vector<py::ssize_t> shape_of(py::handle object) {
  const auto array = py::reinterpret_borrow<py::array>(object);
  return {array.shape(), array.shape() + array.ndim()};
}

}  // namespace

Borrowed borrow_array(py::handle object, const std::string& name) {
  if (!py::isinstance<py::array>(object)) {
    throw Error(fmt::format("{}: a NumPy array is needed, not {}", name,
                            py::type::handle_of(object).attr("__name__").cast<std::string>()));
  }
  auto array = py::reinterpret_borrow<py::array>(object);
  const NumpyType& type = numpy_type(array, name);
  if (type.name == "float16") array = array.attr("astype")("float32");
  Borrowed borrowed;
  borrowed.owner = py::module_::import("numpy").attr("ascontiguousarray")(array);
  // A view is read only in use; TensorView has no constant form.
  borrowed.view = {const_cast<void*>(borrowed.owner.data()), type.dtype, 1, array.size(),
                   array.size()};
  if (!type.codes.empty()) borrowed.codes = format_by_name(type.codes);
  return borrowed;
}

Borrowed borrow_matrix(py::handle object, const std::string& name) {
  Borrowed borrowed = borrow_array(object, name);
  const std::vector<py::ssize_t> shape = shape_of(object);
  if (shape.size() != 2 || borrowed.view.cols == 0) {
    throw Error(fmt::format("{}: shape {}; accepted: (rows, columns) with at least one element",
                            name, shape_text(shape)));
  }
  borrowed.view.rows = shape[0];
  borrowed.view.cols = borrowed.view.row_stride = shape[1];
  return borrowed;
}

Input copy_array(py::handle object, const std::string& name) {
  const Borrowed borrowed = borrow_array(object, name);
  Input input;
  input.shape = shape_of(object);
  input.matrix.dtype = borrowed.view.dtype;
  input.matrix.rows = 1;
  input.matrix.cols = borrowed.view.cols;
  input.matrix.data.resize(static_cast<std::size_t>(borrowed.owner.nbytes()));
  if (!input.matrix.data.empty()) {
    std::memcpy(input.matrix.data.data(), borrowed.owner.data(), input.matrix.data.size());
  }
  input.codes = borrowed.codes;
  return input;
}

Input copy_matrix(py::handle object, const std::string& name) {
  const Borrowed borrowed = borrow_matrix(object, name);
  Input input = copy_array(borrowed.owner, name);
  input.matrix.rows = borrowed.view.rows;
  input.matrix.cols = borrowed.view.cols;
  input.codes = borrowed.codes;
  return input;
}

py::array to_numpy(const NpyArray& array, const std::vector<py::ssize_t>& shape) {
  const bool codes = array.dtype == DType::u8;
  FP8LAB_ASSERT(codes || array.dtype == DType::f32);
  py::array result(codes ? py::dtype::of<std::uint8_t>() : py::dtype::of<float>(), shape);
  if (!array.data.empty()) {
    std::memcpy(result.mutable_data(), array.data.data(), array.data.size());
  }
  return result;
}

py::array to_numpy(const NpyArray& array) { return to_numpy(array, {array.rows, array.cols}); }

}  // namespace fp8lab::python
