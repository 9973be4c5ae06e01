#include "src/model/linear/operand.hpp"

#include <fmt/format.h>

#include "emulation/base/input_error.hpp"

namespace fp8lab {

void allocate_memory(Backend& backend, QuantizedOperand& operand) {
  const QuantSpec& spec = operand.spec;
  operand.codes = backend.allocate(backend.storage(spec.storage()), operand.rows, operand.k);
  if (!spec.has_scale()) return;
  operand.scales =
      backend.allocate(DType::f32, spec.tile_rows(operand.rows), spec.scale_cols(operand.k));
}

QuantizedOperand allocate_operand(Backend& backend, const QuantSpec& spec, std::int64_t rows,
                                  std::int64_t k) {
  QuantizedOperand operand = QuantizedOperand::without_memory(spec, rows, k);
  const TensorView source = TensorView::without_memory(DType::f32, rows, k);
  const Support support = backend.supports(ops::Quantize{.source = source, .operand = operand});
  if (!support) {
    throw InputError(
        {.where = fmt::format("backend {}", backend.name()), .reason = support.reason});
  }
  allocate_memory(backend, operand);
  return operand;
}

void quantize_into(Backend& backend, const TensorView& values, bool transpose, std::uint64_t seed,
                   const std::string& name, const std::optional<Partner>& partner,
                   QuantizedOperand& operand) {
  if (values.dtype != DType::f32 && values.dtype != DType::bf16) {
    throw InputError({.where = name,
                      .reason = fmt::format("values are {}", name_of(values.dtype)),
                      .accepted = "float32, or uint16 with the bits of bf16"});
  }
  if (operand.spec.scale_source == ScaleSource::delayed) {
    throw InputError({.where = name,
                      .reason = "delayed scaling needs the amax history of a run",
                      .accepted = "current or static scales, or none"});
  }
  const auto* const smoothing = operand.spec.transform.as<Smoothing>();
  if (smoothing != nullptr && partner) {
    operand.is_right = partner->is_left;
    operand.channel_factors = backend.allocate(DType::f32, 1, operand.k);
    const bool swapped = operand.is_right;
    backend.run(ops::SmoothingFactors{.smoothing = *smoothing,
                                      .a = swapped ? partner->values : values,
                                      .transpose_a = swapped ? partner->transpose : transpose,
                                      .b = swapped ? values : partner->values,
                                      .transpose_b = swapped ? transpose : partner->transpose,
                                      .factors = operand.channel_factors});
  }
  if (operand.spec.transform.is<Clamp>()) {
    operand.clamp_bounds = backend.allocate(DType::f32, 1, 2);
  }
  operand.key = {.seed = seed, .orientation = transpose ? 1u : 0u};
  backend.run(ops::Quantize{.source = values, .transpose = transpose, .operand = operand});
}

QuantizedOperand quantize_values(Backend& backend, const TensorView& values, bool transpose,
                                 const QuantSpec& spec, std::uint64_t seed, const std::string& name,
                                 const std::optional<Partner>& partner) {
  QuantizedOperand operand = allocate_operand(backend, spec, transpose ? values.cols : values.rows,
                                              transpose ? values.rows : values.cols);
  quantize_into(backend, values, transpose, seed, name, partner, operand);
  return operand;
}

}  // namespace fp8lab
