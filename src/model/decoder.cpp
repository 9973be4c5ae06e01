#include "src/model/decoder.hpp"

#include <algorithm>

#include "emulation/numerics/codec.hpp"

namespace fp8lab {
namespace {

std::vector<DecoderLayer> make_layers(const DecoderParts& parts) {
  std::vector<DecoderLayer> layers;
  for (const LayerParts& layer : parts.layers) {
    layers.emplace_back(layer, static_cast<std::int64_t>(layers.size()));
  }
  return layers;
}

/// The factor of a table's rows in the type of `rows`: transformers casts Gemma's to it.
float rounded_factor(float factor, const TensorView& rows) {
  return rows.dtype == DType::bf16 ? numerics::from_bf16(numerics::to_bf16(factor)) : factor;
}

}  // namespace

Residual Embedding::forward(Work& work, const TensorView& out) const {
  const Parameter& table = work.parameter(parts_.tokens);
  work.run(table.name(), ops::EmbeddingForward{
                             .tokens = work.column(kTokens), .table = table.working(), .out = out});
  if (parts_.factor != 1.0f) {
    work.run(
        table.name(),
        ops::WeightedSum{.a = out, .factor_a = rounded_factor(parts_.factor, out), .sum = out});
  }
  if (!parts_.positions) return {out};
  const TensorView rows = work.scratch(parts_.position_rows);
  const Parameter& positions = work.parameter(*parts_.positions);
  work.run(positions.name(),
           ops::EmbeddingForward{
               .tokens = work.column(kPositions), .table = positions.working(), .out = rows});
  return {out, Residual::Summands{out, rows}};
}

void Embedding::backward(Work& work, const TensorView& dout) const {
  const auto add_rows = [&](const TensorView& indices, const Parameter& rows) {
    if (!rows.is_trained()) return;
    work.run(rows.name(),
             ops::EmbeddingBackward{.tokens = indices, .dout = dout, .dtable = rows.gradient()});
  };
  if (parts_.positions) add_rows(work.column(kPositions), work.parameter(*parts_.positions));
  const Parameter& table = work.parameter(parts_.tokens);
  if (parts_.factor != 1.0f && table.is_trained()) {
    work.run(
        table.name(),
        ops::WeightedSum{.a = dout, .factor_a = rounded_factor(parts_.factor, dout), .sum = dout});
  }
  add_rows(work.column(kTokens), table);
}

template <class Body>
DecoderLayer::NormedBlock<Body> DecoderLayer::block_of(SavedId stream, ResidualFactors factors,
                                                       const BlockNorms& norms, Body body) {
  NormedBlock<Body> block{stream, factors, std::nullopt, body, std::nullopt};
  if (norms.before) block.before = Norm(*norms.before);
  if (norms.after) block.after = NormAfter{norms.after->x, Norm(norms.after->norm)};
  return block;
}

template <class Body>
BlockInput DecoderLayer::NormedBlock<Body>::input(Work& work, const Residual& from) const {
  if (before) return before->forward(work, for_norm(work, from), 0);
  return added_up(work, from);
}

template <class Body>
void DecoderLayer::NormedBlock<Body>::forward(Work& work, const Residual& from,
                                              const TensorView& branch) const {
  const BlockInput x = input(work, from);
  if (!after) return body.forward(work, x, branch);
  const TensorView out = work.saved(after->x);
  body.forward(work, x, out);
  after->norm.run(work, out, branch);
}

template <class Body>
void DecoderLayer::NormedBlock<Body>::backward(Work& work, const TensorView& gradient,
                                               const TensorView& d_branch) const {
  const TensorView x = work.saved(stream);
  const auto branch_factor = static_cast<float>(factors.branch);
  const auto stream_factor = static_cast<float>(factors.stream);
  TensorView d_out = gradient;
  if (branch_factor != 1.0f) {
    work.run(ops::WeightedSum{.a = gradient, .factor_a = branch_factor, .sum = d_branch});
    d_out = d_branch;
  }
  if (after) {
    after->norm.backward(work, d_out, work.saved(after->x), d_branch);
    d_out = d_branch;
  }
  body.backward(work, before ? work.saved_x(before->output()) : x, d_out, d_branch);
  if (stream_factor != 1.0f) {
    work.run(ops::WeightedSum{.a = gradient, .factor_a = stream_factor, .sum = gradient});
  }
  if (before) return before->backward_add(work, d_branch, x, gradient);
  work.run(ops::Add{.a = gradient, .b = d_branch, .sum = gradient});
}

DecoderLayer::DecoderLayer(const LayerParts& parts, std::int64_t index)
    : index_(index),
      attention_(block_of(parts.input, parts.residual, parts.attention_norms,
                          Attention(parts.attention, index))),
      mlp_(block_of(parts.middle, parts.residual, parts.mlp_norms, FeedForward(parts.mlp))),
      branch_(parts.branch),
      d_branch_(parts.d_branch) {}

void DecoderLayer::forward(Work& work, const Residual& stream) const {
  work.enter(PassPhase::attention);
  const TensorView branch = work.scratch(branch_);
  attention_.forward(work, stream, branch);
  work.keep_activations(index_, Block::attention);
  work.enter(PassPhase::feed_forward);
  mlp_.forward(work, middle(work), branch);
  work.keep_activations(index_, Block::feed_forward);
}

void DecoderLayer::recompute(Work& work, bool is_overwritten) const {
  const bool repeats = is_overwritten && work.recomputes(Recompute::gate_up);
  if (!repeats && !work.remakes_x()) return;
  work.enter(PassPhase::recompute);
  // The forward pass has measured the operands.
  const StepContext context = work.context();
  StepContext unmeasured = context;
  unmeasured.log_statistics = false;
  work.begin_pass(unmeasured);
  if (repeats) recompute_overwritten(work);
  if (work.remakes_x()) {
    work.restore_activations(index_, PassPhase::recompute);
    mlp_.body.remake_x(work);
  }
  work.begin_pass(context);
}

void DecoderLayer::recompute_overwritten(Work& work) const {
  Residual stream{work.saved(mlp_.stream)};
  if (work.recomputes(Recompute::layer)) {
    attention_.forward(work, {input(work)}, work.scratch(branch_));
    stream = middle(work);
  }
  mlp_.body.recompute(work, mlp_.input(work, stream));
}

void DecoderLayer::backward(Work& work, const TensorView& gradient) const {
  const TensorView d_branch = work.scratch(d_branch_);
  work.enter(PassPhase::feed_forward_backward);
  work.restore_activations(index_, PassPhase::feed_forward_backward);
  mlp_.backward(work, gradient, d_branch);
  work.enter(PassPhase::attention_backward);
  work.restore_activations(index_, PassPhase::attention_backward);
  attention_.backward(work, gradient, d_branch);
}

Decoder::Decoder(const ModelConfig& model)
    : parts_(declare_decoder(declaration_, model)),
      embedding_(parts_.embedding),
      layers_(make_layers(parts_)),
      norm_(parts_.norm ? std::optional<Norm>(Norm(*parts_.norm)) : std::nullopt) {}

std::vector<Decoder::Chunk> Decoder::chunks(const Work& work) const {
  std::vector<Chunk> all;
  const std::int64_t most = work.shape().logit_rows();
  for (std::int64_t first = 0; first < work.outputs(); first += most) {
    all.push_back({first, std::min(most, work.outputs() - first)});
  }
  return all;
}

StepContext Decoder::context_of(const Work& work, const Chunk& chunk) const {
  const BatchShape& shape = work.shape();
  const std::int64_t index = chunk.first / shape.logit_rows();
  const std::int64_t of_micro_batch = (shape.tokens() - 1) / shape.logit_rows() + 1;
  StepContext context = work.context();
  context.micro_batch = static_cast<std::uint32_t>(context.micro_batch * of_micro_batch + index);
  context.adds_to_gradients = context.adds_to_gradients || index > 0;
  if (index > 0 && !context.measures_chunks) context.log_statistics = false;
  return context;
}

Residual Decoder::head_input(const Work& work, const Chunk& chunk) const {
  const Residual whole =
      all_wanted(work) ? output(work) : Residual{work.scratch(parts_.chosen, work.outputs())};
  return whole.rows(chunk.first, chunk.count);
}

void Decoder::forward(Work& work) const {
  work.enter(PassPhase::attention);
  Residual stream = embedding_.forward(work, layers_.front().input(work));
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    layers_[i].forward(work, stream);
    if (i + 1 < layers_.size()) stream = layers_[i].output(work, layers_[i + 1].input(work));
  }
  work.enter(PassPhase::head);
  if (all_wanted(work) || work.outputs() == 0) return;
  // ops::Embedding selects rows of any matrix.
  const TensorView last = added_up(work, output(work));
  work.run(ops::EmbeddingForward{
      .tokens = work.wanted(), .table = last, .out = work.scratch(parts_.chosen, work.outputs())});
}

