#include "src/python/arrays.hpp"

#include <fmt/format.h>

#include <cstring>
#include <optional>
#include <string_view>

#include "emulation/base/error.hpp"
#include "emulation/spec/quant_spec.hpp"

namespace fp8lab::python {
namespace {

namespace py = pybind11;

/// The storage type of the elements of a NumPy type, and the format of their codes.
struct Elements {
  DType dtype = DType::u8;
  std::optional<numerics::FormatSpec> codes = {};
};

struct Renamed {
  std::string_view theirs, ours;
};

/// Types of ml_dtypes whose names differ from the names of the same formats here: e4m3 and e3m4 of
/// ml_dtypes are the IEEE-like formats, its fn formats below 8 bits have no NaN, and its e8m0fnu is
/// the OCP format.
constexpr Renamed kRenamed[] = {
    {"float8_e4m3", "e4m3b7"},  {"float8_e3m4", "e3m4b3"}, {"float8_e4m3b11fnuz", "e4m3fnuzb11"},
    {"float6_e2m3fn", "e2m3"},  {"float6_e3m2fn", "e3m2"}, {"float4_e2m1fn", "e2m1"},
    {"float8_e8m0fnu", "e8m0"},
};

Elements elements_of(const py::array& array, const std::string& name) {
  const auto type = array.dtype().attr("name").cast<std::string>();
  if (!array.dtype().attr("isnative").cast<bool>()) {
    throw Error(fmt::format("{}: {} of the other byte order; accepted: native", name, type));
  }
  if (type == "float32" || type == "float16") return {DType::f32};
  if (type == "bfloat16" || type == "uint16") return {DType::bf16};
  if (type == "uint8") return {};
  if (const auto codes = format_of_type(type)) return {DType::u8, codes};
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

std::optional<numerics::FormatSpec> format_of_type(std::string_view type) {
  for (const Renamed& renamed : kRenamed) {
    if (renamed.theirs == type) return format_by_name(renamed.ours);
  }
  constexpr std::string_view kPrefix = "float8_";
  if (!type.starts_with(kPrefix)) return std::nullopt;
  return format_by_name(type.substr(kPrefix.size()));
}

Borrowed borrow_array(py::handle object, const std::string& name) {
  if (!py::isinstance<py::array>(object)) {
    throw Error(fmt::format("{}: a NumPy array is needed, not {}", name,
                            py::type::handle_of(object).attr("__name__").cast<std::string>()));
  }
  auto array = py::reinterpret_borrow<py::array>(object);
  const Elements elements = elements_of(array, name);
  if (elements.dtype == DType::f32)
    array = array.attr("astype")("float32", py::arg("copy") = false);
  Borrowed borrowed;
  borrowed.owner = py::module_::import("numpy").attr("ascontiguousarray")(array);
  // The view is only read; TensorView has no const form.
  borrowed.view = {const_cast<void*>(borrowed.owner.data()), elements.dtype, 1, array.size(),
                   array.size()};
  borrowed.codes = elements.codes;
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

void check_codes_are(const std::string& name, const std::optional<numerics::FormatSpec>& codes,
                     const numerics::FormatSpec& format) {
  if (!codes || *codes == format) return;
  throw Error(fmt::format("{}: holds {} codes; accepted: codes of {}", name, format_name(*codes),
                          format_name(format)));
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
