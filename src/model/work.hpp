// A micro-batch in backend memory: its tokens, its activations and gradients, and the linear
// layers. Modules access everything through it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "emulation/backend.hpp"
#include "src/architecture/declaration.hpp"
#include "src/config/config.hpp"
#include "src/data/batch.hpp"
#include "src/model/attention_operands.hpp"
#include "src/model/blocks/kv_cache.hpp"
#include "src/model/blocks/rope.hpp"
#include "src/model/linear/linear.hpp"
#include "src/model/saved_activations.hpp"
#include "src/model/weights/parameters.hpp"
#include "src/model/workspace.hpp"

namespace fp8lab {

/// Shape of a micro-batch, attention tiles and memory settings. With a key-value cache, tokens() is
/// the largest number of tokens of one pass and sequence_length the longest sequence.
struct BatchShape {
  std::int64_t sequences = 0;
  std::int64_t sequence_length = 0;
  AttentionConfig attention;
  MemoryConfig memory{};
  std::vector<ColumnSpec> columns{};  ///< of the batches, beside kBatchColumns
  std::int64_t tokens() const { return sequences * sequence_length; }
  /// The largest number of tokens whose logits are in memory at once.
  std::int64_t logit_rows() const {
    return memory.loss_chunk == 0 ? tokens() : std::min(tokens(), memory.loss_chunk);
  }
};

class Work {
 public:
  /// Allocates all tensors of `declaration`. `parameters` must outlive this object.
  Work(Backend& backend, const Parameters& parameters, const Declaration& declaration,
       const ModelConfig& model, const Recipe& recipe, const BatchShape& shape, Purpose purpose);

  // --- tokens ---------------------------------------------------------------------------------
  /// Uploads the columns of the batch that there is memory for: kBatchColumns and shape().columns.
  void load(const Batch& batch);
  void load(const CachedBatch& batch, const KvCache& cache);
  void set_targets(const std::vector<std::int32_t>& targets);

  std::int64_t rows() const { return rows_; }        ///< loaded tokens
  std::int64_t outputs() const { return outputs_; }  ///< tokens whose logits are computed
  TensorView wanted() const { return wanted_.columns(0, outputs_); }  ///< (1, outputs) i32
  /// A column of the loaded tokens in its own type: (1, rows) if it is cached, else (1, outputs).
  /// Precondition: it is loaded.
  TensorView column(const ColumnSpec& spec) const;
  /// The cache that the loaded tokens belong to; null without one.
  const KvCache* cache() const { return cache_; }

  // --- for modules ----------------------------------------------------------------------------
  /// Begins the next phase of the pass.
  void enter(PassPhase next) { workspace_.enter(next); }
  /// Sets the step that the next pass belongs to; call before each pass.
  void begin_pass(const StepContext& context) { context_ = context; }
  const StepContext& context() const { return context_; }

  template <class Op>
  void run(const Op& op) {
    backend_.run(op);
  }
  /// The same in the module or with the parameter `layer` (Label::layer).
  template <class Op>
  void run(const std::string& layer, const Op& op) {
    const LabelScope scope(backend_, backend_.label().in_layer(layer));
    backend_.run(op);
  }
  const Parameter& parameter(ParameterId id) const { return parameters_[id]; }
  Linear& linear(LinearId id) { return *linears_[static_cast<std::size_t>(id)]; }
  /// The part of a saved tensor for tokens [first, first + tokens).
  TensorView saved(SavedId id, std::int64_t first, std::int64_t tokens) const;
  TensorView saved(SavedId id) const { return saved(id, 0, rows_); }
  /// The same for the x of a linear layer in the backward pass. The view has no memory if the layer
  /// does not need x: it has saved its codes instead, or its weight is frozen.
  TensorView saved_x(SavedId id, std::int64_t first, std::int64_t tokens) const;
  TensorView saved_x(SavedId id) const { return saved_x(id, 0, rows_); }
  /// After the forward pass of a block in a training step: saves what the recipe saves as codes.
  void keep_activations(std::int64_t layer, Block block);
  /// Restores what the backward pass of a layer reads from `phase` on, the present one.
  void restore_activations(std::int64_t layer, PassPhase phase);
  /// True if the recipe has the backward pass compute the inputs of some linear layers again.
  bool remakes_x() const { return saved_activations_ && saved_activations_->remakes_x(); }
  /// SavedActivations::operands(); empty in inference.
  std::span<const std::unique_ptr<OperandSet>> activation_operands() const;
  /// The quantized operands of attention; null if the recipe quantizes none.
  AttentionOperands* attention() { return attention_ ? &*attention_ : nullptr; }
  const AttentionOperands* attention() const { return attention_ ? &*attention_ : nullptr; }
  TensorView scratch(ScratchId id, std::int64_t tokens) const;
  TensorView scratch(ScratchId id) const { return scratch(id, rows_); }

