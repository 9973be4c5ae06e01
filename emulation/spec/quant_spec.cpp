#include "emulation/spec/quant_spec.hpp"

#include <charconv>

#include <fmt/format.h>

#include "emulation/numerics/codec.hpp"
#include "emulation/spec/recipe_names.hpp"
#include "emulation/spec/spec_fields.hpp"

namespace fp8lab {
namespace {

using numerics::Encoding;
using numerics::FormatSpec;
using numerics::SpecialValues;

/// Removes a decimal number without sign from the front of `text`; returns empty if there is none.
std::optional<std::int64_t> take_number(std::string_view& text) {
  std::int64_t value = 0;
  if (text.empty() || text.front() < '0' || text.front() > '9') return std::nullopt;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{}) return std::nullopt;
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  return value;
}

bool take(std::string_view& text, std::string_view prefix) {
  if (text.substr(0, prefix.size()) != prefix) return false;
  text.remove_prefix(prefix.size());
  return true;
}

/// Returns 2^(X-1)-1, and one more if -0 encodes NaN instead of a top code,
/// as in all of IEEE P3109.
int default_bias(int exponent_bits, SpecialValues specials) {
  const bool higher =
      specials == SpecialValues::unsigned_zero || specials == SpecialValues::extended;
  return (1 << (exponent_bits - 1)) - (higher ? 0 : 1);
}

/// Checks what FormatSpec promises: every value is an FP32 value and there is a finite nonzero one.
bool representable(const FormatSpec& format) {
  if (format.mantissa_bits == 0 && format.specials == SpecialValues::ieee) return false;
  return format.max_finite_code() > 0 && format.max_exponent() <= 127 &&
         format.min_exponent() - format.mantissa_bits >= -149;
}

std::optional<FormatSpec> named_format(std::string_view name) {
  for (const numerics::NamedFormat& named : numerics::kNamedFormats) {
    if (named.name == name) return named.format;
  }
  return std::nullopt;
}

/// Parses the rest of a name after "int": the width.
std::optional<FormatSpec> integer_format(std::string_view name) {
  const auto bits = take_number(name);
  if (!bits || *bits < 3 || *bits > 8 || !name.empty()) return std::nullopt;
  FormatSpec format = numerics::kInt8;
  format.mantissa_bits = static_cast<int>(*bits) - 1;
  format.bias = 1 - format.mantissa_bits;
  return format;
}

/// Parses the rest of a name after "lns": BgG, the width and the steps of an octave.
std::optional<FormatSpec> logarithmic_format(std::string_view name) {
  const auto bits = take_number(name);
  if (!bits || *bits < 3 || *bits > 16 || !take(name, "g")) return std::nullopt;
  const auto steps = take_number(name);
  if (!steps || !name.empty()) return std::nullopt;
  FormatSpec format = numerics::kLns8;
  for (int log = 0; log <= numerics::kMaxFineLogarithmBits; ++log) {
    format.mantissa_bits = log;
    format.exponent_bits = static_cast<int>(*bits) - 1 - log;
    // Values must be FP32 values, and for codes of at most 8 bits BF16 values.
    const bool fits = format.exponent_bits >= 0 && format.exponent_bits <= 7 &&
                      (*bits > 8 || log <= numerics::kMaxLogarithmBits);
    if (*steps == 1 << log && fits) return format;
  }
  return std::nullopt;
}

/// Parses the rest of a name after "logfmt": the width.
std::optional<FormatSpec> codebook_format(std::string_view name) {
  const auto bits = take_number(name);
  if (!bits || *bits < 3 || *bits > 8 || !name.empty()) return std::nullopt;
  FormatSpec format = numerics::kLogFmt8;
  format.mantissa_bits = static_cast<int>(*bits) - 1;
  return format;
}

/// Parses eXmY[ieee|fnuz|fn|f][bN].
std::optional<FormatSpec> floating_format(std::string_view name) {
  if (!take(name, "e")) return std::nullopt;
  const auto exponent_bits = take_number(name);
  if (!exponent_bits || *exponent_bits < 1 || *exponent_bits > 8) return std::nullopt;
  if (!take(name, "m")) return std::nullopt;
  const auto mantissa_bits = take_number(name);
  if (!mantissa_bits || *mantissa_bits > 23) return std::nullopt;

  FormatSpec format;
  format.exponent_bits = static_cast<int>(*exponent_bits);
  format.mantissa_bits = static_cast<int>(*mantissa_bits);
  if (take(name, "fnuz")) {
    format.specials = SpecialValues::unsigned_zero;
  } else if (take(name, "fn")) {
    format.specials = SpecialValues::nan_only;
  } else if (take(name, "f")) {
    format.specials = SpecialValues::none;
  } else {
    take(name, "ieee");
  }
  format.bias = default_bias(format.exponent_bits, format.specials);
  if (take(name, "b")) {
    const auto bias = take_number(name);
    if (!bias || *bias > 255) return std::nullopt;
    format.bias = static_cast<int>(*bias);
  }
  if (!name.empty() || !representable(format)) return std::nullopt;
  return format;
}

/// Parses the rest of a name after "binary": KpP[s|u][e|f] of IEEE P3109, K bits of
/// which P - 1 are mantissa.
std::optional<FormatSpec> p3109_format(std::string_view name) {
  const auto bits = take_number(name);
  if (!bits || *bits < 3 || *bits > 16 || !take(name, "p")) return std::nullopt;
  const auto precision = take_number(name);
  if (!precision || *precision < 1) return std::nullopt;
  FormatSpec format;
  format.has_sign = name.substr(0, 1) == "s";
  if (!format.has_sign && name.substr(0, 1) != "u") return std::nullopt;
  name.remove_prefix(1);
  if (name != "e" && name != "f") return std::nullopt;
  const SpecialValues finite =
      format.has_sign ? SpecialValues::unsigned_zero : SpecialValues::nan_only;
  format.specials = name == "e" ? SpecialValues::extended : finite;
  format.mantissa_bits = static_cast<int>(*precision) - 1;
  format.exponent_bits = static_cast<int>(*bits) - (format.has_sign ? 1 : 0) - format.mantissa_bits;
  if (format.exponent_bits < 1 || format.exponent_bits > 8) return std::nullopt;
  format.bias = default_bias(format.exponent_bits, SpecialValues::extended);
  if (!representable(format)) return std::nullopt;
  return format;
}

/// Returns the bits of one tile's scale.
double bits_of(numerics::ScaleFormat format) {
  switch (format) {
    case numerics::ScaleFormat::fp32:
    case numerics::ScaleFormat::pow2: return 32.0;
    case numerics::ScaleFormat::bf16: return 16.0;
    case numerics::ScaleFormat::e8m0:
    case numerics::ScaleFormat::e4m3:
    case numerics::ScaleFormat::nv_two_level: return 8.0;
  }
  return 0.0;
}

std::string written(const FieldValue& value) {
  if (const std::string* const text = std::get_if<std::string>(&value)) return *text;
  if (const double* const number = std::get_if<double>(&value)) return fmt::format("{}", *number);
  return fmt::format("{}", std::get<std::int64_t>(value));
}

/// Returns the words of a label for one field, after a slash; empty for most defaults.
std::string words_of(const Field<QuantSpec>& field, const QuantSpec& spec) {
  if (!field.matters(spec)) return "";
  const std::string value = written(field.get(spec));
  if (field.word == "scale_source") {
    if (spec.scale_source == ScaleSource::static_scale) {
      return fmt::format("/static:{}", fields::shortest_double(spec.static_scale));
    }
    return spec.scale_source == ScaleSource::delayed ? "/delayed" : "";
  }
  // The format comes first, and the last three fields do not affect how the operand is quantized.
  for (const char* unsaid :
       {"format", "static_scale", "orientation_source", "weight_source", "estimator"}) {
    if (field.word == unsaid) return "";
  }
  const bool always =
      field.word == "tile" || field.word == "scale_format" || field.word == "scale_rounding";
  if (!always && value == written(field.get(QuantSpec{}))) return "";
  // "nearest" alone means the rounding of the elements.
  const bool alone = field.stands_alone && value != "nearest";
  return alone ? "/" + value : fmt::format("/{}:{}", field.word, value);
}

}  // namespace

