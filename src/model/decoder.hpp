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

/// Rows of a table by token and, where positions are learned, of another by position.
class Embedding {
 public:
  Embedding(Declaration& declaration, const ModelConfig& model);

  /// Leaves the stream that begins in `out`.
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

  /// Where the layer's input (tokens, C) is, once the first norm has read it.
  TensorView input(const Work& work) const { return work.saved(input_); }
  /// `stream`, that of input(), has been left by the embedding or the layer before.
  void forward(Work& work, const Residual& stream) const;
  /// What forward() has left, whose sum goes to `out`; until the next layer's forward pass.
  Residual output(const Work& work, const TensorView& out) const {
    return {out, Residual::Summands{work.saved(middle_), work.scratch(branch_)}};
  }
  /// Makes again what backward reads of the forward pass and other layers have overwritten.
  void recompute(Work& work) const;
  /// `gradient` of the output becomes that of the input.
  void backward(Work& work, const TensorView& gradient) const;

 private:
  /// What the attention block has left.
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

  /// Wanted tokens, those with a logit, one after another.
  struct Chunk {
    std::int64_t first = 0, count = 0;
  };
  /// All of work.outputs(), in chunks of at most BatchShape::logit_rows().
  std::vector<Chunk> chunks(const Work& work) const;

  /// Everything before the head.
  void forward(Work& work) const;
  /// logits() of a chunk.
  void head_forward(Work& work, const Chunk& chunk) const;
  /// What the logit gradient that has replaced the logits of the chunk gives in the head. The first
  /// chunk of a step writes the gradient of the head's weight, the others add to it.
  void head_backward(Work& work, const Chunk& chunk) const;
  /// Accumulates all other parameter gradients, once the head has made its part of all chunks.
  void backward(Work& work) const;
  /// (chunk.count, vocab_size), in the memory of every chunk.
  TensorView logits(const Work& work, const Chunk& chunk) const {
    return work.saved(logits_, 0, chunk.count);
  }
  /// (1, chunk.count) f32.
  TensorView token_losses(const Work& work, const Chunk& chunk) const {
    return work.saved(token_losses_, chunk.first, chunk.count);
  }

 private:
  /// The context in which the head works on a chunk: to it, a chunk is a micro-batch.
  StepContext context_of(const Work& work, const Chunk& chunk) const;
  bool all_wanted(const Work& work) const { return work.outputs() == work.rows(); }
  /// What the last layer has left.
  Residual output(const Work& work) const {
    return layers_.back().output(work, work.saved(final_input_));
  }
  /// Of the wanted tokens of a chunk, what the last norm reads.
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
