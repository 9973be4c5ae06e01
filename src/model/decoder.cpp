#include "src/model/decoder.hpp"

#include <algorithm>

namespace fp8lab {
namespace {

using Shape = SavedDeclaration::Shape;

constexpr const char* kBranch = "branch";
constexpr const char* kBranchGradient = "d_branch";

ParameterId table(Declaration& declaration, const ModelConfig& model, const char* name,
                  std::int64_t rows) {
  return declaration.parameter(
      {name, rows, model.hidden_size, false, true, {0.0, model.initializer_range}, {}});
}

std::vector<DecoderLayer> make_layers(Declaration& declaration, const ModelConfig& model) {
  std::vector<DecoderLayer> layers;
  for (std::int64_t i = 0; i < model.num_hidden_layers; ++i) {
    declaration.enter_layer(i);
    layers.emplace_back(declaration, model, i);
  }
  declaration.enter_layer(std::nullopt);
  return layers;
}

}  // namespace

Embedding::Embedding(Declaration& declaration, const ModelConfig& model)
    : tokens_(table(declaration, model, "embed.weight", model.vocab_size)),
      position_rows_(declaration.scratch(kBranch, model.hidden_size, false)) {
  if (model.positions != PositionKind::learned) return;
  positions_ = table(declaration, model, "positions.weight", model.max_position_embeddings);
}

void Embedding::forward(Work& work, const TensorView& out) const {
  work.run(ops::EmbeddingForward{work.tokens(), work.parameter(tokens_).working(), out});
  if (!positions_) return;
  const TensorView rows = work.scratch(position_rows_);
  work.run(ops::EmbeddingForward{work.positions(), work.parameter(*positions_).working(), rows});
  work.run(ops::Add{out, rows, out});
}

void Embedding::backward(Work& work, const TensorView& dout) const {
  work.run(ops::EmbeddingBackward{work.tokens(), dout, work.parameter(tokens_).gradient()});
  if (!positions_) return;
  work.run(ops::EmbeddingBackward{work.positions(), dout, work.parameter(*positions_).gradient()});
}

DecoderLayer::DecoderLayer(Declaration& declaration, const ModelConfig& model, std::int64_t index)
    : input_(declaration.saved("input", Shape::activation, model.hidden_size)),
      attention_norm_(make_norm(declaration.recomputed_from(Recompute::layer), model,
                                "attention.norm", model.hidden_size)),
      attention_(declaration, model, index),
      middle_(declaration.saved("middle", Shape::activation, model.hidden_size)),
      mlp_norm_(make_norm(declaration.recomputed_from(Recompute::gate_up), model, "mlp.norm",
                          model.hidden_size)),
      feed_forward_(make_feed_forward(declaration, model)),
      branch_(declaration.scratch(kBranch, model.hidden_size, false)),
      d_branch_(declaration.scratch(kBranchGradient, model.hidden_size)) {
  declaration.recomputed_from(Recompute::none);
  declaration.normed_linear(attention_norm_->vectors(), attention_.first());
  declaration.normed_linear(mlp_norm_->vectors(), feed_forward_->first());
  declaration.own_x(attention_.first(), attention_norm_->output());
  declaration.own_x(feed_forward_->first(), mlp_norm_->output());
}

void DecoderLayer::forward(Work& work, const TensorView& out) const {
  const TensorView branch = work.scratch(branch_), middle = work.saved(middle_);
  attention_.forward(work, attention_norm_->forward(work, input(work), 0), branch);
  work.run(ops::Add{input(work), branch, middle});
  feed_forward_->forward(work, mlp_norm_->forward(work, middle, 0), branch);
  work.run(ops::Add{middle, branch, out});
}

void DecoderLayer::recompute(Work& work) const {
  if (!work.recomputes(Recompute::gate_up)) return;
  // The operands have been measured in the forward pass.
  const StepContext context = work.context();
  StepContext unmeasured = context;
  unmeasured.log_statistics = false;
  work.begin_pass(unmeasured);
  const TensorView middle = work.saved(middle_);
  if (work.recomputes(Recompute::layer)) {
    const TensorView branch = work.scratch(branch_);
    attention_.forward(work, attention_norm_->forward(work, input(work), 0), branch);
    work.run(ops::Add{input(work), branch, middle});
  }
  feed_forward_->recompute(work, mlp_norm_->forward(work, middle, 0));
  work.begin_pass(context);
}

void DecoderLayer::backward(Work& work, const TensorView& gradient) const {
  const TensorView branch = work.scratch(branch_), d_branch = work.scratch(d_branch_);
  feed_forward_->backward(work, work.saved(mlp_norm_->output()), gradient, d_branch);
  mlp_norm_->backward(work, d_branch, work.saved(middle_), branch);
  work.run(ops::Add{gradient, branch, gradient});
  attention_.backward(work, work.saved(attention_norm_->output()), gradient, d_branch);
  attention_norm_->backward(work, d_branch, input(work), branch);
  work.run(ops::Add{gradient, branch, gradient});
}

Decoder::Decoder(const ModelConfig& model)
    : embedding_(declaration_, model),
      layers_(make_layers(declaration_, model)),
      final_input_(declaration_.saved("final_input", Shape::activation, model.hidden_size)),
      norm_(make_norm(declaration_, model, "norm", model.hidden_size)),
      head_(model.tie_word_embeddings
                ? declaration_.tied_linear("lm_head", embedding_.weight())
                : declaration_.linear("lm_head", model.hidden_size, {{"", model.vocab_size}}, false,
                                      model.initializer_range)),
      logits_(declaration_.saved("logits", Shape::activation, model.vocab_size)),
      token_losses_(declaration_.saved("token_losses", Shape::row, 1)),
      chosen_(declaration_.scratch(kBranch, model.hidden_size, false)),
      d_hidden_(declaration_.scratch("d_hidden", model.hidden_size)),
      d_branch_(declaration_.scratch(kBranchGradient, model.hidden_size)) {
  declaration_.own_x(head_, norm_->output());
  declaration_.in_chunks(head_, logits_);
}

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
  if (index > 0 && !context.measures_chunks) context.log_statistics = false;
  return context;
}

