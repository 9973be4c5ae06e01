// A micro-batch in backend memory: its tokens, what the passes make of them, and the linear layers
// that work on it. Modules reach everything through it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "emulation/backend.hpp"
#include "src/config/config.hpp"
#include "src/data/dataset.hpp"
#include "src/model/declaration.hpp"
#include "src/model/kv_cache.hpp"
#include "src/model/linear.hpp"
#include "src/model/parameters.hpp"
#include "src/model/rope.hpp"
#include "src/model/workspace.hpp"

namespace fp8lab {

/// Layout of a micro-batch, the attention tiles, and what is kept. For tokens with a cache:
/// tokens() is the most that one pass takes, sequence_length the longest sequence.
struct BatchShape {
  std::int64_t sequences = 0;
  std::int64_t sequence_length = 0;
  AttentionConfig attention;
  MemoryConfig memory{};
  std::int64_t tokens() const { return sequences * sequence_length; }
  /// The most tokens whose logits exist at once.
  std::int64_t logit_rows() const {
    return memory.loss_chunk == 0 ? tokens() : std::min(tokens(), memory.loss_chunk);
  }
};

class Work {
 public:
  /// Allocates what `declaration` names. `parameters` outlive it.
  Work(Backend& backend, const Parameters& parameters, const Declaration& declaration,
       const ModelConfig& model, const Recipe& recipe, const BatchShape& shape, Purpose purpose);

  // --- tokens ---------------------------------------------------------------------------------
  void load(const Batch& batch);
  void load(const CachedBatch& batch, const KvCache& cache);
  void set_targets(const std::vector<std::int32_t>& targets);

  std::int64_t rows() const { return rows_; }        ///< loaded tokens
  std::int64_t outputs() const { return outputs_; }  ///< tokens whose logits are asked for
  TensorView tokens() const { return tokens_.columns(0, rows_); }        ///< (1, rows) i32
  TensorView positions() const { return positions_.columns(0, rows_); }  ///< (1, rows) i32
  TensorView document_start() const { return document_start_; }          ///< (1, T) i32
  TensorView wanted() const { return wanted_.columns(0, outputs_); }     ///< (1, outputs) i32
  TensorView targets() const { return targets_.columns(0, outputs_); }   ///< (1, outputs) i32
  TensorView target_weights() const { return weights_.columns(0, outputs_); }
  /// Of the loaded tokens, if they have one.
  const KvCache* cache() const { return cache_; }

  // --- for modules ----------------------------------------------------------------------------
  /// The next stretch of the pass begins.
  void enter(Stretch next) { workspace_.enter(next); }
  /// The step that the pass belongs to; set before each pass.
  void begin_pass(const StepContext& context) { context_ = context; }
  const StepContext& context() const { return context_; }

  template <class Op>
  void run(const Op& op) {
    backend_.run(op);
  }
  const Parameter& parameter(ParameterId id) const { return parameters_[id]; }
  Linear& linear(LinearId id) { return *linears_[static_cast<std::size_t>(id)]; }
  /// The part of a saved tensor that belongs to `tokens` of them from `first` on.
  TensorView saved(SavedId id, std::int64_t first, std::int64_t tokens) const;
  TensorView saved(SavedId id) const { return saved(id, 0, rows_); }
  /// The same of the x of a linear layer in the backward pass: without memory where the layer has
  /// kept codes of it.
  TensorView saved_x(SavedId id, std::int64_t first, std::int64_t tokens) const;
  TensorView saved_x(SavedId id) const { return saved_x(id, 0, rows_); }
  TensorView scratch(ScratchId id, std::int64_t tokens) const;
  TensorView scratch(ScratchId id) const { return scratch(id, rows_); }

  const RotaryTables& rotary() const { return rotary_; }  ///< empty without rotary positions
  Backend& backend() { return backend_; }
  const std::vector<std::unique_ptr<Linear>>& linears() const { return linears_; }
  /// What the linear layers hold in backend memory for themselves, and what all share.
  std::size_t operand_bytes() const { return operand_bytes_; }
  std::size_t buffer_bytes() const { return buffer_bytes_; }
  const BatchShape& shape() const { return shape_; }
  /// True where the backward pass computes again what is declared with this level.
  bool recomputes(Recompute level) const {
    return level != Recompute::none && level <= shape_.memory.recompute;
  }
  DType activation() const { return activation_; }  ///< storage type of activations

 private:
  /// Memory of a saved or scratch tensor.
  struct Placed {
    TensorView view;
    std::optional<LiveRange> live = std::nullopt;  ///< when it may be used; nothing: always
  };

  void build_linears(const ModelConfig& model, const Recipe& recipe, Purpose purpose);
  /// When a saved tensor is in use; nothing where every layer has its own memory for it.
  std::optional<LiveRange> live_range(std::size_t saved, bool training) const;
  void allocate_activations(bool training);
  TensorView memory_of(const Placed& placed) const;
  void allocate_tokens();

  Backend& backend_;
  const Parameters& parameters_;
  const Declaration declaration_;
  BatchShape shape_;
  DType activation_;
  Workspace workspace_;  ///< what layers share: operands, scratch, for inference all they save
  std::size_t operand_bytes_ = 0, buffer_bytes_ = 0;
  std::vector<std::unique_ptr<Linear>> linears_;  ///< in the order of the declaration
  std::vector<Placed> saved_, scratch_;
  std::vector<bool> is_kept_as_codes_;  ///< of the saved tensors

  RotaryTables rotary_;

  StepContext context_;
  std::int64_t rows_ = 0, outputs_ = 0;
  const KvCache* cache_ = nullptr;
  TensorView tokens_, targets_, weights_, positions_, document_start_, wanted_;
};

}  // namespace fp8lab
