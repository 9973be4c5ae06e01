// The tree of modules of a decoder-only transformer:
//   h = embedding(tokens);  each layer, with norms as its LayerSpec says:
//   h += norm(attention(norm(h))), h += norm(feed_forward(norm(h)));
//   logits = lm_head(norm(h)), or lm_head(h).
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "src/architecture/parts.hpp"
#include "src/model/blocks/attention.hpp"
#include "src/model/blocks/feed_forward.hpp"
#include "src/model/blocks/norm.hpp"
#include "src/model/blocks/residual.hpp"
#include "src/model/work.hpp"

namespace fp8lab {

/// The token embedding, plus the position embedding of models with learned positions.
class Embedding {
 public:
  explicit Embedding(EmbeddingParts parts) : parts_(parts) {}

  /// Returns the residual stream that begins in `out`.
  Residual forward(Work& work, const TensorView& out) const;
  void backward(Work& work, const TensorView& dout) const;

 private:
  EmbeddingParts parts_;
};

class DecoderLayer {
 public:
  DecoderLayer(const LayerParts& parts, std::int64_t index);

  /// The layer's input (tokens, C); valid once the first block has run.
  TensorView input(const Work& work) const { return work.saved(attention_.stream); }
  /// `stream` is the output of the embedding or of the layer before; input() receives its sum.
  void forward(Work& work, const Residual& stream) const;
  /// The output of forward(), whose sum the next reader writes to `out`. Valid until the next
  /// layer's forward pass.
  Residual output(const Work& work, const TensorView& out) const {
    return {out, Residual::Summands{work.saved(mlp_.stream), work.scratch(branch_), mlp_.factors}};
  }
  /// Recomputes the tensors that backward reads and that are not kept. `is_overwritten`: other
  /// layers have run their forward pass since.
  void recompute(Work& work, bool is_overwritten) const;
  /// Turns the gradient of the output into that of the input, in place.
  void backward(Work& work, const TensorView& gradient) const;

 private:
  /// A norm of a block's output (tokens, C).
  struct NormAfter {
    SavedId x;
    Norm norm;
  };
  /// An attention or a feed-forward block with its norms.
  template <class Body>
  struct NormedBlock {
    SavedId stream;  ///< the residual stream (tokens, C) that the block reads
    ResidualFactors factors;
    std::optional<Norm> before;
    Body body;
    std::optional<NormAfter> after;

    /// What `body` reads.
    BlockInput input(Work& work, const Residual& from) const;
    /// What the block adds to the stream: `branch` (tokens, C).
    void forward(Work& work, const Residual& from, const TensorView& branch) const;
    /// Turns the gradient of the stream behind the block into that in front of it, in place.
    void backward(Work& work, const TensorView& gradient, const TensorView& d_branch) const;
  };
  template <class Body>
  static NormedBlock<Body> block_of(SavedId stream, ResidualFactors factors,
                                    const BlockNorms& norms, Body body);

  /// The output of the attention block.
  Residual middle(const Work& work) const {
    return {work.saved(mlp_.stream),
            Residual::Summands{input(work), work.scratch(branch_), attention_.factors}};
  }

  /// Recomputes what Recompute says; other layers have overwritten it.
  void recompute_overwritten(Work& work) const;

  std::int64_t index_;
  NormedBlock<Attention> attention_;
  NormedBlock<FeedForward> mlp_;
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
    return work.saved(parts_.logits, 0, chunk.count);
  }
  /// (1, chunk.count) f32.
  TensorView token_losses(const Work& work, const Chunk& chunk) const {
    return work.saved(parts_.token_losses, chunk.first, chunk.count);
  }

 private:
  /// The context of the head for a chunk, which counts as a micro-batch of its own.
  StepContext context_of(const Work& work, const Chunk& chunk) const;
  bool all_wanted(const Work& work) const { return work.outputs() == work.rows(); }
  /// The output of the last layer.
  Residual output(const Work& work) const {
    return layers_.back().output(work, work.saved(parts_.final_input));
  }
  /// The rows of a chunk that the last norm, or without it the head, reads.
  Residual head_input(const Work& work, const Chunk& chunk) const;

  Declaration declaration_;
  DecoderParts parts_;
  Embedding embedding_;
  std::vector<DecoderLayer> layers_;
  std::optional<Norm> norm_;  ///< in front of the head
};

}  // namespace fp8lab
