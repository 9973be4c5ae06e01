#include "src/model/attention.hpp"

#include "src/model/initialization.hpp"
#include "src/model/norm.hpp"

namespace fp8lab {
namespace {

using Shape = SavedDeclaration::Shape;

std::int64_t q_width(const ModelConfig& model) {
  return model.num_attention_heads * model.head_dim;
}

std::int64_t kv_width(const ModelConfig& model) {
  return model.num_key_value_heads * model.head_dim;
}

std::int64_t qkv_width(const ModelConfig& model) { return q_width(model) + 2 * kv_width(model); }

}  // namespace

Attention::HeadNorms::HeadNorms(Declaration& declaration, const ModelConfig& model)
    : q(rms_norm_weight(declaration, "attention.q_norm", model.head_dim)),
      k(rms_norm_weight(declaration, "attention.k_norm", model.head_dim)),
      qk(declaration.saved("attention.qk", Shape::activation, q_width(model) + kv_width(model))),
      q_rstd(declaration.saved("attention.q_rstd", Shape::row, model.num_attention_heads)),
      k_rstd(declaration.saved("attention.k_rstd", Shape::row, model.num_key_value_heads)) {}

Attention::Attention(Declaration& declaration, const ModelConfig& model, std::int64_t layer)
    : layer_(layer),
      heads_(model.num_attention_heads),
      kv_heads_(model.num_key_value_heads),
      head_dim_(model.head_dim),
      window_(model.window_of(layer)),
      is_rotated_(model.positions == PositionKind::rope),
      epsilon_(static_cast<float>(model.rms_norm_eps)),
      qkv_(declaration.linear(
          "attention.qkv", model.hidden_size,
          {{"q", q_width(model)}, {"k", kv_width(model)}, {"v", kv_width(model)}}, model.qkv_bias,
          model.initializer_range)),
      head_norms_(model.qk_norm ? std::optional<HeadNorms>(HeadNorms(declaration, model))
                                : std::nullopt),
      o_(declaration.linear("attention.o", q_width(model), {{"", model.hidden_size}}, model.o_bias,
                            residual_deviation(model))),
      qkv_out_(declaration.saved("attention.qkv", Shape::activation, qkv_width(model))),
      attended_(declaration.saved("attention.out", Shape::activation, q_width(model))),
      lse_(declaration.saved("attention.lse", Shape::planes, heads_)),
      d_qkv_(
          declaration.scratch("attention.d_qkv", qkv_width(model), PassPhase::attention_backward)),
      d_attended_(
          declaration.scratch("attention.d_out", q_width(model), PassPhase::attention_backward)) {
  declaration.writes_residual(o_);
}

AttentionShape Attention::attention_shape(const Work& work) const {
  const BatchShape& shape = work.shape();
  return {shape.sequences,         shape.sequence_length,  heads_, kv_heads_, head_dim_,
          shape.attention.kv_tile, shape.attention.q_tile, window_};
}

Attention::QkvViews Attention::split(const TensorView& qkv) const {
  const std::int64_t q = heads_ * head_dim_, kv = kv_heads_ * head_dim_;
  return {qkv.columns(0, q), qkv.columns(q, kv), qkv.columns(q + kv, kv), qkv.columns(0, q + kv)};
}

Attention::QkvViews Attention::inputs(const Work& work) const {
  QkvViews views = split(work.saved(qkv_out_));
  if (!head_norms_) return views;
  views.qk = work.saved(head_norms_->qk);
  views.q = views.qk.columns(0, views.q.cols);
  views.k = views.qk.columns(views.q.cols, views.k.cols);
  return views;
}

void Attention::normalise_heads(Work& work) const {
  const QkvViews from = split(work.saved(qkv_out_)), to = inputs(work);
  work.run(ops::RmsNormForward{from.q, work.parameter(head_norms_->q).working(), epsilon_, to.q,
                               work.saved(head_norms_->q_rstd)});
  work.run(ops::RmsNormForward{from.k, work.parameter(head_norms_->k).working(), epsilon_, to.k,
                               work.saved(head_norms_->k_rstd)});
}

void Attention::normalise_heads_backward(Work& work, const QkvViews& gradients) const {
  const Parameter& q_norm = work.parameter(head_norms_->q);
  const Parameter& k_norm = work.parameter(head_norms_->k);
  const QkvViews inputs = split(work.saved(qkv_out_));
  work.run(ops::RmsNormBackward{gradients.q, inputs.q, q_norm.working(),
                                work.saved(head_norms_->q_rstd), gradients.q, q_norm.gradient()});
  work.run(ops::RmsNormBackward{gradients.k, inputs.k, k_norm.working(),
                                work.saved(head_norms_->k_rstd), gradients.k, k_norm.gradient()});
}

void Attention::rotate(Work& work, const QkvViews& views, bool inverse) const {
  if (!is_rotated_) return;
  const RotaryTables& tables = work.rotary();
  work.run(
      ops::Rope{views.qk, work.column(kPositions), tables.cosine, tables.sine, head_dim_, inverse});
}

void Attention::attend(Work& work, const QkvViews& views) const {
  AttentionShape shape = attention_shape(work);
  const KvCache* cache = work.cache();
  if (cache == nullptr) {
    work.run(ops::AttentionForward{shape, views.q, views.k, views.v, work.column(kDocumentStarts),
                                   work.saved(attended_), work.saved(lse_)});
    return;
  }
  shape.batch = cache->sequences();
  shape.sequence = cache->capacity();
  work.run(ops::AttentionCached{shape, views.q, views.k, views.v, cache->query_start(),
                                cache->cached(), cache->layer(layer_).keys,
                                cache->layer(layer_).values, work.saved(attended_)});
}

void Attention::forward(Work& work, const ops::Producer& norm, const TensorView& out) const {
  work.linear(qkv_).forward(work.context(), norm, work.saved(qkv_out_));
  if (head_norms_) normalise_heads(work);
  const QkvViews views = inputs(work);
  rotate(work, views, false);
  attend(work, views);
  work.linear(o_).forward(work.context(), work.saved(attended_), out);
}

void Attention::backward(Work& work, const TensorView& x, const TensorView& dout,
                         const TensorView& dx) const {
  const TensorView attended = work.saved(attended_), d_attended = work.scratch(d_attended_);
  const TensorView d_qkv = work.scratch(d_qkv_);
  work.linear(o_).backward(work.context(), attended, dout, d_attended);
  const QkvViews views = inputs(work), gradients = split(d_qkv);
  work.run(ops::AttentionBackward{attention_shape(work), views.q, views.k, views.v,
                                  work.column(kDocumentStarts), attended, work.saved(lse_),
                                  d_attended, gradients.q, gradients.k, gradients.v});
  rotate(work, gradients, true);
  if (head_norms_) normalise_heads_backward(work, gradients);
  work.linear(qkv_).backward(work.context(), x, d_qkv, dx);
}

}  // namespace fp8lab
