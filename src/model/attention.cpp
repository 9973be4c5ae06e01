#include "src/model/attention.hpp"

namespace fp8lab {

AttentionShape Attention::attention_shape(const Work& work) const {
  const BatchShape& shape = work.shape();
  return {shape.sequences, shape.sequence_length,   parts_.heads,           parts_.kv_heads,
          parts_.head_dim, shape.attention.kv_tile, shape.attention.q_tile, parts_.window};
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
  work.run(ops::RmsNormForward{from.q, work.parameter(parts_.norms->q).working(), parts_.epsilon,
                               to.q, work.saved(parts_.norms->q_rstd)});
  work.run(ops::RmsNormForward{from.k, work.parameter(parts_.norms->k).working(), parts_.epsilon,
                               to.k, work.saved(parts_.norms->k_rstd)});
}

void Attention::normalise_heads_backward(Work& work, const QkvViews& gradients) const {
  const Parameter& q_norm = work.parameter(parts_.norms->q);
  const Parameter& k_norm = work.parameter(parts_.norms->k);
  const QkvViews inputs = split(work.saved(parts_.qkv_out));
  work.run(ops::RmsNormBackward{gradients.q, inputs.q, q_norm.working(),
                                work.saved(parts_.norms->q_rstd), gradients.q, q_norm.gradient()});
  work.run(ops::RmsNormBackward{gradients.k, inputs.k, k_norm.working(),
                                work.saved(parts_.norms->k_rstd), gradients.k, k_norm.gradient()});
}

void Attention::rotate(Work& work, const QkvViews& views, bool inverse) const {
  if (!parts_.is_rotated) return;
  const RotaryTables& tables = work.rotary();
  work.run(ops::Rope{views.qk, work.column(kPositions), tables.cosine, tables.sine, parts_.head_dim,
                     inverse});
}

void Attention::attend(Work& work, const QkvViews& views) const {
  AttentionShape shape = attention_shape(work);
  const KvCache* cache = work.cache();
  if (cache == nullptr) {
    work.run(ops::AttentionForward{shape, views.q, views.k, views.v, work.column(kDocumentStarts),
                                   work.saved(parts_.attended), work.saved(parts_.lse)});
    return;
  }
  shape.batch = cache->sequences();
  shape.sequence = cache->capacity();
  work.run(ops::AttentionCached{shape, views.q, views.k, views.v, cache->query_start(),
                                cache->cached(), cache->layer(layer_).keys,
                                cache->layer(layer_).values, work.saved(parts_.attended)});
}

void Attention::forward(Work& work, const BlockInput& input, const TensorView& out) const {
  forward_linear(work, parts_.qkv, input, work.saved(parts_.qkv_out));
  if (parts_.norms) normalise_heads(work);
  const QkvViews views = inputs(work);
  rotate(work, views, false);
  attend(work, views);
  work.linear(parts_.o).forward(work.context(), work.saved(parts_.attended), out);
}

void Attention::backward(Work& work, const TensorView& x, const TensorView& dout,
                         const TensorView& dx) const {
  const TensorView attended = work.saved(parts_.attended),
                   d_attended = work.scratch(parts_.d_attended);
  const TensorView d_qkv = work.scratch(parts_.d_qkv);
  work.linear(parts_.o).backward(work.context(), attended, dout, d_attended);
  const QkvViews views = inputs(work), gradients = split(d_qkv);
  work.run(ops::AttentionBackward{attention_shape(work), views.q, views.k, views.v,
                                  work.column(kDocumentStarts), attended, work.saved(parts_.lse),
                                  d_attended, gradients.q, gradients.k, gradients.v});
  rotate(work, gradients, true);
  if (parts_.norms) normalise_heads_backward(work, gradients);
  work.linear(parts_.qkv).backward(work.context(), x, d_qkv, dx);
}

}  // namespace fp8lab
