#include "src/interface/arrays.hpp"

#include <fmt/format.h>

#include <cstring>

#include "emulation/base/error.hpp"
#include "emulation/base/input_error.hpp"
#include "emulation/numerics/codec.hpp"
#include "emulation/spec/quant_spec.hpp"

namespace fp8lab::interface {
namespace {

/// The storage type of the elements of a NumPy type, and the format of their codes.
struct ElementType {
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

ElementType element_type(std::string_view type, const std::string& name) {
  if (type == "float32" || type == "float16") return {DType::f32};
  if (type == "bfloat16" || type == "uint16") return {DType::bf16};
  if (type == "uint8") return {};
  if (const auto codes = format_of_type(type)) return {DType::u8, codes};
  throw InputError({.where = name,
                    .reason = fmt::format("elements are {}", type),
                    .accepted = "float32, float16, bfloat16 or uint16 (bits of bf16), uint8 "
                                "(codes) or a narrow float of ml_dtypes"});
}

std::string shape_text(const Shape& shape) {
  std::string text;
  for (const std::int64_t extent : shape)
    text += fmt::format("{}{}", text.empty() ? "" : ", ", extent);
  return "(" + text + ")";
}

std::int64_t count_of(const Shape& shape) {
  std::int64_t count = 1;
  for (const std::int64_t extent : shape) count *= extent;
  return count;
}

/// Returns true if the elements lie in row-major order without gaps.
bool is_row_major(const fp8lab_array& array, const Shape& shape, std::size_t size) {
  if (array.strides == nullptr || count_of(shape) == 0) return true;
  auto expected = static_cast<std::int64_t>(size);
  for (std::size_t i = shape.size(); i-- > 0;) {
    if (shape[i] != 1 && array.strides[i] != expected) return false;
    expected *= shape[i];
  }
  return true;
}

/// Copies the elements of dimensions [dimension, rank) at `source`; returns the end of the copy.
std::byte* gather(const fp8lab_array& array, const Shape& shape, std::size_t dimension,
                  std::size_t size, const std::byte* source, std::byte* destination) {
  if (dimension == shape.size()) {
    std::memcpy(destination, source, size);
    return destination + size;
  }
  for (std::int64_t i = 0; i < shape[dimension]; ++i) {
    destination = gather(array, shape, dimension + 1, size, source + i * array.strides[dimension],
                         destination);
  }
  return destination;
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

Shape shape_of(const fp8lab_array* array, const std::string& name) {
  if (array == nullptr || array->dtype == nullptr || array->rank < 0 ||
      (array->rank > 0 && array->shape == nullptr)) {
    throw InputError(
        {.where = name, .reason = "no array is given", .accepted = "one with a type and a shape"});
  }
  if (array->device != FP8LAB_CPU) {
    throw InputError({.where = name,
                      .reason = fmt::format("is in memory of device {}:{}",
                                            array->device == FP8LAB_CUDA ? "cuda" : "other",
                                            array->device_index),
                      .accepted = "the host's"});
  }
  const Shape shape(array->shape, array->shape + array->rank);
  for (const std::int64_t extent : shape) {
    if (extent < 0) {
      throw InputError({.where = name,
                        .noun = "shape",
                        .found = shape_text(shape),
                        .reason = "has a negative extent"});
    }
  }
  if (array->data == nullptr && count_of(shape) > 0) {
    throw InputError({.where = name, .reason = "has no memory"});
  }
  return shape;
}

Elements row_major(const fp8lab_array* array, const std::string& name, std::size_t size) {
  const Shape shape = shape_of(array, name);
  Elements elements;
  elements.count = count_of(shape);
  elements.data = array->data;
  const bool is_aligned = reinterpret_cast<std::uintptr_t>(array->data) % size == 0;
  if (is_row_major(*array, shape, size) && is_aligned) return elements;
  elements.copy.resize(static_cast<std::size_t>(elements.count) * size);
  if (is_row_major(*array, shape, size)) {
    std::memcpy(elements.copy.data(), array->data, elements.copy.size());
  } else {
    gather(*array, shape, 0, size, static_cast<const std::byte*>(array->data),
           elements.copy.data());
  }
  elements.data = elements.copy.data();
  return elements;
}

Input read_array(const fp8lab_array* array, const std::string& name) {
  Input input;
  input.shape = shape_of(array, name);
  const std::string_view type = array->dtype;
  const ElementType elements = element_type(type, name);
  const bool is_half = type == "float16";
  Elements values = row_major(array, name, is_half ? 2 : size_of(elements.dtype));
  if (is_half) {
    std::vector<std::byte> wide(static_cast<std::size_t>(values.count) * sizeof(float));
    for (std::int64_t i = 0; i < values.count; ++i) {
      const std::uint16_t code = static_cast<const std::uint16_t*>(values.data)[i];
      const float value = numerics::decode(numerics::kFP16, code);
      std::memcpy(wide.data() + static_cast<std::size_t>(i) * sizeof value, &value, sizeof value);
    }
    values.copy = std::move(wide);
    values.data = values.copy.data();
  }
  input.copy = std::move(values.copy);
  // The view is only read; TensorView has no const form.
  input.view = {const_cast<void*>(values.data), elements.dtype, 1, values.count, values.count};
  input.codes = elements.codes;
  return input;
}

TensorView matrix_without_memory(const fp8lab_array* array, const std::string& name) {
  const Shape shape = shape_of(array, name);
  const ElementType elements = element_type(array->dtype, name);
  if (shape.size() != 2 || count_of(shape) == 0) {
    throw InputError({.where = name,
                      .noun = "shape",
                      .found = shape_text(shape),
                      .accepted = "(rows, columns) with at least one element"});
  }
  return TensorView::without_memory(elements.dtype, shape[0], shape[1]);
}

Input read_matrix(const fp8lab_array* array, const std::string& name) {
  const TensorView matrix = matrix_without_memory(array, name);
  Input input = read_array(array, name);
  input.view.rows = matrix.rows;
  input.view.cols = input.view.row_stride = matrix.cols;
  return input;
}

std::optional<NpyArray> read_scales(const fp8lab_array* array, const std::string& name) {
  if (array == nullptr) return std::nullopt;
  const Input input = read_matrix(array, name);
  NpyArray scales;
  scales.dtype = input.view.dtype;
  scales.rows = input.view.rows;
  scales.cols = input.view.cols;
  const auto* const bytes = static_cast<const std::byte*>(input.view.data);
  scales.data.assign(
      bytes, bytes + static_cast<std::size_t>(input.view.size()) * size_of(input.view.dtype));
  return scales;
}

void check_codes_are(const std::string& name, const std::optional<numerics::FormatSpec>& codes,
                     const numerics::FormatSpec& format) {
  if (!codes || *codes == format) return;
  throw InputError({.where = name,
                    .reason = fmt::format("holds {} codes", format_name(*codes)),
                    .accepted = fmt::format("codes of {}", format_name(format))});
}

void* result_memory(const fp8lab_array* array, const std::string& name, std::string_view dtype,
                    const Shape& shape) {
  const Shape given = shape_of(array, name);
  const std::size_t size = dtype == "uint8"     ? 1
                           : dtype == "uint16"  ? 2
                           : dtype == "float64" ? 8
                                                : 4;
  if (array->dtype == dtype && given == shape && is_row_major(*array, given, size)) {
    return array->data;
  }
  throw InputError(
      {.where = name,
       .reason = fmt::format("is {} {}", array->dtype, shape_text(given)),
       .accepted = fmt::format("{} {} in row-major order without gaps", dtype, shape_text(shape))});
}

TensorView result_matrix(const fp8lab_array* array, const std::string& name, DType dtype,
                         std::int64_t rows, std::int64_t cols) {
  FP8LAB_ASSERT(dtype == DType::u8 || dtype == DType::f32);
  void* const data =
      result_memory(array, name, dtype == DType::u8 ? "uint8" : "float32", {rows, cols});
  return {data, dtype, rows, cols, cols};
}

}  // namespace fp8lab::interface