void Decoder::head_forward(Work& work, const Chunk& chunk) const {
  const Residual input = head_input(work, chunk);
  const StepContext context = context_of(work, chunk);
  Linear& head = work.linear(parts_.head);
  if (!norm_) return head.forward(context, added_up(work, input), logits(work, chunk));
  head.forward(context, norm_->forward(work, for_norm(work, input), chunk.first),
               logits(work, chunk));
}

void Decoder::head_backward(Work& work, const Chunk& chunk) const {
  const TensorView x = norm_ ? work.saved_x(norm_->output(), chunk.first, chunk.count)
                             : work.saved(parts_.final_input, chunk.first, chunk.count);
  const TensorView dx = work.scratch(norm_ ? parts_.d_branch : parts_.d_hidden);
  work.linear(parts_.head)
      .backward(context_of(work, chunk), x, logits(work, chunk),
                dx.row_range(chunk.first, chunk.count));
}

void Decoder::backward(Work& work) const {
  const TensorView d_hidden = work.scratch(parts_.d_hidden);
  if (norm_) {
    norm_->backward(work, work.scratch(parts_.d_branch), work.saved(parts_.final_input), d_hidden);
  }
  for (std::size_t i = layers_.size(); i-- > 0;) {
    // The buffers of the last layer are still valid.
    layers_[i].recompute(work, i + 1 < layers_.size());
    layers_[i].backward(work, d_hidden);
  }
  embedding_.backward(work, d_hidden);
}

}  // namespace fp8lab
