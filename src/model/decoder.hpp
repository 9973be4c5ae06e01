// The tree of modules of a decoder-only transformer with pre-norm layers:
//   h = embedding(tokens);  each layer: h += attention(norm(h)), h += feed_forward(norm(h));
//   logits = lm_head(norm(h)).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "src/model/attention.hpp"
#include "src/model/declaration.hpp"
#include "src/model/feed_forward.hpp"
#include "src/model/norm.hpp"
#include "src/model/residual.hpp"
#include "src/model/work.hpp"

namespace fp8lab {

/// The token embedding, plus the position embedding of models with learned positions.
class Embedding {
 public:
  Embedding(Declaration& declaration, const ModelConfig& model);

  /// Returns the residual stream that begins in `out`.
  Residual forward(Work& work, const TensorView& out) const;
  void backward(Work& work, const TensorView& dout) const;
  ParameterId weight() const { return tokens_; }

 private:
  ParameterId tokens_;
  std::optional<ParameterId> positions_;
  ScratchId position_rows_;
};

class DecoderLayer {
 public:
  DecoderLayer(Declaration& declaration, const ModelConfig& model, std::int64_t index);

  /// The layer's input (tokens, C); valid once the first norm has run.
  TensorView input(const Work& work) const { return work.saved(input_); }
  /// `stream` is the output of the embedding or of the layer before; input() receives its sum.
  void forward(Work& work, const Residual& stream) const;
  /// The output of forward(), whose sum the next norm writes to `out`. Valid until the next layer's
  /// forward pass.
  Residual output(const Work& work, const TensorView& out) const {
    return {out, Residual::Summands{work.saved(middle_), work.scratch(branch_)}};
  }
  /// Recomputes the tensors that backward reads and that other layers have overwritten.
  void recompute(Work& work) const;
  /// Turns the gradient of the output into that of the input, in place.
  void backward(Work& work, const TensorView& gradient) const;

 private:
  /// The output of the attention block.
  Residual middle(const Work& work) const {
    return {work.saved(middle_), Residual::Summands{input(work), work.scratch(branch_)}};
  }

  SavedId input_;
  std::unique_ptr<Norm> attention_norm_;
  Attention attention_;
  SavedId middle_;
  std::unique_ptr<Norm> mlp_norm_;
  std::unique_ptr<FeedForward> feed_forward_;
  ScratchId branch_, d_branch_;
};

class Decoder {
 public:
  explicit Decoder(const ModelConfig& model);

  const Declaration& declaration() const { return declaration_; }

  /// A range of the tokens whose logits are computed.
  struct Chunk {
    std::int64_t first = 0, count = 0;
  };
  /// All of work.outputs(), in chunks of at most BatchShape::logit_rows().
  std::vector<Chunk> chunks(const Work& work) const;

  /// Everything before the head.
  void forward(Work& work) const;
  /// logits() of a chunk.
  void head_forward(Work& work, const Chunk& chunk) const;
  /// Backward pass of the head for a chunk whose logits have been replaced by their gradient. The
  /// first chunk of a step overwrites the gradient of the head's weight, later chunks add to it.
  void head_backward(Work& work, const Chunk& chunk) const;
  /// Accumulates all other parameter gradients; call after head_backward() of all chunks.
  void backward(Work& work) const;
  /// (chunk.count, vocab_size). All chunks use the same memory.
  TensorView logits(const Work& work, const Chunk& chunk) const {
    return work.saved(logits_, 0, chunk.count);
  }
  /// (1, chunk.count) f32.
  TensorView token_losses(const Work& work, const Chunk& chunk) const {
    return work.saved(token_losses_, chunk.first, chunk.count);
  }

 private:
  /// The context of the head for a chunk, which counts as a micro-batch of its own.
  StepContext context_of(const Work& work, const Chunk& chunk) const;
  bool all_wanted(const Work& work) const { return work.outputs() == work.rows(); }
  /// The output of the last layer.
  Residual output(const Work& work) const {
    return layers_.back().output(work, work.saved(final_input_));
  }
  /// The rows of a chunk that the last norm reads.
  Residual head_input(const Work& work, const Chunk& chunk) const;

  Declaration declaration_;
  Embedding embedding_;
  std::vector<DecoderLayer> layers_;
  SavedId final_input_;
  std::unique_ptr<Norm> norm_;
  LinearId head_;
  SavedId logits_, token_losses_;
  ScratchId chosen_, d_hidden_, d_branch_;
};

/// Decoder(model).declaration().
Declaration declaration_of(const ModelConfig& model);

}  // namespace fp8lab
