// Python: QuantSpec, quantize and dequantize.
#include <fmt/format.h>
#include <pybind11/operators.h>
#include <pybind11/stl.h>

#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "emulation/base/error.hpp"
#include "emulation/spec/recipe_names.hpp"
#include "emulation/spec/spec_fields.hpp"
#include "src/backend/factory.hpp"
#include "src/cli/inputs/matrices.hpp"
#include "src/config/recipe/spec_words.hpp"
#include "src/io/hdf5/run_schema.hpp"
#include "src/python/arrays.hpp"
#include "src/python/bindings.hpp"

namespace fp8lab::python {
namespace {

namespace py = pybind11;

QuantSpec spec_of_keywords(const py::kwargs& keywords) {
  std::vector<SpecKey> keys;
  for (const auto& [name, value] : keywords) {
    SpecKey& key = keys.emplace_back();
    key.first = name.cast<std::string>();
    if (py::isinstance<py::str>(value)) {
      key.second = value.cast<std::string>();
    } else if (py::isinstance<py::int_>(value) && !py::isinstance<py::bool_>(value)) {
      key.second = value.cast<std::int64_t>();
    } else if (py::isinstance<py::float_>(value)) {
      key.second = value.cast<double>();
    } else {
      throw Error(fmt::format("QuantSpec: '{}' is neither a word nor a number", key.first));
    }
  }
  return parse_quant_keys(keys);
}

py::dict statistics_of(Backend& backend, const TensorView& x, bool transpose,
                       const QuantizedOperand& operand) {
  std::vector<std::byte> record(sizeof(OperandStatistics));
  {
    const py::gil_scoped_release unlocked;
    const TensorView there = backend.allocate(DType::u8, 1, sizeof(OperandStatistics));
    backend.run(ops::MeasureOperand{
        .source = x, .transpose = transpose, .operand = operand, .record = there});
    backend.download(record.data(), there);
  }
  py::dict result;
  for (const StatisticField& field : statistic_fields()) {
    std::vector<double> values(static_cast<std::size_t>(field.width));
    std::memcpy(values.data(), record.data() + field.offset, values.size() * sizeof(double));
    if (field.width == 1) {
      result[field.name] = values.front();
    } else {
      result[field.name] = py::array_t<double>(field.width, values.data());
    }
  }
  result["scale_bits_per_element"] = scale_bits_per_element(operand.spec, operand.rows, operand.k);
  return result;
}

py::object python_value(const FieldValue& value) {
  if (const auto* text = std::get_if<std::string>(&value)) return py::str(*text);
  if (const auto* number = std::get_if<double>(&value)) return py::float_(*number);
  return py::int_(std::get<std::int64_t>(value));
}

/// Returns a new uninitialised NumPy array (rows, cols) and sets `view` to its memory.
template <class T>
py::array new_matrix(std::int64_t rows, std::int64_t cols, TensorView& view) {
  py::array_t<T> array({rows, cols});
  view = {array.mutable_data(), sizeof(T) == 1 ? DType::u8 : DType::f32, rows, cols, cols};
  return array;
}

py::tuple quantize(const py::object& x, const QuantSpec& spec, bool transpose, std::uint64_t seed,
                   bool statistics, int threads) {
  const Borrowed input = borrow_matrix(x, "x");
  const std::unique_ptr<Backend> backend = make_backend("cpu", threads);
  const TensorView& source = input.view;
  QuantizedOperand operand = QuantizedOperand::without_memory(
      spec, transpose ? source.cols : source.rows, transpose ? source.rows : source.cols);
  const Support support = backend->supports(
      ops::Quantize{.source = source, .transpose = transpose, .operand = operand});
  if (!support) throw Error("quantizer " + label(spec) + ": " + support.reason);
  // Codes and scales are written directly to NumPy arrays; bf16 values are widened first.
  py::array code_array;
  py::object scale_array = py::none();
  if (spec.is_quantized()) {
    code_array = new_matrix<std::uint8_t>(operand.rows, operand.k, operand.codes);
  } else {
    operand.codes = backend->allocate(spec.storage(), operand.rows, operand.k);
  }
  if (spec.has_scale()) {
    scale_array =
        new_matrix<float>(spec.tile_rows(operand.rows), spec.scale_cols(operand.k), operand.scales);
  }
  {
    const py::gil_scoped_release unlocked;
    quantize_into(*backend, source, transpose, seed, "x", std::nullopt, operand);
  }
  if (!spec.is_quantized()) code_array = to_numpy(cli::read_back(*backend, operand.codes));
  const py::object report =
      statistics ? py::object(statistics_of(*backend, source, transpose, operand)) : py::none();
  return py::make_tuple(code_array, scale_array, report);
}

py::array dequantize(const py::object& codes, const py::object& scales, const QuantSpec& spec,
                     int threads) {
  Input input = copy_matrix(codes, "codes");
  if (input.matrix.dtype != DType::u8) {
    throw Error("codes: accepted: uint8, or the type of ml_dtypes of the format");
  }
  check_codes_are("codes", input.codes, spec.format);
  std::optional<NpyArray> scale_matrix;
  if (!scales.is_none()) scale_matrix = copy_matrix(scales, "scales").matrix;
  const std::unique_ptr<Backend> backend = make_backend("cpu", threads);
  NpyArray values;
  {
    const py::gil_scoped_release unlocked;
    const QuantizedOperand operand =
        cli::make_operand(*backend, input.matrix, "codes", scale_matrix, "scales", spec, 0).operand;
    const TensorView decoded = backend->allocate(DType::f32, operand.rows, operand.k);
    backend->run(ops::Dequantize{operand, false, decoded});
    values = cli::read_back(*backend, decoded);
  }
  return to_numpy(values);
}

}  // namespace

void bind_quantization(py::module_& module) {
  py::class_<QuantSpec> bound(
      module, "QuantSpec",
      "How one matrix is quantized: QuantSpec('e4m3fn/1x128/pow2'), QuantSpec("
      "'infir2:fprop.x'), or keywords "
      "named as the keys of a recipe's slot table.");
  bound.def(py::init(&parse_quant_spec), py::arg("words"), py::pos_only())
      .def(py::init(&spec_of_keywords))
      .def("__repr__",
           [](const QuantSpec& spec) { return fmt::format("QuantSpec('{}')", label(spec)); })
      .def(py::self == py::self)
      .def_property_readonly("label", [](const QuantSpec& spec) { return label(spec); });
  for (const Field<QuantSpec>& field : quant_fields()) {
    if (!describes_one_operand(field.word)) continue;
    bound.def_property_readonly(
        field.word.c_str(),
        [&field](const QuantSpec& spec) { return python_value(field.get(spec)); },
        field.help.c_str());
  }
  module.def("quantize", &quantize);
  module.def("dequantize", &dequantize);
}

}  // namespace fp8lab::python