DType QuantSpec::storage() const {
  if (is_quantized()) return DType::u8;
  return numerics::holds_values(numerics::kBF16, format) ? DType::bf16 : DType::f32;
}

std::string format_name(const FormatSpec& format) {
  for (const numerics::NamedFormat& named : numerics::kNamedFormats) {
    if (named.format == format) return std::string(named.name);
  }
  if (format.encoding == Encoding::twos_complement) return fmt::format("int{}", format.bits());
  if (format.encoding == Encoding::tile_logarithm) return fmt::format("logfmt{}", format.bits());
  if (format.encoding == Encoding::logarithmic) {
    return fmt::format("lns{}g{}", format.bits(), 1 << format.mantissa_bits);
  }
  if (format.specials == SpecialValues::extended || !format.has_sign) {
    return fmt::format("binary{}p{}{}{}", format.bits(), format.mantissa_bits + 1,
                       format.has_sign ? "s" : "u", format.has_infinity() ? "e" : "f");
  }
  std::string name = fmt::format("e{}m{}", format.exponent_bits, format.mantissa_bits);
  if (format.specials == SpecialValues::unsigned_zero) name += "fnuz";
  if (format.specials == SpecialValues::nan_only) name += "fn";
  if (format.specials == SpecialValues::none) name += "f";
  if (format.specials == SpecialValues::ieee && named_format(name)) name += "ieee";
  const int usual_bias = default_bias(format.exponent_bits, format.specials);
  if (format.bias != usual_bias) name += fmt::format("b{}", format.bias);
  return name;
}

