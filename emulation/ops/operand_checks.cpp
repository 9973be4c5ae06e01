#include "emulation/ops/operand_checks.hpp"

#include <cmath>
#include <string>

#include <fmt/format.h>

#include "emulation/base/error.hpp"

namespace fp8lab {
namespace {

using numerics::FormatSpec;

std::string shape_of(const TensorView& view) {
  if (view.empty()) return "missing";
  return fmt::format("{} ({}, {})", name_of(view.dtype), view.rows, view.cols);
}

std::string unsupported_format(const QuantSpec& spec) {
  const FormatSpec& format = spec.format;
  const std::string name = format_name(format);
  if (!format.has_sign) {
    return fmt::format("format {} holds scales, not elements", name);
  }
  if (spec.is_quantized()) return "";
  if (spec.has_scale()) {
    return fmt::format("format {} has more than 8 bits and takes no scale", name);
  }
  return "";
}

void check_shape(const char* where, const char* name, const TensorView& view, DType dtype,
                 std::int64_t rows, std::int64_t cols) {
  if (view.empty() || view.dtype != dtype || view.rows != rows || view.cols != cols) {
    throw Error(fmt::format("{}: {} is {}, expected {} ({}, {})", where, name, shape_of(view),
                            name_of(dtype), rows, cols));
  }
}

}  // namespace

Support supports_quantization(const QuantSpec& spec) {
  if (std::string reason = unsupported_format(spec); !reason.empty()) return {std::move(reason)};
  if (spec.tile.rows < 0 || spec.tile.cols < 0) return {"tile extents must not be negative"};
  const bool plain_rule = spec.scale == numerics::ScaleRule{};
  if (spec.has_codebooks() && (spec.scale_source != ScaleSource::current || !plain_rule)) {
    return {fmt::format(
        "{} takes its codebooks from the current tiles, without a scale rule",
        spec.transform.is_expansion() ? "transform expand" : "format " + format_name(spec.format))};
  }
  if (spec.transform.is_expansion() && spec.format != numerics::kE4M3) {
    return {fmt::format("transform expand fits values to e4m3fn, the format is {}",
                        format_name(spec.format))};
  }
  const bool two_level =
      spec.has_scale() && spec.scale.format == numerics::ScaleFormat::nv_two_level;
  if (two_level && (spec.scale_source != ScaleSource::current || spec.tile.is_tensor())) {
    return {"two-level scales need current amaxes of tiles smaller than the tensor"};
  }
  if (!two_level && spec.scale.four_over_six != numerics::FourOverSix::none) {
    return {"the choice between 6 and 4 is for two-level scales"};
  }
  const bool single =
      spec.scale_source == ScaleSource::delayed || spec.scale_source == ScaleSource::static_scale;
  if (single && !spec.tile.is_tensor()) {
    return {fmt::format("delayed and static scales need the tile to be the tensor, not {}",
                        tile_name(spec.tile))};
  }
  if (spec.scale_source == ScaleSource::delayed && spec.history_length < 1) {
    return {"a delayed scale needs a history of at least one step"};
  }
  if (spec.scale_source == ScaleSource::static_scale &&
      !(spec.static_scale > 0.0f && std::isfinite(spec.static_scale))) {
    return {"a static scale must be positive and finite"};
  }
  return {};
}

void check_matrix(const char* where, const char* name, const TensorView& view, std::int64_t rows,
                  std::int64_t cols) {
  const bool type_fits = view.dtype == DType::bf16 || view.dtype == DType::f32;
  if (view.empty() || !type_fits || view.rows != rows || view.cols != cols) {
    throw Error(fmt::format("{}: {} is {}, expected bf16 or f32 ({}, {})", where, name,
                            shape_of(view), rows, cols));
  }
}

void check_operand(const char* where, const QuantizedOperand& operand) {
  if (const Support support = supports_quantization(operand.spec); !support) {
    throw Error(fmt::format("{}: {}", where, support.reason));
  }
  if (operand.rows < 1 || operand.k < 1) {
    throw Error(fmt::format("{}: the operand ({}, {}) is empty", where, operand.rows, operand.k));
  }
  check_shape(where, "codes", operand.codes, operand.spec.storage(), operand.rows, operand.k);
  if (operand.spec.has_scale()) {
    check_shape(where, "scales", operand.scales, DType::f32, operand.spec.tile_rows(operand.rows),
                operand.spec.scale_cols(operand.k));
  }
}

void check_transform(const QuantizedOperand& operand, std::int64_t k) {
  const Transform& transform = operand.spec.transform;
  if (transform.is_clamp()) {
    const TensorView& bounds = operand.clamp_bounds;
    if (bounds.empty() || bounds.dtype != DType::f32 || bounds.rows != 1 || bounds.cols != 2) {
      throw Error(fmt::format("transform {} needs memory for its bounds, f32 (1, 2)",
                              transform_name(transform)));
    }
    return;
  }
  if (!transform.is_smoothing()) {
    if (const std::string reason = transform_refusal(transform, k); !reason.empty()) {
      throw Error(reason);
    }
    return;
  }
  const TensorView& factors = operand.channel_factors;
  if (factors.empty() || factors.dtype != DType::f32 || factors.rows != 1 || factors.cols != k) {
    throw Error(
        fmt::format("transform {} needs the factors of both operands of a product, f32 (1, {})",
                    transform_name(transform), k));
  }
}

void check_delayed_state(const QuantSpec& spec, const TensorView& state) {
  if (spec.scale_source != ScaleSource::delayed) {
    throw Error(fmt::format("delayed scaling: the operand {} has no delayed scale", label(spec)));
  }
  check_shape("delayed scaling", "state", state, DType::f32, 1, DelayedState::length(spec));
}

}  // namespace fp8lab
