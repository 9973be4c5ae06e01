#include "src/cli/inputs/matrices.hpp"

#include <fmt/format.h>

#include <cstring>
#include <vector>

#include "emulation/base/input_error.hpp"
#include "emulation/ops/gemm/given_operand.hpp"

namespace fp8lab::cli {
namespace {

void upload_scales(Backend& backend, NpyArray scales, const std::string& name,
                   QuantizedOperand& operand) {
  const std::int64_t rows = operand.scales.rows;
  const std::int64_t cols = operand.scales.cols;
  // Scales with one value per row may be given as a vector.
  const bool vector = scales.dimensions == 1 && cols == 1 && scales.cols == rows;
  if (vector) std::swap(scales.rows, scales.cols);
  if (scales.dtype != DType::f32 || scales.rows != rows || scales.cols != cols) {
    throw InputError({.where = name,
                      .reason = fmt::format(
                          "scales are {} ({}, {}); tile {} of ({}, {}) codes needs f32 ({}, {})",
                          name_of(scales.dtype), scales.rows, scales.cols,
                          tile_name(operand.spec.tile), operand.rows, operand.k, rows, cols)});
  }
  check_given_scales(name, scales.view(), operand.spec);
  backend.upload(operand.scales, scales.data.data());
}

}  // namespace

TensorView upload(Backend& backend, const TensorView& matrix) {
  const TensorView copy = backend.allocate(matrix.dtype, matrix.rows, matrix.cols);
  backend.upload(copy, matrix.data);
  return copy;
}

NpyArray read_back(Backend& backend, const TensorView& view) {
  NpyArray array;
  array.dtype = view.dtype;
  array.rows = view.rows;
  array.cols = view.cols;
  array.data.resize(static_cast<std::size_t>(view.size()) * size_of(view.dtype));
  backend.download(array.data.data(), view);
  if (view.dtype != DType::bf16) return array;
  NpyArray wide = array;
  wide.dtype = DType::f32;
  wide.data.resize(array.data.size() * 2);
  for (std::size_t i = 0; i < static_cast<std::size_t>(view.size()); ++i) {
    std::uint16_t bits = 0;
    std::memcpy(&bits, &array.data[2 * i], sizeof bits);
    const std::uint32_t widened = static_cast<std::uint32_t>(bits) << 16;
    std::memcpy(&wide.data[4 * i], &widened, sizeof widened);
  }
  return wide;
}

MatrixOperand make_operand(Backend& backend, const TensorView& values, const std::string& name,
                           const std::optional<NpyArray>& scales, const std::string& scale_name,
                           const QuantSpec& spec, std::uint64_t seed) {
  if (values.dtype != DType::u8) {
    if (scales) {
      throw InputError({.where = scale_name,
                        .reason = fmt::format("scales are for uint8 codes, {} holds {} values",
                                              name, name_of(values.dtype))});
    }
    const TensorView source = upload(backend, values);
    return {quantize_values(backend, source, false, spec, seed, name), source, name};
  }
  if (!spec.is_quantized()) {
    throw InputError({.where = name,
                      .reason = fmt::format("holds uint8 codes, but the operand is {}",
                                            format_name(spec.format))});
  }
  if (scales.has_value() != spec.has_scale()) {
    throw InputError(
        {.where = name,
         .reason = fmt::format("quantizer {} {}", label(spec),
                               spec.has_scale()
                                   ? "needs scales"
                                   : "has no scales; give one with scales by --operand-a/-b")});
  }
  check_given_codes(name, values, spec.format);
  QuantizedOperand operand = allocate_operand(backend, spec, values.rows, values.cols);
  operand.key.seed = seed;
  backend.upload(operand.codes, values.data);
  if (scales) upload_scales(backend, *scales, scale_name, operand);
  return {operand, TensorView{}, name};
}

void multiply(Backend& backend, const GemmSpec& spec, const MatrixOperand& a,
              const MatrixOperand& b, const TensorView& bias, bool accumulate,
              const TensorView& d) {
  const Transform &left = a.operand.spec.transform, &right = b.operand.spec.transform;
  const Transform& clamp = left.is_compensated() ? left : right;
  for (const MatrixOperand* matrix : {&a, &b}) {
    const bool is_read = matrix->operand.spec.transform.is_compensated() ||
                         clamp.compensation() == Compensation::original;
    if (!matrix->values.empty() || !clamp.is_compensated() || !is_read) continue;
    throw InputError(
        {.where = matrix->name,
         .reason = fmt::format(
             "holds codes, but transform {} multiplies the values of {}", transform_name(clamp),
             clamp.compensation() == Compensation::original ? "both matrices" : "this matrix"),
         .accepted = "float32, or uint16 with the bits of bf16"});
  }
  ops::Product product{.gemm = {.spec = spec,
                                .a = a.operand,
                                .b = b.operand,
                                .bias = bias,
                                .accumulate = accumulate,
                                .d = d},
                       .a_source = a.values,
                       .b_source = b.values};
  if (product.is_apart()) product.apart = backend.allocate(DType::f32, d.rows, d.cols);
  backend.run(product);
}

}  // namespace fp8lab::cli
