// The operands of attention that [attention] of a recipe quantizes.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "emulation/backend.hpp"
#include "emulation/spec/recipe.hpp"
#include "src/architecture/declaration.hpp"
#include "src/architecture/live_range.hpp"
#include "src/config/config.hpp"
#include "src/model/linear/operand.hpp"
#include "src/model/linear/operand_set.hpp"
#include "src/model/saved_activations.hpp"
#include "src/model/step_context.hpp"
#include "src/model/weights/parameters.hpp"
#include "src/model/workspace.hpp"

namespace fp8lab {

/// "layers.0.attention", the module of its operands.
std::string attention_name(std::int64_t layer);

/// Returns the slots of all layers as rows of /tensors, behind those of saved activations. P and
/// dS, which no tensor in memory holds, have no statistics.
std::vector<LoggedActivation> logged_attention(const ModelConfig& model);

/// What decides how attention is quantized.
struct AttentionPlan {
  const AttentionRecipe& recipe;
  AttentionExtents extents;
  DType values = DType::bf16;  ///< type of activations
  std::int64_t tokens = 0;     ///< largest number of tokens of a micro-batch
  Recompute recompute = Recompute::none;
  Purpose purpose = Purpose::training;
};

/// Quantizes q, k, v and dO in buffers that all layers share, when a pass reads them: the backward
/// pass quantizes q, k and v again. Delayed scales have a history for each layer.
class AttentionOperands {
 public:
  /// Throws Error if the backend refuses the quantizers or attention on them in these extents.
  AttentionOperands(Backend& backend, Workspace& workspace, const Declaration& declaration,
                    const ModelConfig& model, const AttentionPlan& plan);

  bool quantizes_forward() const { return recipe_.quantizes_forward(); }
  bool quantizes_backward() const { return recipe_.quantizes_backward(); }
  DType values() const { return values_; }
  /// The quantizer of a slot.
  const QuantSpec& spec(AttentionSlot slot) const { return specs_[slot]; }
  /// Quantizes q, k, v or dO of a layer; `values` may be columns of a tensor. Also measures it, if
  /// `is_first` in the step.
  const QuantizedOperand& make(const StepContext& context, std::int64_t layer, AttentionSlot slot,
                               const TensorView& values, bool is_first);
  /// The state of the delayed scale of dS; empty without one.
  const TensorView& ds_state(std::int64_t layer) const;
  /// Throws Error if a cache cannot hold keys and values as they are quantized.
  void check_cache() const;

  /// One set for each layer; its rows are those of kAttentionSlots.
  const std::vector<std::unique_ptr<OperandSet>>& operands() const { return operands_; }

 private:
  static OperandId id_of(AttentionSlot slot) { return OperandId{static_cast<std::size_t>(slot)}; }
  OperandDeclaration declare(AttentionSlot slot, std::uint32_t first_number, std::int64_t layer,
                             std::int64_t cols, const AttentionPlan& plan) const;
  /// Asks the backend before any step.
  void check_support(const ModelConfig& model, const AttentionPlan& plan) const;

  Backend& backend_;
  AttentionRecipe recipe_;
  DType values_;
  PerAttentionSlot<QuantSpec> specs_;
  std::vector<std::unique_ptr<OperandSet>> operands_;  ///< by layer
};

}  // namespace fp8lab
