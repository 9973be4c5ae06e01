// fp8lab.h: codes of a format.
#include <fmt/format.h>

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "emulation/base/input_error.hpp"
#include "emulation/cpu/operations.hpp"
#include "emulation/numerics/codec.hpp"
#include "emulation/numerics/element_cast.hpp"
#include "emulation/numerics/philox.hpp"
#include "emulation/ops/quantize/operand_checks.hpp"
#include "emulation/spec/recipe_names.hpp"
#include "src/config/reading/nearest_name.hpp"
#include "src/interface/arrays.hpp"
#include "src/interface/guard.hpp"

namespace fp8lab::interface {
namespace {

using numerics::FormatSpec;

FormatSpec known_format(const std::string& name) {
  const std::optional<FormatSpec> format = format_by_name(name);
  // Ambiguous, as in recipes: e4m3 often means e4m3fn.
  if (!format || name == "e4m3") {
    throw InputError({.noun = "unknown format",
                      .key = name,
                      .accepted = "e4m3fn, e5m2, e3m4, e2m3, e3m2, e2m1, e8m0, bf16, fp16, fp32, "
                                  "or eXmY[fn|f][bN] such as e4m3b7"});
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
  throw InputError({.noun = fmt::format("unknown {}", what),
                    .key = word,
                    .nearest = did_you_mean(word, names),
                    .accepted = names});
}

RoundingChoice known_rounding(const std::string& word) {
  if (const std::optional<RoundingChoice> choice = rounding_from_name(word)) return *choice;
  return {known_word(kRoundingNames, "rounding", word), 0};
}

struct Cast {
  numerics::ElementCast element;
  std::uint64_t seed;
};

/// The NumPy type of codes of a format.
std::string_view code_type(const FormatSpec& format) {
  return format.bits() <= 8 ? "uint8" : format.bits() <= 16 ? "uint16" : "uint32";
}

template <class Code>
void encode_values(const TensorView& source, const Cast& cast, void* memory) {
  const auto count = static_cast<std::size_t>(source.cols);
  const auto* values = static_cast<const float*>(source.data);
  const auto* halves = static_cast<const std::uint16_t*>(source.data);
  const bool wide = source.dtype == DType::f32;
  const bool stochastic = cast.element.is_random();
  auto* const codes = static_cast<Code*>(memory);
  for (std::size_t i = 0; i < count; ++i) {
    const float value = wide ? values[i] : numerics::from_bf16(halves[i]);
    const std::uint32_t bits = stochastic ? numerics::random_bits(cast.seed, 0, 0, 0, i) : 0u;
    codes[i] = static_cast<Code>(numerics::encode(cast.element, numerics::float_bits(value), bits));
  }
}

/// Like encode_values, but uses the vector kernels: quantizes without a scale.
void quantize_values(const TensorView& source, const QuantSpec& spec, std::uint64_t seed,
                     void* codes) {
  if (source.cols == 0) return;
  QuantizedOperand operand;
  operand.spec = spec;
  operand.rows = source.rows;
  operand.k = source.cols;
  operand.codes = {codes, DType::u8, source.rows, source.cols, source.cols};
  operand.key.seed = seed;
  cpu::run(ops::Quantize{.source = source, .operand = operand});
}

void encode(const fp8lab_array* x, const Cast& cast, const fp8lab_array* result) {
  const Input input = read_array(x, "x");
  if (input.view.dtype == DType::u8) {
    throw InputError({.where = "x",
                      .reason = "holds codes",
                      .accepted = "float32, float16, bfloat16 or uint16 (bits of bf16)"});
  }
  void* const codes = result_memory(result, "codes", code_type(cast.element.format), input.shape);
  QuantSpec spec;
  spec.format = cast.element.format;
  spec.rounding = cast.element.rounding;
  spec.random_bits = cast.element.random_bits;
  spec.overflow = cast.element.overflow;
  if (spec.is_quantized() && supports_quantization(spec)) {
    quantize_values(input.view, spec, cast.seed, codes);
  } else if (cast.element.format.bits() <= 8) {
    encode_values<std::uint8_t>(input.view, cast, codes);
  } else if (cast.element.format.bits() <= 16) {
    encode_values<std::uint16_t>(input.view, cast, codes);
  } else {
    encode_values<std::uint32_t>(input.view, cast, codes);
  }
}

/// Throws Error if a code has more bits than the format.
template <class Code>
void check_width(const Code* codes, std::size_t count, const FormatSpec& format) {
  const std::uint64_t limit = std::uint64_t{1} << format.bits();
  for (std::size_t i = 0; i < count; ++i) {
    if (codes[i] < limit) continue;
    throw InputError({.where = "codes",
                      .reason = fmt::format("element {} is {:#x}, but codes of {} have {} bits", i,
                                            codes[i], format_name(format), format.bits()),
                      .accepted = fmt::format("one code in each element, below {:#x}", limit)});
  }
}

/// Decodes unsigned codes of any width.
template <class Code>
void decode_codes(const Elements& codes, const FormatSpec& format, float* values) {
  const auto* const source = static_cast<const Code*>(codes.data);
  const auto count = static_cast<std::size_t>(codes.count);
  if (format.bits() < 8 * static_cast<int>(sizeof(Code))) check_width(source, count, format);
  if constexpr (sizeof(Code) == 1) {
    std::array<float, 256> table{};
    for (std::uint32_t code = 0; code < 256; ++code) table[code] = numerics::decode(format, code);
    for (std::size_t i = 0; i < count; ++i) values[i] = table[source[i]];
  } else {
    for (std::size_t i = 0; i < count; ++i) values[i] = numerics::decode(format, source[i]);
  }
}

/// Returns true if the elements of NumPy type `type` are codes of `format`.
bool is_type_of(std::string_view type, const FormatSpec& format) {
  if (type == "bfloat16") return format == numerics::kBF16;
  if (type == "float16") return format == numerics::kFP16;
  if (type == "float32") return format == numerics::kFP32;
  return format_of_type(type) == format;
}

void decode(const fp8lab_array* codes, const std::string& format_word, const fp8lab_array* result) {
  const FormatSpec format = known_format(format_word);
  const Shape shape = shape_of(codes, "codes");
  const std::string_view type = codes->dtype, expected = code_type(format);
  if (type != expected && !is_type_of(type, format)) {
    throw InputError({.where = "codes",
                      .reason = fmt::format("elements are {}", type),
                      .accepted = fmt::format("{} for {}", expected, format_word)});
  }
  auto* const values = static_cast<float*>(result_memory(result, "values", "float32", shape));
  if (format.bits() <= 8) {
    decode_codes<std::uint8_t>(row_major(codes, "codes", 1), format, values);
  } else if (format.bits() <= 16) {
    decode_codes<std::uint16_t>(row_major(codes, "codes", 2), format, values);
  } else {
    decode_codes<std::uint32_t>(row_major(codes, "codes", 4), format, values);
  }
}

}  // namespace
}  // namespace fp8lab::interface

using namespace fp8lab::interface;

fp8lab_status fp8lab_format_bits(const char* format, int32_t* bits) {
  return guarded([&] { *bits = known_format(text_of(format, "format")).bits(); });
}

fp8lab_status fp8lab_encode(const fp8lab_array* x, const char* format, const char* rounding,
                            const char* overflow, uint64_t seed, const fp8lab_array* codes) {
  return guarded([&] {
    const fp8lab::RoundingChoice choice = known_rounding(text_of(rounding, "rounding"));
    const Cast cast{{known_format(text_of(format, "format")), choice.rounding,
                     known_word(fp8lab::kOverflowNames, "overflow", text_of(overflow, "overflow")),
                     choice.random_bits},
                    seed};
    encode(x, cast, codes);
  });
}

fp8lab_status fp8lab_decode(const fp8lab_array* codes, const char* format,
                            const fp8lab_array* values) {
  return guarded([&] { decode(codes, text_of(format, "format"), values); });
}