std::optional<FormatSpec> format_by_name(std::string_view name) {
  if (const auto format = named_format(name)) return format;
  if (take(name, "int")) return integer_format(name);
  if (take(name, "lns")) return logarithmic_format(name);
  if (take(name, "logfmt")) return codebook_format(name);
  if (take(name, "binary")) return p3109_format(name);
  return floating_format(name);
}

std::string rounding_name(numerics::Rounding rounding, int random_bits) {
  const std::string_view name = word_for(kRoundingNames, rounding);
  if (random_bits == 0) return std::string(name);
  return fmt::format("{}:{}", name, random_bits);
}

std::optional<RoundingChoice> rounding_from_name(std::string_view name) {
  if (const auto rounding = value_for(kRoundingNames, name)) return RoundingChoice{*rounding, 0};
  if (!take(name, "stochastic:")) return std::nullopt;
  const auto bits = take_number(name);
  if (!bits || *bits < 1 || *bits > 32 || !name.empty()) return std::nullopt;
  return RoundingChoice{numerics::Rounding::stochastic, static_cast<int>(*bits)};
}

std::string tile_name(const TileShape& tile) {
  if (tile.is_tensor()) return "tensor";
  if (tile.is_row()) return "row";
  return fmt::format("{}x{}", tile.rows, tile.cols);
}

std::optional<TileShape> tile_from_name(std::string_view name) {
  if (name == "tensor") return TileShape{0, 0};
  if (name == "row") return TileShape{1, 0};
  const auto rows = take_number(name);
  if (!rows || *rows == 0 || !take(name, "x")) return std::nullopt;
  const auto cols = take_number(name);
  if (!cols || *cols == 0 || !name.empty()) return std::nullopt;
  return TileShape{*rows, *cols};
}

std::string label(const QuantSpec& whole) {
  const QuantSpec spec = effective(whole);
  std::string text = format_name(spec.format);
  for (const Field<QuantSpec>& field : quant_fields()) text += words_of(field, spec);
  return text;
}

double scale_bits_per_element(const QuantSpec& spec, std::int64_t rows, std::int64_t k) {
  if (!spec.has_scale() || rows <= 0 || k <= 0) return 0.0;
  const double tiles = static_cast<double>(spec.tile_rows(rows) * spec.tile_cols(k));
  const bool has_rows = spec.scale.outer == numerics::OuterScale::row;
  const double outer_bits = spec.scale.format != numerics::ScaleFormat::nv_two_level ? 0.0
                            : has_rows ? 32.0 * static_cast<double>(rows)
                                       : 32.0;
  const double tile_bits = bits_of(spec.scale.format) + 32.0 * (spec.tile_numbers() - 1);
  return (tile_bits * tiles + outer_bits) / (static_cast<double>(rows) * static_cast<double>(k));
}

}  // namespace fp8lab
