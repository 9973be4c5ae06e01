#include "src/cli/matrices.hpp"

#include <fmt/format.h>

#include <cstring>
#include <vector>

#include "emulation/api/error.hpp"

namespace fp8lab::cli {
namespace {

void upload_scales(Backend& backend, NpyArray scales, const std::string& name,
                   QuantizedOperand& operand) {
  const std::int64_t rows = operand.scales.rows;
  const std::int64_t cols = operand.scales.cols;
  // One scale a row may come as a vector.
  const bool vector = scales.dimensions == 1 && cols == 1 && scales.cols == rows;
  if (vector) std::swap(scales.rows, scales.cols);
  if (scales.dtype != DType::f32 || scales.rows != rows || scales.cols != cols) {
    throw Error(
        fmt::format("{}: scales are {} ({}, {}); tile {} of ({}, {}) codes needs f32 ({}, {})",
                    name, name_of(scales.dtype), scales.rows, scales.cols,
                    tile_name(operand.spec.tile), operand.rows, operand.k, rows, cols));
  }
  backend.upload(operand.scales, scales.data.data());
}

}  // namespace

NpyArray read_matrix(const std::string& file) {
  NpyArray array = read_npy(file);
  if (array.rows < 1 || array.cols < 1) {
    throw Error(fmt::format("{}: shape ({}, {}) has no elements", file, array.rows, array.cols));
  }
  return array;
}

TensorView upload(Backend& backend, NpyArray& array) {
  const TensorView view = backend.allocate(array.dtype, array.rows, array.cols);
  backend.upload(view, array.data.data());
  return view;
}

QuantizedOperand allocate_operand(Backend& backend, const QuantSpec& spec, std::int64_t rows,
                                  std::int64_t k) {
  if (const Support support = backend.supports(spec); !support) {
    throw Error(fmt::format("backend {}: {}", backend.name(), support.reason));
  }
  QuantizedOperand operand;
  operand.spec = spec;
  operand.rows = rows;
  operand.k = k;
  operand.codes = backend.allocate(spec.storage(), rows, k);
  if (spec.has_scale()) {
    operand.scales = backend.allocate(DType::f32, spec.tile_rows(rows), spec.scale_cols(k));
  }
  return operand;
}

NpyArray download(Backend& backend, const TensorView& view) {
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

void quantize_into(Backend& backend, const TensorView& values, bool transpose, std::uint64_t seed,
                   const std::string& file, const std::optional<Partner>& partner,
                   QuantizedOperand& operand) {
  if (values.dtype != DType::f32 && values.dtype != DType::bf16) {
    throw Error(fmt::format("{}: values are {}; accepted: float32, or uint16 with the bits of bf16",
                            file, name_of(values.dtype)));
  }
  if (operand.spec.scale_source == ScaleSource::delayed) {
    throw Error(
        fmt::format("{}: delayed scaling needs the amax history of a run; accepted: current "
                    "or static scales, or none",
                    file));
  }
  if (partner) {
    operand.is_right = partner->is_left;
    operand.channel_factors = backend.allocate(DType::f32, 1, operand.k);
    const bool swapped = operand.is_right;
    backend.smoothing_factors(operand.spec.transform, swapped ? partner->values : values,
                              swapped ? partner->transpose : transpose,
                              swapped ? values : partner->values,
                              swapped ? transpose : partner->transpose, operand.channel_factors);
  }
  if (operand.spec.transform.is_clamp()) {
    operand.clamp_bounds = backend.allocate(DType::f32, 1, 2);
  }
  RandomKey key;
  key.seed = seed;
  key.orientation = transpose ? 1 : 0;
  backend.quantize(values, transpose, key, TensorView{}, operand);
}

QuantizedOperand quantize_values(Backend& backend, const TensorView& values, bool transpose,
                                 const QuantSpec& spec, std::uint64_t seed, const std::string& file,
                                 const std::optional<Partner>& partner) {
  QuantizedOperand operand = allocate_operand(backend, spec, transpose ? values.cols : values.rows,
                                              transpose ? values.rows : values.cols);
  quantize_into(backend, values, transpose, seed, file, partner, operand);
  return operand;
}

MatrixOperand make_operand(Backend& backend, NpyArray& values, const std::string& name,
                           const std::optional<NpyArray>& scales, const std::string& scale_name,
                           const QuantSpec& spec, std::uint64_t seed) {
  if (values.dtype != DType::u8) {
    if (scales) {
      throw Error(fmt::format("{}: scales are for uint8 codes, {} holds {} values", scale_name,
                              name, name_of(values.dtype)));
    }
    const TensorView source = upload(backend, values);
    return {quantize_values(backend, source, false, spec, seed, name), source, name};
  }
  if (!spec.is_quantized()) {
    throw Error(fmt::format("{}: holds uint8 codes, but the operand is {}", name,
                            format_name(spec.format)));
  }
  if (scales.has_value() != spec.has_scale()) {
    throw Error(fmt::format("{}: quantizer {} {}", name, label(spec),
                            spec.has_scale() ? "needs scales" : "has no scales"));
  }
  QuantizedOperand operand = allocate_operand(backend, spec, values.rows, values.cols);
  operand.key.seed = seed;
  backend.upload(operand.codes, values.data.data());
  if (scales) upload_scales(backend, *scales, scale_name, operand);
  return {operand, TensorView{}, name};
}

MatrixOperand read_operand(Backend& backend, const std::string& file,
                           const std::optional<std::string>& scale_file, const QuantSpec& spec,
                           std::uint64_t seed) {
  NpyArray values = read_matrix(file);
  std::optional<NpyArray> scales;
  if (scale_file) scales = read_matrix(*scale_file);
  return make_operand(backend, values, file, scales, scale_file.value_or(""), spec, seed);
}

void multiply(Backend& backend, const GemmSpec& spec, const MatrixOperand& a,
              const MatrixOperand& b, const TensorView& bias, bool accumulate,
              const TensorView& d) {
  backend.gemm(spec, a.operand, b.operand, bias, accumulate, d);
  const Transform &left = a.operand.spec.transform, &right = b.operand.spec.transform;
  if (!left.compensated && !right.compensated) return;
  for (const MatrixOperand* matrix : {&a, &b}) {
    if (!matrix->values.empty()) continue;
    throw Error(
        fmt::format("{}: holds codes, but transform {} multiplies the values of both "
                    "matrices; accepted: float32, or uint16 with the bits of bf16",
                    matrix->name, transform_name(left.compensated ? left : right)));
  }
  backend.compensate(a.operand, a.values, false, b.operand, b.values, false, d);
}

}  // namespace fp8lab::cli
