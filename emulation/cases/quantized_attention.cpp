// Cases of attention on quantized operands.
#include <fmt/format.h>

#include <utility>

#include "emulation/cases/attention_draw.hpp"
#include "emulation/cases/list.hpp"
#include "emulation/cases/operand_draw.hpp"

namespace fp8lab {
namespace {

using numerics::ScaleFormat;

enum class Pass : std::uint8_t { forward, backward, cached };

/// The quantizers of one case.
struct CaseQuantizers {
  DType values = DType::bf16;
  QuantSpec q, k, v, dout, p, ds;

  std::string what() const {
    return fmt::format("q {} k {} v {} do {} p {} ds {}", label(q), label(k), label(v), label(dout),
                       label(p), label(ds));
  }
};

QuantSpec unquantized(DType values) {
  QuantSpec spec;
  spec.format = values == DType::f32 ? numerics::kFP32 : numerics::kBF16;
  return spec;
}

numerics::FormatSpec draw_format(CaseDraw& draw) {
  if (draw.one_in(6)) return draw.one_in(2) ? numerics::kInt8 : numerics::kE3M4;
  return draw.one_in(3) ? numerics::kE5M2 : numerics::kE4M3;
}

/// Draws the scales of an operand whose products sum tiles of `width` tokens.
QuantSpec draw_operand(CaseDraw& draw, const AttentionShape& a, DType values, std::int64_t width,
                       bool of_tokens, bool cached) {
  if (draw.one_in(6)) return unquantized(values);
  QuantSpec spec =
      quantized(draw_format(draw), {0, 0}, draw.one_in(3) ? ScaleFormat::pow2 : ScaleFormat::fp32);
  if (spec.scale.format == ScaleFormat::pow2) {
    spec.scale.rounding = numerics::ScaleRounding::enc_floor;
  }
  if (draw.one_in(4) || (cached && !of_tokens)) {
    spec.scale = {};
    spec.scale_source = draw.one_in(4) ? ScaleSource::none : ScaleSource::static_scale;
    spec.static_scale = 0.0625f;
    return spec;
  }
  const bool fits = a.sequence % width == 0;
  const std::uint32_t choice = cached ? 3 : draw.word() % (of_tokens ? 4 : 3);
  if (choice == 1) spec.tile = {a.sequence, a.head_dim};
  if (choice == 2) spec.tile = {fits ? width : a.sequence, a.head_dim};
  if (choice == 3) spec.tile = {1, draw.one_in(3) ? 0 : a.head_dim};
  return spec;
}

CaseQuantizers draw_quantizers(CaseDraw& draw, const AttentionShape& a, DType values, Pass pass) {
  CaseQuantizers drawn;
  drawn.values = values;
  const bool tokens = pass != Pass::backward, cached = pass == Pass::cached;
  drawn.q = draw_operand(draw, a, values, a.q_tile, tokens, cached);
  drawn.k = draw_operand(draw, a, values, a.kv_tile, tokens, cached);
  drawn.v = draw_operand(draw, a, values, a.kv_tile, false, cached);
  drawn.dout = draw_operand(draw, a, values, a.q_tile, false, false);
  if (drawn.q.is_cast() && drawn.k.is_cast() && draw.one_in(2)) {
    const char* const name = a.head_dim % 16 == 0 ? "hadamard:16:+--+" : "hadamard:4";
    drawn.q.transform = drawn.k.transform = transform_from_name(name).value();
  }
  drawn.p = drawn.ds = unquantized(values);
  if (!draw.one_in(4)) {
    drawn.p = quantized(draw_format(draw), {0, 0});
    drawn.p.scale_source = ScaleSource::static_scale;
    drawn.p.static_scale = draw.one_in(2) ? 0x1p-8f : 0.01f;
  }
  if (draw.one_in(4)) return drawn;
  drawn.ds = quantized(draw.one_in(2) ? numerics::kE5M2 : draw_format(draw), {0, 0},
                       draw.one_in(2) ? ScaleFormat::pow2 : ScaleFormat::fp32);
  if (drawn.ds.scale.format == ScaleFormat::pow2) {
    drawn.ds.scale.rounding = numerics::ScaleRounding::enc_floor;
  }
  if (draw.one_in(3)) drawn.ds.scale_source = ScaleSource::delayed;
  if (drawn.ds.scale_source == ScaleSource::delayed) drawn.ds.history_length = 3;
  return drawn;
}

/// Draws quantizers of the forward pass that kernels on FP8 tensor cores support: E4M3 with one
/// scale in each tile of 64 keys.
CaseQuantizers draw_fp8_quantizers(CaseDraw& draw, const AttentionShape& a) {
  CaseQuantizers drawn;
  const bool by_tiles = a.sequence % a.kv_tile == 0 && draw.one_in(2);
  drawn.q = drawn.k = drawn.v =
      quantized(numerics::kE4M3, {by_tiles ? a.kv_tile : a.sequence, a.head_dim});
  if (draw.one_in(3)) drawn.v.tile = {0, 0};
  if (draw.one_in(3)) drawn.q.tile = {1, a.head_dim};
  drawn.p = quantized(numerics::kE4M3, {0, 0});
  drawn.p.scale_source = ScaleSource::static_scale;
  drawn.p.static_scale = draw.one_in(3) ? 0.01f : 0x1p-8f;
  drawn.dout = drawn.ds = unquantized(DType::bf16);
  return drawn;
}

/// A pass and its tensors: sources, codes and scales of q, k and v, document starts, out and lse.
struct QuantizedPass {
  AttentionShape shape;
  CaseQuantizers numerics;
  std::int64_t tokens, q_cols, kv_cols;

