// Python: encode and decode.
#include <fmt/format.h>

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "emulation/base/error.hpp"
#include "emulation/cpu/operations.hpp"
#include "emulation/numerics/codec.hpp"
#include "emulation/numerics/philox.hpp"
#include "emulation/ops/quantize/operand_checks.hpp"
#include "emulation/spec/recipe_names.hpp"
#include "src/config/reading/nearest_name.hpp"
#include "src/python/arrays.hpp"
#include "src/python/bindings.hpp"

namespace fp8lab::python {
namespace {

namespace py = pybind11;
using numerics::FormatSpec;

FormatSpec known_format(const std::string& name) {
  const std::optional<FormatSpec> format = format_by_name(name);
  // Ambiguous, as in recipes: e4m3 often means e4m3fn.
  if (!format || name == "e4m3") {
    throw Error(
        fmt::format("format '{}' is unknown; accepted: e4m3fn, e5m2, e3m4, e2m3, e3m2, "
                    "e2m1, e8m0, bf16, fp16, fp32, or eXmY[fn|f][bN] such as e4m3b7",
                    name));
  }
  return *format;
}

template <class T, std::size_t N>
T known_word(const std::array<Named<T>, N>& words, const std::string& what,
             const std::string& word) {
  std::string names;
  for (const Named<T>& entry : words) {
    if (entry.name == word) return entry.value;
    names += fmt::format("{}{}", names.empty() ? "" : ", ", entry.name);
  }
  throw Error(fmt::format("{} '{}' is unknown{}; accepted: {}", what, word,
                          did_you_mean(word, names), names));
}

struct Cast {
  FormatSpec format;
  numerics::Rounding rounding;
  numerics::Overflow overflow;
  std::uint64_t seed;
};

std::vector<py::ssize_t> shape_of(const py::array& array) {
  return {array.shape(), array.shape() + array.ndim()};
}

template <class Code>
py::array encode_values(const TensorView& source, const std::vector<py::ssize_t>& shape,
                        const Cast& cast) {
  const auto count = static_cast<std::size_t>(source.cols);
  const auto* values = static_cast<const float*>(source.data);
  const auto* halves = static_cast<const std::uint16_t*>(source.data);
  const bool wide = source.dtype == DType::f32;
  const bool stochastic = cast.rounding == numerics::Rounding::stochastic;
  py::array_t<Code> result(shape);
  Code* const codes = result.mutable_data();
  const py::gil_scoped_release unlocked;
  for (std::size_t i = 0; i < count; ++i) {
    const float value = wide ? values[i] : numerics::from_bf16(halves[i]);
    const std::uint32_t bits = stochastic ? numerics::random_bits(cast.seed, 0, 0, 0, i) : 0u;
    codes[i] = static_cast<Code>(numerics::encode(cast.format, numerics::float_bits(value),
                                                  cast.rounding, cast.overflow, bits));
  }
  return result;
}

/// Like encode_values, but uses the vector kernels: quantizes without a scale.
py::array quantize_values(const TensorView& source, const std::vector<py::ssize_t>& shape,
                          const QuantSpec& spec, std::uint64_t seed) {
  py::array_t<std::uint8_t> result(shape);
  if (source.cols == 0) return result;
  QuantizedOperand operand;
  operand.spec = spec;
  operand.rows = source.rows;
  operand.k = source.cols;
  operand.codes = {result.mutable_data(), DType::u8, source.rows, source.cols, source.cols};
  operand.key.seed = seed;
  const py::gil_scoped_release unlocked;
  cpu::run(ops::Quantize{.source = source, .operand = operand});
  return result;
}

py::array encode(const py::object& x, const std::string& format, const std::string& rounding,
                 const std::string& overflow, std::uint64_t seed) {
  const Cast cast{known_format(format), known_word(kRoundingNames, "rounding", rounding),
                  known_word(kOverflowNames, "overflow", overflow), seed};
  const Borrowed input = borrow_array(x, "x");
  if (input.view.dtype == DType::u8) {
    throw Error("x: holds codes; accepted: float32, float16, bfloat16 or uint16 (bits of bf16)");
  }
  const std::vector<py::ssize_t> shape = shape_of(py::reinterpret_borrow<py::array>(x));
  QuantSpec spec;
  spec.format = cast.format;
  spec.rounding = cast.rounding;
  spec.overflow = cast.overflow;
  const bool is_element = spec.is_quantized() && supports_quantization(spec);
  if (is_element) return quantize_values(input.view, shape, spec, seed);
  if (cast.format.bits() <= 8) return encode_values<std::uint8_t>(input.view, shape, cast);
  if (cast.format.bits() <= 16) return encode_values<std::uint16_t>(input.view, shape, cast);
  return encode_values<std::uint32_t>(input.view, shape, cast);
}

/// Throws Error if a code has more bits than the format.
template <class Code>
void check_width(const Code* codes, std::size_t count, const FormatSpec& format) {
  const std::uint64_t limit = std::uint64_t{1} << format.bits();
  for (std::size_t i = 0; i < count; ++i) {
    if (codes[i] < limit) continue;
    throw Error(
        fmt::format("codes: element {} is {:#x}, but codes of {} have {} bits; accepted: "
                    "one code in each element, below {:#x}",
                    i, codes[i], format_name(format), format.bits(), limit));
  }
}

/// Decodes unsigned codes of any width.
template <class Code>
py::array decode_codes(const py::array& codes, const FormatSpec& format) {
  const auto contiguous = py::array_t<Code, py::array::c_style>(codes);
  const Code* const source = contiguous.data();
  const auto count = static_cast<std::size_t>(contiguous.size());
  if (format.bits() < 8 * static_cast<int>(sizeof(Code))) check_width(source, count, format);
  py::array_t<float> result(shape_of(codes));
  float* const values = result.mutable_data();
  const py::gil_scoped_release unlocked;
  if constexpr (sizeof(Code) == 1) {
    std::array<float, 256> table{};
    for (std::uint32_t code = 0; code < 256; ++code) table[code] = numerics::decode(format, code);
    for (std::size_t i = 0; i < count; ++i) values[i] = table[source[i]];
    return result;
  }
  for (std::size_t i = 0; i < count; ++i) values[i] = numerics::decode(format, source[i]);
  return result;
}

/// Returns true if the elements of NumPy type `type` are codes of `format`.
bool is_type_of(const std::string& type, const FormatSpec& format) {
  if (type == "bfloat16") return format == numerics::kBF16;
  if (type == "float16") return format == numerics::kFP16;
  if (type == "float32") return format == numerics::kFP32;
  return format_of_type(type) == format;
}

py::array decode(const py::object& codes, const std::string& format_name_) {
  const FormatSpec format = known_format(format_name_);
  if (!py::isinstance<py::array>(codes)) throw Error("codes: a NumPy array is needed");
  auto array = py::reinterpret_borrow<py::array>(codes);
  const auto type = array.dtype().attr("name").cast<std::string>();
  const char* const expected = format.bits() <= 8    ? "uint8"
                               : format.bits() <= 16 ? "uint16"
                                                     : "uint32";
  const bool native = array.dtype().attr("isnative").cast<bool>();
  if (native && is_type_of(type, format)) {
    array = array.attr("view")(expected);
  } else if (type != expected || !native) {
    throw Error(fmt::format("codes: elements are {}; {} needs {}", type, format_name_, expected));
  }
  if (format.bits() <= 8) return decode_codes<std::uint8_t>(array, format);
  if (format.bits() <= 16) return decode_codes<std::uint16_t>(array, format);
  return decode_codes<std::uint32_t>(array, format);
}

}  // namespace

void bind_codec(py::module_& module) {
  module.def("encode", &encode);
  module.def("decode", &decode);
}

}  // namespace fp8lab::python
