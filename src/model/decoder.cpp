#include "src/model/decoder.hpp"

#include <algorithm>

namespace fp8lab {
namespace {

using Shape = SavedDeclaration::Shape;

// Output of a block, before the next norm or the head adds it to the residual stream.
constexpr const char* kBranch = "branch";
constexpr LiveRange kBranchRange{PassPhase::attention, PassPhase::feed_forward, PassPhase::head,
                                 PassPhase::recompute};
// Gradients of the residual stream and of a branch, live from the head on.
constexpr const char *kHiddenGradient = "d_hidden", *kBranchGradient = "d_branch";
constexpr LiveRange kGradientRange =
    LiveRange::from_to(PassPhase::head, PassPhase::attention_backward);

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
      position_rows_(declaration.scratch(kBranch, model.hidden_size, kBranchRange, false)) {
  if (model.positions != PositionKind::learned) return;
  positions_ = table(declaration, model, "positions.weight", model.max_position_embeddings);
}

Residual Embedding::forward(Work& work, const TensorView& out) const {
  const Parameter& table = work.parameter(tokens_);
  work.run(table.name(), ops::EmbeddingForward{
                             .tokens = work.column(kTokens), .table = table.working(), .out = out});
  if (!positions_) return {out};
  const TensorView rows = work.scratch(position_rows_);
  const Parameter& positions = work.parameter(*positions_);
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
  add_rows(work.column(kTokens), work.parameter(tokens_));
  if (positions_) add_rows(work.column(kPositions), work.parameter(*positions_));
}

DecoderLayer::DecoderLayer(Declaration& declaration, const ModelConfig& model, std::int64_t index)
    : input_(declaration.in_block(Block::attention)
                 .saved("input", Shape::activation, model.hidden_size)),
      attention_norm_(make_norm(declaration.recomputed_from(Recompute::layer), model,
                                "attention.norm", model.hidden_size)),
      attention_(declaration, model, index),
      middle_(declaration.saved("middle", Shape::activation, model.hidden_size)),
      mlp_norm_(
          make_norm(declaration.in_block(Block::feed_forward).recomputed_from(Recompute::gate_up),
                    model, "mlp.norm", model.hidden_size)),
      feed_forward_(make_feed_forward(declaration, model)),
      branch_(declaration.scratch(kBranch, model.hidden_size, kBranchRange, false)),
      d_branch_(declaration.scratch(kBranchGradient, model.hidden_size, kGradientRange)) {
  declaration.recomputed_from(Recompute::none);
  declaration.normed_linear(attention_norm_->vectors(), attention_.first());
  declaration.normed_linear(mlp_norm_->vectors(), feed_forward_->first());
  declaration.own_x(attention_.first(), attention_norm_->output());
  declaration.own_x(feed_forward_->first(), mlp_norm_->output());
}

void DecoderLayer::forward(Work& work, const Residual& stream) const {
  work.enter(PassPhase::attention);
  const TensorView branch = work.scratch(branch_);
  attention_.forward(work, attention_norm_->forward(work, stream, 0), branch);
  work.enter(PassPhase::feed_forward);
  feed_forward_->forward(work, mlp_norm_->forward(work, middle(work), 0), branch);
}

void DecoderLayer::recompute(Work& work) const {
  if (!work.recomputes(Recompute::gate_up)) return;
  work.enter(PassPhase::recompute);
  // The forward pass has measured the operands.
  const StepContext context = work.context();
  StepContext unmeasured = context;
  unmeasured.log_statistics = false;
  work.begin_pass(unmeasured);
  Residual stream{work.saved(middle_)};
  if (work.recomputes(Recompute::layer)) {
    attention_.forward(work, attention_norm_->forward(work, {input(work)}, 0),
                       work.scratch(branch_));
    stream = middle(work);
  }
  feed_forward_->recompute(work, mlp_norm_->forward(work, stream, 0));
  work.begin_pass(context);
}

void DecoderLayer::backward(Work& work, const TensorView& gradient) const {
  const TensorView d_branch = work.scratch(d_branch_);
  work.enter(PassPhase::feed_forward_backward);
  feed_forward_->backward(work, work.saved_x(mlp_norm_->output()), gradient, d_branch);
  mlp_norm_->backward_add(work, d_branch, work.saved(middle_), gradient);
  work.enter(PassPhase::attention_backward);
  attention_.backward(work, work.saved_x(attention_norm_->output()), gradient, d_branch);
  attention_norm_->backward_add(work, d_branch, input(work), gradient);
}

Decoder::Decoder(const ModelConfig& model)
    : embedding_(declaration_, model),
      layers_(make_layers(declaration_, model)),
      final_input_(declaration_.in_block(Block::head)
                       .saved("final_input", Shape::activation, model.hidden_size)),
      norm_(make_norm(declaration_, model, "norm", model.hidden_size)),
      head_(model.tie_word_embeddings
                ? declaration_.tied_linear("lm_head", embedding_.weight())
                : declaration_.linear("lm_head", model.hidden_size, {{"", model.vocab_size}}, false,
                                      model.initializer_range)),
      logits_(declaration_.saved("logits", Shape::activation, model.vocab_size)),
      token_losses_(declaration_.saved("token_losses", Shape::row, 1)),
      chosen_(declaration_.scratch("chosen", model.hidden_size, PassPhase::head, false)),
      d_hidden_(declaration_.scratch(kHiddenGradient, model.hidden_size, kGradientRange)),
      d_branch_(declaration_.scratch(kBranchGradient, model.hidden_size, kGradientRange)) {
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
  context.adds_to_gradients = context.adds_to_gradients || index > 0;
  if (index > 0 && !context.measures_chunks) context.log_statistics = false;
  return context;
}

Residual Decoder::head_input(const Work& work, const Chunk& chunk) const {
  const Residual whole =
      all_wanted(work) ? output(work) : Residual{work.scratch(chosen_, work.outputs())};
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
      .tokens = work.wanted(), .table = last, .out = work.scratch(chosen_, work.outputs())});
}

void Decoder::head_forward(Work& work, const Chunk& chunk) const {
  work.linear(head_).forward(context_of(work, chunk),
                             norm_->forward(work, head_input(work, chunk), chunk.first),
                             logits(work, chunk));
}

void Decoder::head_backward(Work& work, const Chunk& chunk) const {
  work.linear(head_).backward(
      context_of(work, chunk), work.saved_x(norm_->output(), chunk.first, chunk.count),
      logits(work, chunk), work.scratch(d_branch_).row_range(chunk.first, chunk.count));
}

void Decoder::backward(Work& work) const {
  const TensorView d_hidden = work.scratch(d_hidden_), d_branch = work.scratch(d_branch_);
  norm_->backward(work, d_branch, work.saved(final_input_), d_hidden);
  for (std::size_t i = layers_.size(); i-- > 0;) {
    // The buffers of the last layer are still valid.
    if (i + 1 < layers_.size()) layers_[i].recompute(work);
    layers_[i].backward(work, d_hidden);
  }
  embedding_.backward(work, d_hidden);
}

Declaration declaration_of(const ModelConfig& model) { return Decoder(model).declaration(); }

}  // namespace fp8lab