TensorView Decoder::wanted_input(Work& work) const {
  if (work.outputs() == work.rows()) return work.saved(final_input_);
  return work.scratch(chosen_, work.outputs());
}

void Decoder::forward(Work& work) const {
  const TensorView last = work.saved(final_input_);
  const auto input_of = [&](std::size_t layer) {
    return layer < layers_.size() ? layers_[layer].input(work) : last;
  };
  embedding_.forward(work, input_of(0));
  for (std::size_t i = 0; i < layers_.size(); ++i) layers_[i].forward(work, input_of(i + 1));
  // Rows of a matrix are looked up as rows of an embedding are.
  if (work.outputs() == 0 || work.outputs() == work.rows()) return;
  work.run(ops::EmbeddingForward{work.wanted(), last, wanted_input(work)});
}

void Decoder::head_forward(Work& work, const Chunk& chunk) const {
  const TensorView x = wanted_input(work).row_range(chunk.first, chunk.count);
  work.linear(head_).forward(context_of(work, chunk), norm_->forward(work, x, chunk.first),
                             logits(work, chunk));
}

void Decoder::head_backward(Work& work, const Chunk& chunk) const {
  work.linear(head_).backward(
      context_of(work, chunk), work.saved(norm_->output(), chunk.first, chunk.count),
      logits(work, chunk), work.scratch(d_branch_).row_range(chunk.first, chunk.count));
}

void Decoder::backward(Work& work) const {
  const TensorView d_hidden = work.scratch(d_hidden_), d_branch = work.scratch(d_branch_);
  norm_->backward(work, d_branch, work.saved(final_input_), d_hidden);
  for (std::size_t i = layers_.size(); i-- > 0;) {
    // Of the last layer everything is still there.
    if (i + 1 < layers_.size()) layers_[i].recompute(work);
    layers_[i].backward(work, d_hidden);
  }
  embedding_.backward(work, d_hidden);
}

Declaration declaration_of(const ModelConfig& model) { return Decoder(model).declaration(); }

}  // namespace fp8lab
