// Runs a decoder forward and backward on micro-batches, under one recipe.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "src/model/decoder.hpp"
#include "src/model/work.hpp"

namespace fp8lab {

class Transformer {
 public:
  Transformer(Backend& backend, const Parameters& parameters, const ModelConfig& model,
              const Recipe& recipe, const BatchShape& shape, Purpose purpose = Purpose::training);

  /// Copies the batch into backend memory.
  void load(const Batch& batch);
  /// The same for new tokens of the sequences in `cache`, which must live until the next load().
  /// forward() appends their keys and values to the cache. logits() has rows for batch.wanted only;
  /// they have the bits of a forward pass over the whole sequences if every quantizer is local to a
  /// token. Only set_targets() with an objective that leaves the logits, and argmax(), may follow.
  void load(const CachedBatch& batch, const KvCache& cache);
  /// Sets the targets of the rows of logits(), all with weight 1.
  void set_targets(const std::vector<std::int32_t>& targets) { work_.set_targets(targets); }
  /// A cache for sequences of this model and shape.
  KvCache make_cache(std::int64_t sequences, std::int64_t capacity);
  /// Quantizes all weights for the step.
  void prepare_weights(const StepContext& context);
  /// The forward pass of the loaded batch: up to its logits, or up to the head if the logits are
  /// computed in chunks.
  void forward(const StepContext& context);
  /// The input of an objective: the logits of tokens [first, first + logits.rows), and the memory
  /// for the losses of these tokens.
  struct LogitChunk {
    std::int64_t first = 0;
    TensorView logits, token_losses;
    bool is_last = false;
  };
  /// A column of the loaded batch for the tokens of a chunk, (1, logits.rows) in its own type.
  TensorView column(const ColumnSpec& spec, const LogitChunk& chunk) const {
    return work_.column(spec).columns(chunk.first, chunk.logits.rows);
  }
  /// After forward(): calls `objective` on the logits of all tokens. Above BatchShape::logit_rows()
  /// tokens, the logits are computed chunk by chunk. If `is_differentiated`, the objective replaces
  /// logits by their gradient, and the head's backward pass of a chunk runs before the next chunk.
  void for_each_chunk(bool is_differentiated,
                      const std::function<void(const LogitChunk&)>& objective);
  /// Accumulates all parameter gradients from the logit gradient of an objective (src/objectives).
  void backward(const StepContext& context);

  void update_delayed_scales();
  /// Counts the step in the histories of delayed scales, on the host.
  void end_step();
  void discard_amaxes();
  /// Runs part `part` of a step through Backend::repeat. The operations must depend on the part and
  /// `settings` alone.
  void repeat(std::size_t part, const std::string& settings, const std::function<void()>& enqueue);
  bool has_delayed_scales() const;
  /// True if a linear layer quantizes an operand of its forward GEMM.
  bool has_quantized_operands() const;
  /// OperandSet::is_without_history of every row of /tensors of a linear layer.
  std::vector<std::uint8_t> without_history() const;

  /// In the order of Declaration::linears().
  const std::vector<std::unique_ptr<Linear>>& linears() const { return work_.linears(); }
  /// Activations that layers save as codes, in the order of logged_activations(); empty without.
  std::span<const std::unique_ptr<OperandSet>> activation_operands() const {
    return work_.activation_operands();
  }
  /// Operands of attention by layer, each with the rows of kAttentionSlots; empty if the recipe
  /// quantizes none.
  std::span<const std::unique_ptr<OperandSet>> attention_operands() const {
    const AttentionOperands* const attention = work_.attention();
    if (attention == nullptr) return {};
    return attention->operands();
  }
  /// The operands of linear layers, then those of attention.
  std::vector<NamedOperands> operand_sets() const;
  /// Bytes that linear layers own, and bytes of the buffers that all layers share.
  std::size_t operand_bytes() const { return work_.operand_bytes(); }
  std::size_t buffer_bytes() const { return work_.buffer_bytes(); }
  /// (T, V) after forward(); not available if the logits are computed in chunks.
  TensorView logits() const;
  TensorView argmax();              ///< (1, T) i32 of logits()
  TensorView token_losses() const;  ///< (1, T) f32
  std::int64_t vocab_size() const { return model_.vocab_size; }
  const BatchShape& shape() const { return work_.shape(); }
  template <class Op>
  void run(const Op& op) {
    work_.run(op);
  }

 private:
  /// Begins a phase of the labels of operations.
  void enter(Phase phase);
  bool has_chunks() const { return work_.outputs() > shape().logit_rows(); }
  Decoder::Chunk whole() const { return {0, work_.outputs()}; }

  struct Part {
    std::string settings;
    std::unique_ptr<Recorded> recorded;
  };

  ModelConfig model_;
  Decoder decoder_;
  Work work_;
  TensorView argmax_;
  std::map<std::size_t, Part> parts_;
};

}  // namespace fp8lab
