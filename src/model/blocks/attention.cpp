#include "src/model/blocks/attention.hpp"

#include <utility>

namespace fp8lab {

AttentionShape Attention::attention_shape(const Work& work) const {
  const BatchShape& shape = work.shape();
  return {shape.sequences,        shape.sequence_length, parts_.heads,
          parts_.kv_heads,        parts_.head_dim,       shape.attention.kv_tile,
          shape.attention.q_tile, parts_.window,         parts_.softmax_scale};
}

Attention::QkvViews Attention::split(const TensorView& qkv) const {
  const std::int64_t q = parts_.heads * parts_.head_dim, kv = parts_.kv_heads * parts_.head_dim;
  return {qkv.columns(0, q), qkv.columns(q, kv), qkv.columns(q + kv, kv), qkv.columns(0, q + kv)};
}

Attention::QkvViews Attention::inputs(const Work& work) const {
  QkvViews views = split(work.saved(parts_.qkv_out));
  if (!parts_.norms) return views;
  views.qk = work.saved(parts_.norms->qk);
  views.q = views.qk.columns(0, views.q.cols);
  views.k = views.qk.columns(views.q.cols, views.k.cols);
  return views;
}

void Attention::normalise_heads(Work& work) const {
  const QkvViews from = split(work.saved(parts_.qkv_out)), to = inputs(work);
  const QkNormParts& norms = *parts_.norms;
  const auto normalise = [&](ParameterId id, const TensorView& x, const TensorView& y,
                             SavedId QkNormParts::Rstd::*rstd) {
    const Parameter& norm = work.parameter(id);
    if (!norms.rstd) {
      work.run(norm.name(), ops::DynamicTanhForward{.x = x, .alpha = norm.working(), .out = y});
      return;
    }
    work.run(norm.name(), ops::RmsNormForward{.x = x,
                                              .weight = norm.working(),
                                              .epsilon = parts_.epsilon,
                                              .y = y,
                                              .rstd = work.saved((*norms.rstd).*rstd)});
  };
  normalise(norms.q, from.q, to.q, &QkNormParts::Rstd::q);
  normalise(norms.k, from.k, to.k, &QkNormParts::Rstd::k);
}

void Attention::normalise_heads_backward(Work& work, const QkvViews& gradients) const {
  const QkvViews inputs = split(work.saved(parts_.qkv_out));
  const QkNormParts& norms = *parts_.norms;
  const auto differentiate = [&](ParameterId id, const TensorView& x, const TensorView& gradient,
                                 SavedId QkNormParts::Rstd::*rstd) {
    const Parameter& norm = work.parameter(id);
    if (!norms.rstd) return bound_backward(work, norm, x, gradient);
    work.run(norm.name(), ops::RmsNormBackward{.dy = gradient,
                                               .x = x,
                                               .weight = norm.working(),
                                               .rstd = work.saved((*norms.rstd).*rstd),
                                               .dx = gradient,
                                               .dweight = norm.gradient()});
  };
  differentiate(norms.q, inputs.q, gradients.q, &QkNormParts::Rstd::q);
  differentiate(norms.k, inputs.k, gradients.k, &QkNormParts::Rstd::k);
}

void Attention::bound_backward(Work& work, const Parameter& alpha, const TensorView& x,
                               const TensorView& gradient) const {
  const TensorView terms = alpha.is_trained() ? work.scratch(parts_.norms->terms) : TensorView{};
  work.run(alpha.name(),
           ops::DynamicTanhBackward{
               .x = x, .alpha = alpha.working(), .dout = gradient, .dx = gradient, .terms = terms});
  if (terms.empty()) return;
  work.run(alpha.name(), ops::BiasBackward{.dy = terms, .dbias = alpha.gradient()});
}

void Attention::rotate(Work& work, const QkvViews& views, bool inverse) const {
  if (!parts_.is_rotated) return;
  const RotaryTables& tables = work.rotary();
  work.run(name_, ops::Rope{.x = views.qk,
                            .positions = work.column(kPositions),
                            .cosine = tables.cosine,
                            .sine = tables.sine,
                            .head_dim = parts_.head_dim,
                            .inverse = inverse});
}

void Attention::attend(Work& work, const QkvViews& views) const {
  if (work.attention() != nullptr && work.attention()->quantizes_forward()) {
    return attend_quantized(work, views);
  }
  AttentionShape shape = attention_shape(work);
  const KvCache* cache = work.cache();
  if (cache == nullptr) {
    work.run(name_, ops::AttentionForward{.shape = shape,
                                          .q = views.q,
                                          .k = views.k,
                                          .v = views.v,
                                          .document_start = work.column(kDocumentStarts),
                                          .out = work.saved(parts_.attended),
                                          .lse = work.saved(parts_.lse)});
    return;
  }
  shape.batch = cache->sequences();
  shape.sequence = cache->capacity();
  work.run(name_, ops::AttentionCached{.shape = shape,
                                       .q = views.q,
                                       .k = views.k,
                                       .v = views.v,
                                       .query_start = cache->query_start(),
                                       .cached = cache->cached(),
                                       .k_cache = cache->layer(layer_).keys,
                                       .v_cache = cache->layer(layer_).values,
                                       .out = work.saved(parts_.attended)});
}

void Attention::attend_quantized(Work& work, const QkvViews& views) const {
  AttentionOperands& operands = *work.attention();
  const auto make = [&](AttentionSlot slot, const TensorView& values) -> const QuantizedOperand& {
    return operands.make(work.context(), layer_, slot, values, true);
  };
  const QuantizedOperand &q = make(AttentionSlot::q, views.q), &k = make(AttentionSlot::k, views.k),
                         &v = make(AttentionSlot::v, views.v);
  AttentionShape shape = attention_shape(work);
  const KvCache* cache = work.cache();
  if (cache == nullptr) {
    work.run(name_, ops::QuantizedAttentionForward{.shape = shape,
                                                   .values = operands.values(),
                                                   .q = q,
                                                   .k = k,
                                                   .v = v,
                                                   .p = operands.spec(AttentionSlot::p),
                                                   .document_start = work.column(kDocumentStarts),
                                                   .out = work.saved(parts_.attended),
                                                   .lse = work.saved(parts_.lse)});
    return;
  }
  shape.batch = cache->sequences();
  shape.sequence = cache->capacity();
  const KvCache::Layer& layer = cache->layer(layer_);
  work.run(name_, ops::QuantizedAttentionCached{.shape = shape,
                                                .values = operands.values(),
                                                .q = q,
                                                .k = k,
                                                .v = v,
                                                .p = operands.spec(AttentionSlot::p),
                                                .query_start = cache->query_start(),
                                                .cached = cache->cached(),
                                                .k_cache = layer.keys,
                                                .v_cache = layer.values,
                                                .k_scale_cache = layer.key_scales,
                                                .out = work.saved(parts_.attended)});
}

void Attention::differentiate(Work& work, const QkvViews& views, const TensorView& dout,
                              const QkvViews& gradients) const {
  if (work.attention() != nullptr && work.attention()->quantizes_backward()) {
    return differentiate_quantized(work, views, dout, gradients);
  }
  work.run(name_, ops::AttentionBackward{.shape = attention_shape(work),
                                         .q = views.q,
                                         .k = views.k,
                                         .v = views.v,
                                         .document_start = work.column(kDocumentStarts),
                                         .out = work.saved(parts_.attended),
                                         .lse = work.saved(parts_.lse),
                                         .dout = dout,
                                         .dq = gradients.q,
                                         .dk = gradients.k,
                                         .dv = gradients.v});
}

void Attention::differentiate_quantized(Work& work, const QkvViews& views, const TensorView& dout,
                                        const QkvViews& gradients) const {
  AttentionOperands& operands = *work.attention();
  const auto make = [&](AttentionSlot slot, const TensorView& values) -> const QuantizedOperand& {
    return operands.make(work.context(), layer_, slot, values, slot == AttentionSlot::dout);
  };
  const QuantizedOperand &q = make(AttentionSlot::q, views.q), &k = make(AttentionSlot::k, views.k),
                         &v = make(AttentionSlot::v, views.v),
                         &d_out = make(AttentionSlot::dout, dout);
  work.run(name_, ops::QuantizedAttentionBackward{.shape = attention_shape(work),
                                                  .values = operands.values(),
                                                  .q = q,
                                                  .k = k,
                                                  .v = v,
                                                  .dout = d_out,
                                                  .p = operands.spec(AttentionSlot::p),
                                                  .ds = operands.spec(AttentionSlot::ds),
                                                  .ds_state = operands.ds_state(layer_),
                                                  .document_start = work.column(kDocumentStarts),
                                                  .out = work.saved(parts_.attended),
                                                  .lse = work.saved(parts_.lse),
                                                  .dq = gradients.q,
                                                  .dk = gradients.k,
                                                  .dv = gradients.v});
  // q and k are transformed along their columns, which are the rows of a right operand.
  for (const auto& [operand, gradient] : {std::pair{&q, gradients.q}, std::pair{&k, gradients.k}}) {
    if (!operand->spec.transform) continue;
    QuantizedOperand tokens, columns;
    tokens.rows = gradient.rows;
    columns.rows = gradient.cols;
    columns.source_space = operand->own_space();
    work.run(name_, ops::RotateBack{.a = tokens, .b = columns, .d = gradient});
  }
}

void Attention::forward(Work& work, const BlockInput& input, const TensorView& out) const {
  forward_linear(work, parts_.qkv, input, work.saved(parts_.qkv_out));
  if (parts_.norms) normalise_heads(work);
  const QkvViews views = inputs(work);
  rotate(work, views, false);
  attend(work, views);
  forward_linear(work, parts_.o, work.saved(parts_.attended), out);
}

void Attention::backward(Work& work, const TensorView& x, const TensorView& dout,
                         const TensorView& dx) const {
  const TensorView attended = work.saved(parts_.attended),
                   d_attended = work.scratch(parts_.d_attended);
  const TensorView d_qkv = work.scratch(parts_.d_qkv);
  backward_linear(work, parts_.o, attended, dout, d_attended);
  const QkvViews views = inputs(work), gradients = split(d_qkv);
  differentiate(work, views, d_attended, gradients);
  rotate(work, gradients, true);
  if (parts_.norms) normalise_heads_backward(work, gradients);
  backward_linear(work, parts_.qkv, x, d_qkv, dx);
}

}  // namespace fp8lab