  const RotaryTables& rotary() const { return rotary_; }  ///< empty without rotary positions
  Backend& backend() { return backend_; }
  const std::vector<std::unique_ptr<Linear>>& linears() const { return linears_; }
  /// Bytes that linear layers own, and bytes of the buffers that all layers share.
  std::size_t operand_bytes() const { return operand_bytes_; }
  std::size_t buffer_bytes() const { return buffer_bytes_; }
  const BatchShape& shape() const { return shape_; }
  /// True if the backward pass recomputes tensors that are declared with this level.
  bool recomputes(Recompute level) const {
    return level != Recompute::none && level <= shape_.memory.recompute;
  }
  DType activation() const { return activation_; }  ///< storage type of activations

 private:
  /// Memory of a column.
  struct LoadedColumn {
    ColumnSpec spec;
    TensorView memory;  ///< (1, T)
    bool is_loaded = false;
  };
  /// Memory of a saved or scratch tensor.
  struct Placed {
    TensorView view;
    std::optional<LiveRange> live = std::nullopt;  ///< phases in which it is live; empty: all
  };

  void build_linears(const ModelConfig& model, const Recipe& recipe, Purpose purpose);
  void find_needed();
  /// True if the backward pass computes the tensor again because the recipe says so.
  bool is_remade(const SavedDeclaration& saved) const { return remakes_x() && saved.is_remakeable; }
  /// The phases in which a saved tensor is live; empty if every layer has memory of its own for it.
  std::optional<LiveRange> live_range(std::size_t saved, bool training) const;
  void allocate_activations(bool training);
  TensorView memory_of(const Placed& placed) const;
  void allocate_tokens();
  void begin_load(std::int64_t rows, std::int64_t outputs, const KvCache* cache);
  void upload(const Columns& batch);
  void upload(std::string_view name, const TensorView& destination, const void* source);
  /// The part of a column's memory for the loaded tokens.
  TensorView part_of(const LoadedColumn& column) const {
    return column.memory.columns(0, column.spec.is_cached ? rows_ : outputs_);
  }

  Backend& backend_;
  const Parameters& parameters_;
  const Declaration declaration_;
  BatchShape shape_;
  DType activation_;
  Workspace workspace_;  ///< shared by layers: operands, scratch, in inference saved tensors too
  std::size_t operand_bytes_ = 0, buffer_bytes_ = 0;
  std::vector<std::unique_ptr<Linear>> linears_;       ///< in the order of the declaration
  std::optional<SavedActivations> saved_activations_;  ///< of a training step
  std::optional<AttentionOperands> attention_;
  std::vector<Placed> saved_, scratch_;
  std::vector<bool> is_needed_;  ///< of the saved tensors: the backward pass reads them

  RotaryTables rotary_;

  StepContext context_;
  std::int64_t rows_ = 0, outputs_ = 0;
  const KvCache* cache_ = nullptr;
  std::vector<LoadedColumn> columns_;
  TensorView wanted_;
};

}  // namespace fp8lab
