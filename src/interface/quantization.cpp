// fp8lab.h: backends and quantizers.
#include <fmt/format.h>

#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "emulation/base/error.hpp"
#include "emulation/base/error_context.hpp"
#include "emulation/base/input_error.hpp"
#include "emulation/spec/recipe_names.hpp"
#include "emulation/spec/spec_fields.hpp"
#include "src/backend/factory.hpp"
#include "src/cli/inputs/matrices.hpp"
#include "src/config/recipe/spec_words.hpp"
#include "src/interface/arrays.hpp"
#include "src/interface/guard.hpp"
#include "src/interface/handles.hpp"
#include "src/interface/keys.hpp"
#include "src/io/hdf5/run_schema.hpp"

namespace fp8lab::interface {
namespace {

/// Keys of a quantizer: the rows of the table that describe one operand.
std::vector<const Field<QuantSpec>*> operand_fields() {
  std::vector<const Field<QuantSpec>*> rows;
  for (const Field<QuantSpec>& field : quant_fields()) {
    if (describes_one_operand(field.word)) rows.push_back(&field);
  }
  return rows;
}

QuantSpec spec_of_keys(const fp8lab_key* keys, std::size_t count) {
  std::vector<SpecKey> words;
  for (std::size_t i = 0; i < count; ++i) {
    const FieldValue value = at_place("QuantSpec", [&] { return field_value(keys[i]); });
    SpecKey& word = words.emplace_back();
    word.first = keys[i].name;
    if (const auto* text = std::get_if<std::string>(&value)) {
      word.second = *text;
    } else if (const auto* integer = std::get_if<std::int64_t>(&value)) {
      word.second = *integer;
    } else {
      word.second = std::get<double>(value);
    }
  }
  return parse_quant_keys(words);
}

QuantizedOperand operand_of(const QuantSpec& spec, const TensorView& x, bool transpose) {
  return QuantizedOperand::without_memory(spec, transpose ? x.cols : x.rows,
                                          transpose ? x.rows : x.cols);
}

void measure(Backend& backend, const TensorView& x, bool transpose, const QuantizedOperand& operand,
             double* statistics) {
  const TensorView record = backend.allocate(DType::u8, 1, sizeof(OperandStatistics));
  backend.run(ops::MeasureOperand{
      .source = x, .transpose = transpose, .operand = operand, .record = record});
  std::vector<std::byte> bytes(sizeof(OperandStatistics));
  backend.download(bytes.data(), record);
  for (const StatisticField& field : statistic_fields()) {
    const auto size = static_cast<std::size_t>(field.width) * sizeof(double);
    std::memcpy(statistics, bytes.data() + field.offset, size);
    statistics += field.width;
  }
  *statistics = scale_bits_per_element(operand.spec, operand.rows, operand.k);
}

void quantize(Backend& backend, const QuantSpec& spec, const fp8lab_array* x, bool transpose,
              std::uint64_t seed, const fp8lab_array* codes, const fp8lab_array* scales,
              const fp8lab_array* statistics) {
  const CallMemory memory(backend);
  const Input input = read_matrix(x, "x");
  QuantizedOperand operand = operand_of(spec, input.view, transpose);
  const Support support = backend.supports(
      ops::Quantize{.source = input.view, .transpose = transpose, .operand = operand});
  if (!support) throw InputError({.where = "quantizer " + label(spec), .reason = support.reason});
  // Codes and scales are written directly to the caller's arrays; bf16 values are widened first.
  if (spec.is_quantized()) {
    operand.codes = result_matrix(codes, "codes", DType::u8, operand.rows, operand.k);
  } else {
    operand.codes = backend.allocate(spec.storage(), operand.rows, operand.k);
  }
  if (spec.has_scale()) {
    operand.scales = result_matrix(scales, "scales", DType::f32, spec.tile_rows(operand.rows),
                                   spec.scale_cols(operand.k));
  }
  quantize_into(backend, input.view, transpose, seed, "x", std::nullopt, operand);
  if (!spec.is_quantized()) {
    const NpyArray values = cli::read_back(backend, operand.codes);
    const TensorView result = result_matrix(codes, "codes", DType::f32, operand.rows, operand.k);
    std::memcpy(result.data, values.data.data(), values.data.size());
  }
  if (statistics != nullptr) {
    const auto count = static_cast<std::int64_t>(fp8lab_statistics());
    measure(backend, input.view, transpose, operand,
            static_cast<double*>(result_memory(statistics, "statistics", "float64", {count})));
  }
}

void dequantize(Backend& backend, const QuantSpec& spec, const fp8lab_array* codes,
                const fp8lab_array* scales, const fp8lab_array* result) {
  const CallMemory memory(backend);
  const Input input = read_matrix(codes, "codes");
  if (input.view.dtype != DType::u8) {
    throw InputError(
        {.where = "codes", .accepted = "uint8, or the type of ml_dtypes of the format"});
  }
  check_codes_are("codes", input.codes, spec.format);
  const cli::MatrixOperand operand = cli::make_operand(
      backend, input.view, "codes", read_scales(scales, "scales"), "scales", spec, 0);
  const TensorView values =
      result_matrix(result, "values", DType::f32, input.view.rows, input.view.cols);
  const TensorView decoded = backend.allocate(DType::f32, values.rows, values.cols);
  backend.run(ops::Dequantize{operand.operand, false, decoded});
  backend.download(values.data, decoded);
}

}  // namespace
}  // namespace fp8lab::interface

