#include "src/model/dialects/weight_layout.hpp"

#include <fmt/format.h>

#include "emulation/base/input_error.hpp"
#include "src/config/recipe/spec_words.hpp"

namespace fp8lab {
namespace {

constexpr std::string_view kWeight = ".weight";

std::string torchao_name(const std::string& weight, std::string_view attribute) {
  const std::size_t dot = weight.rfind('.');
  const std::string module = dot == std::string::npos ? "" : weight.substr(0, dot + 1);
  const std::string leaf = dot == std::string::npos ? weight : weight.substr(dot + 1);
  return fmt::format("{}_{}_{}", module, leaf, attribute);
}

/// Scales of groups within a row, for which every library asks for whole groups.
bool has_groups(const WeightLayout& layout) {
  return layout.tile.rows == 1 && layout.tile.cols > 0;
}

std::vector<std::int64_t> scale_shape(const WeightLayout& layout,
                                      const std::vector<std::int64_t>& shape) {
  const StoredScaleTile& tile = layout.tile;
  const std::int64_t rows = tile.rows_of(shape[0]), cols = tile.cols_of(shape[1]);
  const bool of_modelopt = layout.dialect == Dialect::modelopt;
  if (tile.is_tensor()) {
    if (layout.dialect == Dialect::torchao) return {1, 1};
    return layout.dialect == Dialect::compressed_tensors ? std::vector<std::int64_t>{1}
                                                         : std::vector<std::int64_t>{};
  }
  if (of_modelopt && tile.is_row()) return {rows};
  if (of_modelopt && tile.rows > 1) return {rows, 1, cols, 1};
  return {rows, cols};
}

/// Scales of groups are also those of tiles of several rows, repeated.
bool holds_tile(const WeightLayout& layout, const TileShape& tile) {
  if (StoredScaleTile{tile.rows, tile.cols} == layout.tile) return true;
  return has_groups(layout) && tile.rows > 0 && tile.cols == layout.tile.cols;
}

std::string refused_format(const WeightLayout& layout, const QuantSpec& spec) {
  if (spec.format == layout.format) return {};
  return fmt::format("its format is {}, not {}", format_name(spec.format),
                     format_name(layout.format));
}

}  // namespace

std::string tile_text(const StoredScaleTile& tile) {
  return tile.is_column() ? "column" : tile_name({tile.rows, tile.cols});
}

std::string_view dialect_name(Dialect dialect) {
  switch (dialect) {
    case Dialect::fine_grained: return "fp8";
    case Dialect::compressed_tensors: return "compressed-tensors";
    case Dialect::modelopt: return "modelopt";
    case Dialect::torchao: break;
  }
  return "torchao";
}

StoredType code_type(const WeightLayout& layout) {
  if (layout.format == numerics::kE4M3) return StoredType::f8_e4m3;
  if (layout.format == numerics::kE5M2) return StoredType::f8_e5m2;
  if (layout.format == numerics::kE4M3Fnuz) return StoredType::f8_e4m3fnuz;
  if (layout.format == numerics::kE5M2Fnuz) return StoredType::f8_e5m2fnuz;
  return StoredType::u8;
}

std::optional<numerics::FormatSpec> code_format(StoredType type) {
  switch (type) {
    case StoredType::f8_e4m3: return numerics::kE4M3;
    case StoredType::f8_e5m2: return numerics::kE5M2;
    case StoredType::f8_e4m3fnuz: return numerics::kE4M3Fnuz;
    case StoredType::f8_e5m2fnuz: return numerics::kE5M2Fnuz;
    default: return std::nullopt;
  }
}

std::string layout_text(const WeightLayout& layout) {
  return fmt::format("{} {}/{}, scales {}{}", dialect_name(layout.dialect),
                     format_name(layout.format), tile_text(layout.tile),
                     stored_name(layout.scale_type),
                     layout.has_two_levels()    ? " and F32"
                     : layout.scales_are_powers ? " (powers of two)"
                                                : "");
}

LayoutNames layout_names(const WeightLayout& layout, const std::string& weight) {
  switch (layout.dialect) {
    case Dialect::fine_grained: return {weight, weight + "_scale_inv", {}};
    case Dialect::compressed_tensors:
      return {weight + (layout.is_packed() ? "_packed" : ""), weight + "_scale",
              layout.has_two_levels() ? weight + "_global_scale" : ""};
    case Dialect::modelopt:
      return {weight, weight + "_scale", layout.has_two_levels() ? weight + "_scale_2" : ""};
    case Dialect::torchao: break;
  }
  return {torchao_name(weight, "qdata"), torchao_name(weight, "scale"),
          layout.has_two_levels() ? torchao_name(weight, "per_tensor_scale") : ""};
}

std::vector<TensorHeader> layout_headers(const WeightLayout& layout, const std::string& weight,
                                         const std::vector<std::int64_t>& shape) {
  const std::int64_t k = shape[1];
  const std::int64_t needed = has_groups(layout) ? layout.tile.cols : layout.is_packed() ? 2 : 1;
  if (k % needed != 0) {
    throw InputError(
        {.where = fmt::format("tensor '{}'", weight),
         .key = "K",
         .verb = "=",
         .found = fmt::to_string(k),
         .reason = fmt::format("is no multiple of {}, as {} needs", needed, layout_text(layout))});
  }
  const LayoutNames names = layout_names(layout, weight);
  std::vector<TensorHeader> headers;
  headers.push_back({names.codes, code_type(layout), {shape[0], layout.is_packed() ? k / 2 : k}});
  headers.push_back({names.scales, layout.scale_type, scale_shape(layout, shape)});
  if (layout.has_two_levels()) {
    const bool is_vector = layout.dialect == Dialect::compressed_tensors;
    headers.push_back({names.global, StoredType::f32,
                       is_vector ? std::vector<std::int64_t>{1} : std::vector<std::int64_t>{}});
  }
  return headers;
}

WeightLayout layout_of_spec(const QuantSpec& spec, const std::string& layer) {
  const TileShape tile = spec.scale_tile();
  WeightLayout layout;
  layout.format = spec.format;
  layout.tile = {tile.rows, tile.cols};
  using numerics::ScaleFormat;
  const ScaleFormat scales = spec.has_scale() ? spec.scale.format : ScaleFormat::fp32;
  const bool has_two_levels = scales == ScaleFormat::nv_two_level && tile.cols == 16;
  const bool is_mx = scales == ScaleFormat::e8m0 && tile.cols == 32;
  const bool is_block = !has_two_levels && !is_mx && tile.rows > 1 && tile.cols > 0;
  layout.dialect = is_block ? Dialect::fine_grained : Dialect::compressed_tensors;
  layout.scales_are_powers =
      is_block && spec.has_scale() && spec.scale.is_power_of_two() && spec.scale.factor == 1.0f;
  if (has_two_levels || is_mx) {
    layout.tile.rows = 1;
    layout.scale_type = is_mx ? StoredType::u8 : StoredType::f8_e4m3;
  }
  const bool has_format = spec.format == numerics::kE4M3 || spec.format == numerics::kE4M3Fnuz ||
                          spec.format == numerics::kE2M1;
  const bool has_tile = tile.is_tensor() || tile.is_row() || is_block;
  const bool is_stored = spec.format == numerics::kE2M1 ? layout.scale_type != StoredType::f32
                                                        : has_tile || layout.has_e8m0_scales();
  if (!has_format || !is_stored || spec.transform || !refuse_spec(layout, spec).empty()) {
    throw InputError(
        {.where = layer,
         .reason = fmt::format("no file convention has weights quantized as {}", label(spec)),
         .accepted = "e4m3fn or e4m3fnuz in the tile tensor, row, or a block such as 128x128, "
                     "e4m3fn and e2m1 in 1x32 with e8m0 scales, e2m1 in 1x16 with nv_two_level "
                     "scales, without a transform"});
  }
  return layout;
}

QuantSpec spec_of_layout(const WeightLayout& layout) {
  const char* scale = "fp32/dec_div";
  if (layout.has_two_levels()) {
    scale = "nv_two_level";
  } else if (layout.has_e8m0_scales()) {
    scale = layout.tile.rows > 1 ? "e8m0/ceil" : "e8m0/rceil";
  } else if (layout.scales_are_powers) {
    scale = "pow2/ceil";
  }
  return parse_quant_spec(
      fmt::format("{}/{}/{}", format_name(layout.format), tile_text(layout.tile), scale));
}

std::string refuse_spec(const WeightLayout& layout, const QuantSpec& spec) {
  using numerics::ScaleFormat;
  if (std::string why = refused_format(layout, spec); !why.empty()) return why;
  if (spec.transform) return "it has a transform, which files do not record";
  const TileShape tile = spec.scale_tile();
  if (!holds_tile(layout, tile)) {
    return fmt::format("its tile is {}, not {}", tile_name(tile), tile_text(layout.tile));
  }
  const ScaleFormat format = spec.has_scale() ? spec.scale.format : ScaleFormat::fp32;
  if (layout.has_two_levels() != (format == ScaleFormat::nv_two_level)) {
    return layout.has_two_levels() ? "its scales have one level" : "its scales have two levels";
  }
  if (layout.has_two_levels() && spec.scale.outer == numerics::OuterScale::row) {
    return "its two-level scales have a factor of each row";
  }
  if (layout.has_e8m0_scales() || layout.scales_are_powers) {
    const bool is_power = spec.has_scale() && spec.scale.is_power_of_two();
    if (!is_power || spec.scale.factor != 1.0f) return "its scales are no powers of two";
  }
  return {};
}

}  // namespace fp8lab
