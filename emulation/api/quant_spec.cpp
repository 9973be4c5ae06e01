#include "emulation/api/quant_spec.hpp"

#include <charconv>

#include <fmt/format.h>

namespace fp8lab {
namespace {

using numerics::FormatSpec;
using numerics::SpecialValues;

/// Takes a decimal number without sign off the front of `text`; nothing when there is none.
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

bool is_named(std::string_view name) {
  for (const numerics::NamedFormat& named : numerics::kNamedFormats) {
    if (named.name == name) return true;
  }
  return false;
}

int default_bias(int exponent_bits) { return (1 << (exponent_bits - 1)) - 1; }

/// FormatSpec promises that every value is an FP32 value and that there is a finite nonzero one.
bool representable(const FormatSpec& format) {
  if (format.mantissa_bits == 0 && format.specials == SpecialValues::ieee) return false;
  return format.max_finite_code() > 0 && format.max_exponent() <= 127 &&
         format.min_exponent() - format.mantissa_bits >= -149;
}

std::string_view scale_format_name(numerics::ScaleFormat format) {
  switch (format) {
    case numerics::ScaleFormat::fp32: return "fp32";
    case numerics::ScaleFormat::pow2: return "pow2";
    case numerics::ScaleFormat::e8m0: return "e8m0";
  }
  return "?";
}

}  // namespace

std::string format_name(const FormatSpec& format) {
  for (const numerics::NamedFormat& named : numerics::kNamedFormats) {
    if (named.format == format) return std::string(named.name);
  }
  std::string name = fmt::format("e{}m{}", format.exponent_bits, format.mantissa_bits);
  if (format.specials == SpecialValues::nan_only) name += "fn";
  if (format.specials == SpecialValues::none) name += "f";
  if (format.bias != default_bias(format.exponent_bits) || is_named(name)) {
    name += fmt::format("b{}", format.bias);
  }
  return name;
}

std::optional<FormatSpec> format_by_name(std::string_view name) {
  for (const numerics::NamedFormat& named : numerics::kNamedFormats) {
    if (named.name == name) return named.format;
  }
  if (!take(name, "e")) return std::nullopt;
  const auto exponent_bits = take_number(name);
  if (!exponent_bits || *exponent_bits < 1 || *exponent_bits > 8) return std::nullopt;
  if (!take(name, "m")) return std::nullopt;
  const auto mantissa_bits = take_number(name);
  if (!mantissa_bits || *mantissa_bits > 23) return std::nullopt;

  FormatSpec format;
  format.exponent_bits = static_cast<int>(*exponent_bits);
  format.mantissa_bits = static_cast<int>(*mantissa_bits);
  format.bias = default_bias(format.exponent_bits);
  format.specials = SpecialValues::ieee;
  if (take(name, "fn")) {
    format.specials = SpecialValues::nan_only;
  } else if (take(name, "f")) {
    format.specials = SpecialValues::none;
  }
  if (take(name, "b")) {
    const auto bias = take_number(name);
    if (!bias || *bias > 255) return std::nullopt;
    format.bias = static_cast<int>(*bias);
  }
  if (!name.empty() || !representable(format)) return std::nullopt;
  return format;
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

std::string label(const QuantSpec& spec) {
  std::string text = format_name(spec.format);
  if (spec.has_scale()) {
    text += fmt::format("/{}/{}", tile_name(spec.tile), scale_format_name(spec.scale.format));
  }
  if (spec.scale_source == ScaleSource::delayed) text += "/delayed";
  if (spec.scale_source == ScaleSource::static_scale) text += "/static";
  if (spec.rounding == numerics::Rounding::toward_zero) text += "/toward_zero";
  if (spec.rounding == numerics::Rounding::stochastic) text += "/stochastic";
  return text;
}

double scale_bits_per_element(const QuantSpec& spec, std::int64_t rows, std::int64_t k) {
  if (!spec.has_scale() || rows <= 0 || k <= 0) return 0.0;
  const double bits = spec.scale.format == numerics::ScaleFormat::e8m0 ? 8.0 : 32.0;
  const double tiles = static_cast<double>(spec.tile_rows(rows) * spec.tile_cols(k));
  return bits * tiles / (static_cast<double>(rows) * static_cast<double>(k));
}

}  // namespace fp8lab