using namespace fp8lab::interface;

fp8lab_status fp8lab_backend_new(const char* name, int32_t threads, fp8lab_backend** backend) {
  return guarded([&] {
    auto made = std::make_unique<fp8lab_backend>();
    made->backend = fp8lab::make_backend(text_of(name, "backend"), threads);
    given(backend, "backend") = made.release();
  });
}

void fp8lab_backend_free(fp8lab_backend* backend) { delete backend; }

fp8lab_status fp8lab_quantizer_new(const char* words, fp8lab_quantizer** quantizer) {
  return guarded([&] {
    given(quantizer, "quantizer") =
        new fp8lab_quantizer{fp8lab::parse_quant_spec(text_of(words, "words"))};
  });
}

fp8lab_status fp8lab_quantizer_from_keys(const fp8lab_key* keys, size_t count,
                                         fp8lab_quantizer** quantizer) {
  return guarded(
      [&] { given(quantizer, "quantizer") = new fp8lab_quantizer{spec_of_keys(keys, count)}; });
}

void fp8lab_quantizer_free(fp8lab_quantizer* quantizer) { delete quantizer; }

fp8lab_status fp8lab_quantizer_label(const fp8lab_quantizer* quantizer, const char** label) {
  return guarded([&] {
    given(label, "label") = kept_text(fp8lab::label(given(quantizer, "quantizer").spec));
  });
}

int32_t fp8lab_quantizer_equal(const fp8lab_quantizer* left, const fp8lab_quantizer* right) {
  return left->spec == right->spec ? 1 : 0;
}

void fp8lab_quantizer_key(size_t index, const char** name, const char** meaning) {
  static const std::vector<const fp8lab::Field<fp8lab::QuantSpec>*> rows = operand_fields();
  *name = index < rows.size() ? rows[index]->word.c_str() : nullptr;
  *meaning = index < rows.size() ? rows[index]->help.c_str() : nullptr;
}

fp8lab_status fp8lab_quantizer_value(const fp8lab_quantizer* quantizer, const char* name,
                                     fp8lab_value* value) {
  return guarded([&] {
    const std::string word = text_of(name, "name");
    for (const fp8lab::Field<fp8lab::QuantSpec>* field : operand_fields()) {
      if (field->word != word) continue;
      given(value, "value") = value_of(field->get(given(quantizer, "quantizer").spec));
      return;
    }
    throw fp8lab::InputError({.noun = "a quantizer has no key", .key = word});
  });
}

fp8lab_status fp8lab_quantized_shape(const fp8lab_quantizer* quantizer, const fp8lab_array* x,
                                     int32_t transpose, fp8lab_quantized* shape) {
  return guarded([&] {
    const fp8lab::QuantSpec& spec = given(quantizer, "quantizer").spec;
    const fp8lab::QuantizedOperand operand =
        operand_of(spec, matrix_without_memory(x, "x"), transpose != 0);
    fp8lab_quantized& result = given(shape, "shape");
    result = {operand.rows, operand.k, 0, 0, spec.is_quantized() ? 1 : 0};
    if (!spec.has_scale()) return;
    result.scale_rows = spec.tile_rows(operand.rows);
    result.scale_cols = spec.scale_cols(operand.k);
  });
}

fp8lab_status fp8lab_quantize(fp8lab_backend* backend, const fp8lab_quantizer* quantizer,
                              const fp8lab_array* x, int32_t transpose, uint64_t seed,
                              const fp8lab_array* codes, const fp8lab_array* scales,
                              const fp8lab_array* statistics) {
  return guarded([&] {
    quantize(*given(backend, "backend").backend, given(quantizer, "quantizer").spec, x,
             transpose != 0, seed, codes, scales, statistics);
  });
}

fp8lab_status fp8lab_dequantize(fp8lab_backend* backend, const fp8lab_quantizer* quantizer,
                                const fp8lab_array* codes, const fp8lab_array* scales,
                                const fp8lab_array* values) {
  return guarded([&] {
    dequantize(*given(backend, "backend").backend, given(quantizer, "quantizer").spec, codes,
               scales, values);
  });
}

size_t fp8lab_statistics(void) {
  std::int64_t count = 1;  // scale_bits_per_element
  for (const fp8lab::StatisticField& field : fp8lab::statistic_fields()) count += field.width;
  return static_cast<size_t>(count);
}

void fp8lab_statistic(size_t index, const char** name, size_t* first, size_t* width) {
  const std::vector<fp8lab::StatisticField>& fields = fp8lab::statistic_fields();
  *first = 0;
  *width = 1;
  for (size_t i = 0; i < fields.size(); ++i) {
    if (i == index) {
      *name = fields[i].name;
      *width = static_cast<size_t>(fields[i].width);
      return;
    }
    *first += static_cast<size_t>(fields[i].width);
  }
  *name = index == fields.size() ? "scale_bits_per_element" : nullptr;
}