  QuantizedPass(const AttentionShape& drawn, CaseQuantizers quantizers)
      : shape(drawn),
        numerics(std::move(quantizers)),
        tokens(shape.batch * shape.sequence),
        q_cols(shape.heads * shape.head_dim),
        kv_cols(shape.kv_heads * shape.head_dim) {}

  std::vector<HostTensor> draw_tensors(CaseDraw& draw) const {
    const DType dtype = numerics.values;
    return {draw.ordinary(dtype, tokens, q_cols),
            draw.ordinary(dtype, tokens, kv_cols),
            draw.ordinary(dtype, tokens, kv_cols),
            codes_of(draw, numerics.q, tokens, q_cols),
            scales_of(draw, numerics.q, tokens, q_cols),
            codes_of(draw, numerics.k, tokens, kv_cols),
            scales_of(draw, numerics.k, tokens, kv_cols),
            codes_of(draw, numerics.v, tokens, kv_cols),
            scales_of(draw, numerics.v, tokens, kv_cols),
            draw_documents(draw, shape, draw.one_in(2) ? 40 : 4000),
            draw.output(draw.one_in(2) ? DType::bf16 : DType::f32, tokens, q_cols),
            draw.output(DType::f32, shape.heads, tokens)};
  }
  std::string what() const {
    return fmt::format("{} batch {} sequence {} heads {}/{} dim {} tiles {}/{} window {}: {}",
                       name_of(numerics.values), shape.batch, shape.sequence, shape.heads,
                       shape.kv_heads, shape.head_dim, shape.kv_tile, shape.q_tile, shape.window,
                       numerics.what());
  }
  static QuantizedOperand quantize(Backend& b, const QuantSpec& spec, const Views& t,
                                   std::size_t source, std::size_t first) {
    QuantizedOperand operand = operand_at(spec, t[source].rows, t[source].cols, t, first);
    b.run(ops::Quantize{.source = t[source], .operand = operand});
    return operand;
  }
  QuantizedOperand q(Backend& b, const Views& t) const { return quantize(b, numerics.q, t, 0, 3); }
  QuantizedOperand k(Backend& b, const Views& t) const { return quantize(b, numerics.k, t, 1, 5); }
  QuantizedOperand v(Backend& b, const Views& t) const { return quantize(b, numerics.v, t, 2, 7); }
  void run(Backend& b, const Views& t) const {
    const QuantizedOperand of_q = q(b, t), of_k = k(b, t), of_v = v(b, t);
    b.run(ops::QuantizedAttentionForward{.shape = shape,
                                         .values = numerics.values,
                                         .q = of_q,
                                         .k = of_k,
                                         .v = of_v,
                                         .p = numerics.p,
                                         .document_start = t[9],
                                         .out = t[10],
                                         .lse = t[11]});
  }
};

/// Draws one pass of each type, and two with heads and tiles as in models; of the forward pass also
/// two for FP8 tensor cores.
std::vector<QuantizedPass> draw_passes(CaseDraw& draw, Pass pass) {
  std::vector<QuantizedPass> passes;
  const auto add = [&](const AttentionShape& shape, DType values) {
    passes.emplace_back(shape, draw_quantizers(draw, shape, values, pass));
  };
  for (const std::int64_t sequence : {draw.integer(1, 200), std::int64_t{256}}) {
    if (pass != Pass::forward) break;
    AttentionShape shape = draw_model_attention_shape(draw);
    shape.head_dim = draw.one_in(2) ? 64 : 128;
    shape.sequence = sequence;
    shape.batch = draw.integer(1, 2);
    shape.kv_tile = 64;
    passes.emplace_back(shape, draw_fp8_quantizers(draw, shape));
  }
  for (const DType values : kActivationTypes) add(draw_attention_shape(draw), values);
  for (const std::int64_t sequence : {192, 256}) {
    AttentionShape shape = draw_model_attention_shape(draw);
    shape.sequence = sequence;
    shape.batch = draw.integer(1, 2);
    add(shape, DType::bf16);
  }
  return passes;
}

}  // namespace

template <>
void draw_cases<ops::QuantizedAttentionForward>(CaseDraw& draw) {
  for (const QuantizedPass& forward : draw_passes(draw, Pass::forward)) {
    draw.add("quantized_attention_forward", forward.what(), forward.draw_tensors(draw),
             [forward](Backend& b, const Views& t) { forward.run(b, t); });
  }
}

template <>
void draw_cases<ops::QuantizedAttentionBackward>(CaseDraw& draw) {
  for (const QuantizedPass& forward : draw_passes(draw, Pass::backward)) {
    const CaseQuantizers& numerics = forward.numerics;
    const DType dtype = numerics.values;
    const std::int64_t tokens = forward.tokens, q_cols = forward.q_cols;
    std::vector<HostTensor> tensors = forward.draw_tensors(draw);
    tensors.push_back(draw.ordinary(dtype, tokens, q_cols));
    tensors.push_back(codes_of(draw, numerics.dout, tokens, q_cols));
    tensors.push_back(scales_of(draw, numerics.dout, tokens, q_cols));
    tensors.push_back(draw.output(dtype, tokens, q_cols));
    tensors.push_back(draw.output(dtype, tokens, forward.kv_cols));
    tensors.push_back(draw.output(dtype, tokens, forward.kv_cols));
    tensors.push_back(state_of(draw, numerics.ds));
    draw.add("quantized_attention_backward", forward.what(), std::move(tensors),
             [forward](Backend& b, const Views& t) {
               const CaseQuantizers& of = forward.numerics;
               forward.run(b, t);
               const QuantizedOperand q = forward.q(b, t), k = forward.k(b, t), v = forward.v(b, t),
                                      dout = QuantizedPass::quantize(b, of.dout, t, 12, 13);
               const TensorView state = state_for(of.ds, t[18]);
               // The second pass has the delayed scale that the first one gave rise to.
               for (int i = 0; i < (state.empty() ? 1 : 2); ++i) {
                 b.run(ops::QuantizedAttentionBackward{.shape = forward.shape,
                                                       .values = of.values,
                                                       .q = q,
                                                       .k = k,
                                                       .v = v,
                                                       .dout = dout,
                                                       .p = of.p,
                                                       .ds = of.ds,
                                                       .ds_state = state,
                                                       .document_start = t[9],
                                                       .out = t[10],
                                                       .lse = t[11],
                                                       .dq = t[15],
                                                       .dk = t[16],
                                                       .dv = t[17]});
                 if (!state.empty()) b.run(ops::UpdateDelayedScale{of.ds, state});
               }
             });
  }
}

template <>
void draw_cases<ops::QuantizedAttentionCached>(CaseDraw& draw) {
  for (const QuantizedPass& drawn : draw_passes(draw, Pass::cached)) {
    const AttentionShape a = drawn.shape;
    const CaseQuantizers of = drawn.numerics;
    const Arrivals arrivals(draw, a);
    const std::int64_t tokens = arrivals.tokens, rows = a.batch * a.sequence;
    const auto source = [&](std::int64_t cols) { return draw.ordinary(of.values, tokens, cols); };
    // Every code of the cache is a finite number: bytes below 64 are so in all formats.
    const auto cache = [&](const QuantSpec& spec) {
      HostTensor held = spec.is_quantized() ? draw.bytes(rows, drawn.kv_cols, 6)
                                            : draw.ordinary(of.values, rows, drawn.kv_cols);
      arrivals.spoil(held);
      return updated(std::move(held));
    };
    const bool has_scales = of.k.scale_source == ScaleSource::current;
    HostTensor scales = magnitudes(
        draw.ordinary(DType::f32, has_scales ? rows : 1, of.k.scale_cols(drawn.kv_cols)));
    if (has_scales) arrivals.spoil(scales);
    draw.add(
        "quantized_attention_cached", fmt::format("{} new tokens {}", drawn.what(), tokens),
        {source(drawn.q_cols), source(drawn.kv_cols), source(drawn.kv_cols),
         codes_of(draw, of.q, tokens, drawn.q_cols), scales_of(draw, of.q, tokens, drawn.q_cols),
         codes_of(draw, of.k, tokens, drawn.kv_cols), scales_of(draw, of.k, tokens, drawn.kv_cols),
         codes_of(draw, of.v, tokens, drawn.kv_cols), scales_of(draw, of.v, tokens, drawn.kv_cols),
         arrivals.start, arrivals.cached, cache(of.k), cache(of.v), updated(std::move(scales)),
         draw.output(of.values, tokens, drawn.q_cols)},
        [drawn, has_scales](Backend& b, const Views& t) {
          const QuantizedOperand q = drawn.q(b, t), k = drawn.k(b, t), v = drawn.v(b, t);
          b.run(ops::QuantizedAttentionCached{.shape = drawn.shape,
                                              .values = drawn.numerics.values,
                                              .q = q,
                                              .k = k,
                                              .v = v,
                                              .p = drawn.numerics.p,
                                              .query_start = t[9],
                                              .cached = t[10],
                                              .k_cache = t[11],
                                              .v_cache = t[12],
                                              .k_scale_cache = has_scales ? t[13] : TensorView{},
                                              .out = t[14]});
        });
  }
}

}  // namespace fp8lab
