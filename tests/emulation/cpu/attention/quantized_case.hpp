// Inputs of quantized attention for tests: operands that own their codes and scales.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "emulation/cpu/operations.hpp"
#include "tests/emulation/cpu/attention/attention_case.hpp"

namespace fp8lab::test {

/// A quantizer of this format, scaled by the amax of `tile`.
inline QuantSpec scaled(const numerics::FormatSpec& format, TileShape tile) {
  QuantSpec spec;
  spec.format = format;
  spec.tile = tile;
  spec.scale_source = ScaleSource::current;
  return spec;
}

inline QuantSpec statically_scaled(const numerics::FormatSpec& format, float scale) {
  QuantSpec spec = scaled(format, {0, 0});
  spec.scale_source = ScaleSource::static_scale;
  spec.static_scale = scale;
  return spec;
}

inline QuantSpec passed_through(DType values) {
  QuantSpec spec;
  spec.format = values == DType::f32 ? numerics::kFP32 : numerics::kBF16;
  return spec;
}

/// An operand with its memory.
class OwnedOperand {
 public:
  OwnedOperand(const QuantSpec& spec, const TensorView& source)
      : codes_(spec.storage(), source.rows, source.cols),
        scales_(DType::f32, spec.tile_rows(source.rows), spec.scale_cols(source.cols)) {
    operand_.spec = spec;
    operand_.rows = source.rows;
    operand_.k = source.cols;
    operand_.codes = codes_.view();
    if (spec.has_scale()) operand_.scales = scales_.view();
    cpu::run(ops::Quantize{.source = source, .operand = operand_});
  }
  OwnedOperand(const OwnedOperand&) = delete;
  OwnedOperand& operator=(const OwnedOperand&) = delete;

  const QuantizedOperand& operand() const { return operand_; }

 private:
  Matrix codes_, scales_;
  QuantizedOperand operand_;
};

/// The quantizers of one pass.
struct AttentionQuantizers {
  QuantSpec q, k, v, dout, p, ds;

  static AttentionQuantizers none(DType values) {
    const QuantSpec spec = passed_through(values);
    return {spec, spec, spec, spec, spec, spec};
  }
};

/// An AttentionCase on operands; dq, dk and dv are columns of input.dqkv.
struct QuantizedCase {
  AttentionCase& input;
  AttentionQuantizers by;
  std::unique_ptr<OwnedOperand> q, k, v, dout;
  std::vector<float> state;  ///< of dS, if its scale is delayed

  QuantizedCase(AttentionCase& source, AttentionQuantizers quantizers)
      : input(source), by(std::move(quantizers)) {
    const std::int64_t h = input.shape.heads, g = input.shape.kv_heads;
    q = std::make_unique<OwnedOperand>(by.q, part(input.qkv, 0, h));
    k = std::make_unique<OwnedOperand>(by.k, part(input.qkv, h, g));
    v = std::make_unique<OwnedOperand>(by.v, part(input.qkv, h + g, g));
    dout = std::make_unique<OwnedOperand>(by.dout, input.dout.view());
    if (by.ds.scale_source == ScaleSource::delayed) {
      state.assign(static_cast<std::size_t>(DelayedState::length(by.ds)), 0.0f);
    }
  }

  TensorView part(Matrix& matrix, std::int64_t first, std::int64_t heads) const {
    const std::int64_t d = input.shape.head_dim;
    return matrix.view().columns(first * d, heads * d);
  }
  TensorView state_view() {
    if (state.empty()) return {};
    const auto length = static_cast<std::int64_t>(state.size());
    return {state.data(), DType::f32, 1, length, length};
  }

  void forward() {
    cpu::run(ops::QuantizedAttentionForward{.shape = input.shape,
                                            .values = input.dtype,
                                            .q = q->operand(),
                                            .k = k->operand(),
                                            .v = v->operand(),
                                            .p = by.p,
                                            .document_start = input.starts.view(),
                                            .out = input.out.view(),
                                            .lse = input.lse.view()});
  }
  void backward() {
    const std::int64_t h = input.shape.heads, g = input.shape.kv_heads;
    cpu::run(ops::QuantizedAttentionBackward{.shape = input.shape,
                                             .values = input.dtype,
                                             .q = q->operand(),
                                             .k = k->operand(),
                                             .v = v->operand(),
                                             .dout = dout->operand(),
                                             .p = by.p,
                                             .ds = by.ds,
                                             .ds_state = state_view(),
                                             .document_start = input.starts.view(),
                                             .out = input.out.view(),
                                             .lse = input.lse.view(),
                                             .dq = part(input.dqkv, 0, h),
                                             .dk = part(input.dqkv, h, g),
                                             .dv = part(input.dqkv, h + g, g)});
  }
};

}  // namespace fp8lab::test
