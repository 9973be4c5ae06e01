// A decoder at work: one micro-batch after another, forward and backward, under one recipe.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
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
  void load(const Batch& batch) { work_.load(batch); }
  /// The same for new tokens of the sequences in `cache`, which must live until the next load().
  /// forward() appends them; logits() are those of batch.wanted alone, with the bits that a forward
  /// pass over the whole sequences gives if every quantization is local to a token. Nothing can
  /// follow but an objective that leaves the logits, for set_targets(), and argmax().
  void load(const CachedBatch& batch, const KvCache& cache) { work_.load(batch, cache); }
  /// Targets of the rows of logits(), all with weight 1.
  void set_targets(const std::vector<std::int32_t>& targets) { work_.set_targets(targets); }
  /// A cache for sequences of this model and shape.
  KvCache make_cache(std::int64_t sequences, std::int64_t capacity);
  /// Quantizes all weights for the step.
  void prepare_weights(const StepContext& context);
  /// Logits of the loaded batch, unless they come in chunks.
  void forward(const StepContext& context);
  /// What an objective works on: the logits of tokens [first, first + logits.rows), and what
  /// belongs to these.
  struct LogitChunk {
    std::int64_t first = 0;
    TensorView logits, targets, target_weights, token_losses;
    bool is_last = false;
  };
  /// After forward(): calls `objective` with the logits of all tokens. Where there are more than
  /// BatchShape::logit_rows(), they are made chunk by chunk for it, and where `is_differentiated`,
  /// the gradient that it leaves in their place goes back through the head before the next one.
  void for_each_chunk(bool is_differentiated,
                      const std::function<void(const LogitChunk&)>& objective);
  /// Accumulates all parameter gradients from the gradient that an objective (src/objectives) left
  /// in the place of the logits.
  void backward(const StepContext& context);

  void update_delayed_scales();
  /// Ends a step on the host: counts it in the histories of delayed scales.
  void end_step();
  void discard_amaxes();
  /// Enqueues part `part` of a step by Backend::repeat. Its operations must follow from the
  /// part and `settings` alone.
  void repeat(std::size_t part, const std::string& settings, const std::function<void()>& enqueue);
  bool has_delayed_scales() const;
  /// True where an operand of a linear layer's forward product is quantized.
  bool has_quantized_operands() const;
  /// Linear::is_without_history of every slot of every layer.
  std::vector<std::uint8_t> without_history() const;

  /// In the order of Declaration::linears().
  const std::vector<std::unique_ptr<Linear>>& linears() const { return work_.linears(); }
  /// What the linear layers hold in backend memory for themselves, and what all share.
  std::size_t operand_bytes() const { return work_.operand_bytes(); }
  std::size_t buffer_bytes() const { return work_.buffer_bytes(); }
  /// (T, V) after forward(); only where they do not come in chunks.
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
