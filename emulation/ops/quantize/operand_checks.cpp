#include "emulation/ops/quantize/operand_checks.hpp"

#include <optional>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "emulation/base/error.hpp"
#include "emulation/base/error_context.hpp"
#include "emulation/base/input_error.hpp"
#include "emulation/spec/quant_rules.hpp"

namespace fp8lab {
namespace {

std::string shape_of(const TensorView& view) {
  if (!view.has_memory()) return "missing";
  return fmt::format("{} ({}, {})", name_of(view.dtype), view.rows, view.cols);
}

void check_shape(const char* where, const char* name, const TensorView& view, DType dtype,
                 std::int64_t rows, std::int64_t cols) {
  if (!view.has_memory() || view.dtype != dtype || view.rows != rows || view.cols != cols) {
    throw Error(fmt::format("{}: {} is {}, expected {} ({}, {})", where, name, shape_of(view),
                            name_of(dtype), rows, cols));
  }
}

}  // namespace

Support supports_quantization(const QuantSpec& spec) {
  if (const std::optional<ErrorFields> refusal = refuse_quantizer(spec)) return {render(*refusal)};
  return {};
}

void check_matrix(const char* where, const char* name, const TensorView& view, std::int64_t rows,
                  std::int64_t cols) {
  const bool type_fits = view.dtype == DType::bf16 || view.dtype == DType::f32;
  if (!view.has_memory() || !type_fits || view.rows != rows || view.cols != cols) {
    throw Error(fmt::format("{}: {} is {}, expected bf16 or f32 ({}, {})", where, name,
                            shape_of(view), rows, cols));
  }
}

void check_operand(const char* where, const QuantizedOperand& operand) {
  at_place(where, [&] {
    if (std::optional<ErrorFields> refusal = refuse_quantizer(operand.spec)) {
      throw InputError(*std::move(refusal));
    }
  });
  if (operand.rows < 1 || operand.k < 1) {
    throw Error(fmt::format("{}: the operand ({}, {}) is empty", where, operand.rows, operand.k));
  }
  if (operand.codes.dtype != operand.spec.storage()) {
    throw Error(fmt::format("{}: codes are {}, expected {}", where, name_of(operand.codes.dtype),
                            name_of(operand.spec.storage())));
  }
  check_storage_order(where, operand);
  if (operand.spec.has_scale()) {
    check_shape(where, "scales", operand.scales, DType::f32, operand.spec.tile_rows(operand.rows),
                operand.spec.scale_cols(operand.k));
  }
}

void check_written_operand(const char* where, const QuantizedOperand& operand) {
  check_operand(where, operand);
  if (!operand.has_rows_contiguous()) return;
  throw Error(fmt::format("{}: the operand has its rows contiguous; accepted: K", where));
}

void check_storage_order(const char* where, const QuantizedOperand& operand) {
  const bool rows_first = operand.has_rows_contiguous();
  if (rows_first && operand.spec.is_quantized()) {
    throw Error(fmt::format("{}: codes of format {} have their rows contiguous; accepted: K", where,
                            format_name(operand.spec.format)));
  }
  const std::int64_t rows = rows_first ? operand.k : operand.rows;
  const std::int64_t cols = rows_first ? operand.rows : operand.k;
  check_shape(where, "codes", operand.codes, operand.codes.dtype, rows, cols);
}

void check_transform(const QuantizedOperand& operand, std::int64_t rows, std::int64_t k) {
  const Transform& transform = operand.spec.transform;
  if (transform.is<Clamp>()) {
    const TensorView& bounds = operand.clamp_bounds;
    if (!bounds.has_memory() || bounds.dtype != DType::f32 || bounds.rows != 1 ||
        bounds.cols != 2) {
      throw Error(fmt::format("transform {} needs memory for its bounds, f32 (1, 2)",
                              transform_name(transform)));
    }
    return;
  }
  check_space(operand.own_space(), transform.is_left() ? rows : k);
}

void check_space(const Space& space, std::int64_t extent) {
  const Transform& transform = space.transform;
  if (!transform.is<Smoothing>()) {
    const std::string reason = transform_refusal(transform, extent, extent);
    if (!reason.empty()) throw Error(reason);
    return;
  }
  const TensorView& factors = space.channel_factors;
  if (!factors.has_memory() || factors.dtype != DType::f32 || factors.rows != 1 ||
      factors.cols != extent) {
    throw Error(
        fmt::format("transform {} needs the factors of both operands of a product, f32 (1, {})",
                    transform_name(transform), extent));
  }
}

void check_delayed_state(const QuantSpec& spec, const TensorView& state) {
  if (spec.scale_source != ScaleSource::delayed) {
    throw Error(fmt::format("delayed scaling: the operand {} has no delayed scale", label(spec)));
  }
  check_shape("delayed scaling", "state", state, DType::f32, 1, DelayedState::length(spec));
}

}  // namespace fp8lab
