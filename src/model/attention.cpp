#include "src/model/attention.hpp"

#include <string>

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
    : name_("layers." + std::to_string(layer) + ".attention"),
      layer_(layer),
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
  const Parameter& q_norm = work.parameter(head_norms_->q);
  const Parameter& k_norm = work.parameter(head_norms_->k);
  work.run(q_norm.name(), ops::RmsNormForward{.x = from.q,
                                              .weight = q_norm.working(),
                                              .epsilon = epsilon_,
                                              .y = to.q,
                                              .rstd = work.saved(head_norms_->q_rstd)});
  work.run(k_norm.name(), ops::RmsNormForward{.x = from.k,
                                              .weight = k_norm.working(),
                                              .epsilon = epsilon_,
                                              .y = to.k,
                                              .rstd = work.saved(head_norms_->k_rstd)});
}

void Attention::normalise_heads_backward(Work& work, const QkvViews& gradients) const {
  const Parameter& q_norm = work.parameter(head_norms_->q);
  const Parameter& k_norm = work.parameter(head_norms_->k);
  const QkvViews inputs = split(work.saved(qkv_out_));
  work.run(q_norm.name(), ops::RmsNormBackward{.dy = gradients.q,
                                               .x = inputs.q,
                                               .weight = q_norm.working(),
                                               .rstd = work.saved(head_norms_->q_rstd),
                                               .dx = gradients.q,
                                               .dweight = q_norm.gradient()});
  work.run(k_norm.name(), ops::RmsNormBackward{.dy = gradients.k,
                                               .x = inputs.k,
                                               .weight = k_norm.working(),
                                               .rstd = work.saved(head_norms_->k_rstd),
                                               .dx = gradients.k,
                                               .dweight = k_norm.gradient()});
}

void Attention::rotate(Work& work, const QkvViews& views, bool inverse) const {
  if (!is_rotated_) return;
  const RotaryTables& tables = work.rotary();
  work.run(name_, ops::Rope{.x = views.qk,
                            .positions = work.column(kPositions),
                            .cosine = tables.cosine,
                            .sine = tables.sine,
                            .head_dim = head_dim_,
                            .inverse = inverse});
}

void Attention::attend(Work& work, const QkvViews& views) const {
  AttentionShape shape = attention_shape(work);
  const KvCache* cache = work.cache();
  if (cache == nullptr) {
    work.run(name_, ops::AttentionForward{.shape = shape,
                                          .q = views.q,
                                          .k = views.k,
                                          .v = views.v,
                                          .document_start = work.column(kDocumentStarts),
                                          .out = work.saved(attended_),
                                          .lse = work.saved(lse_)});
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
                                       .out = work.saved(attended_)});
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
  work.run(name_, ops::AttentionBackward{.shape = attention_shape(work),
                                         .q = views.q,
                                         .k = views.k,
                                         .v = views.v,
                                         .document_start = work.column(kDocumentStarts),
                                         .out = attended,
                                         .lse = work.saved(lse_),
                                         .dout = d_attended,
                                         .dq = gradients.q,
                                         .dk = gradients.k,
                                         .dv = gradients.v});
  rotate(work, gradients, true);
  if (head_norms_) normalise_heads_backward(work, gradients);
  work.linear(qkv_).backward(work.context(), x, d_qkv, dx);
}

}  // namespace fp8lab
