// Activations that layers save as codes and scales, by [saved_activations] of a recipe.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "emulation/backend.hpp"
#include "emulation/spec/recipe.hpp"
#include "src/architecture/declaration.hpp"
#include "src/architecture/live_range.hpp"
#include "src/model/linear/operand_set.hpp"
#include "src/model/step_context.hpp"
#include "src/model/workspace.hpp"

namespace fp8lab {

/// Numbers that a linear layer takes in random keys, in front of those of activations.
inline constexpr std::uint32_t kTensorsOfLinear = 3;

/// An activation of a layer as a logged operand.
struct LoggedActivation {
  std::string layer;  ///< "layers.0"
  std::string name;   ///< "mlp.inner"
  std::int64_t extent = 0;
  std::optional<AttentionSlot> attention = std::nullopt;  ///< an operand of attention
};

/// Returns the activations of all layers that recipes name: the rows of /tensors behind those of
/// the linear layers, whether a recipe quantizes them or not.
std::vector<LoggedActivation> logged_activations(const Declaration& declaration);

/// Returns the quantizer of an activation; one that casts nothing if it is saved as it is, or not
/// saved.
QuantSpec saved_spec(const Recipe& recipe, const std::string& activation);

/// Returns the quantizer of a row of /tensors behind those of linear layers.
QuantSpec logged_spec(const Recipe& recipe, const LoggedActivation& activation,
                      const AttentionExtents& extents);

/// Returns true if the recipe has the backward pass compute the remakeable tensors of layers again
/// (SavedDeclaration::is_remakeable).
bool recomputes_remakeable(const Recipe& recipe, const Declaration& declaration);

/// What decides which activations are saved as codes.
struct SavedActivationsPlan {
  const Recipe& recipe;
  std::vector<bool> is_read;  ///< by the backward pass, of each saved tensor of the declaration
  Recompute recompute = Recompute::none;
  std::int64_t tokens = 0;         ///< largest number of tokens of a micro-batch
  DType activation = DType::bf16;  ///< their storage type
};

/// The forward pass computes an activation in memory that all layers share, and reads it there.
/// keep() quantizes it into the layer's own codes; restore() replaces the shared tensor by the
/// dequantized codes, which the backward pass reads.
class SavedActivations {
 public:
  /// Throws Error if the backend refuses a quantizer, or if `plan.recompute` recomputes tensors
  /// from a residual stream that is saved as codes: they would have other bits.
  SavedActivations(Backend& backend, Workspace& workspace, const Declaration& declaration,
                   const SavedActivationsPlan& plan);

  /// Returns true if the activation is saved as codes.
  bool has(SavedId id) const { return find(id) != nullptr; }
  /// The phases in which the shared tensor behind such an activation is live, unless
  /// Recompute recomputes it.
  LiveRange live_range(SavedId id) const { return row(id).live; }
  /// recomputes_remakeable() of its recipe.
  bool remakes_x() const { return remakes_; }

  /// Calls visit(id) for the activations that a layer saves as codes after the forward pass of
  /// `block`, or restores in `phase`.
  template <class Visit>
  void for_each_kept(std::int64_t layer, Block block, const Visit& visit) const {
    for (const Row& row : rows_) {
      if (row.layer == layer && row.block == block) visit(row.id);
    }
  }
  template <class Visit>
  void for_each_restored(std::int64_t layer, PassPhase phase, const Visit& visit) const {
    for (const Row& row : rows_) {
      if (row.layer == layer && row.restored_in == phase) visit(row.id);
    }
  }
  /// Quantizes and measures `values`, the activation (T, C).
  void keep(const StepContext& context, SavedId id, const TensorView& values);
  /// Replaces `values` by what the backward pass reads.
  void restore(const StepContext& context, SavedId id, const TensorView& values);

  /// The rows of each layer, in the order of logged_activations(); empty if there are no codes.
  const std::vector<std::unique_ptr<OperandSet>>& operands() const { return operands_; }

 private:
  struct Row {
    SavedId id{};
    std::int64_t layer = 0;
    Block block{};  ///< whose forward pass computes it
    PassPhase restored_in{};
    bool is_recomputed = false;  ///< by Recompute: it is there when restore() is called
    OperandId operand{};
    LiveRange live = PassPhase::head;
  };
  const Row* find(SavedId id) const;
  const Row& row(SavedId id) const;
  void add_layer(const Declaration& declaration, const SavedActivationsPlan& plan,
                 std::int64_t layer, Workspace& workspace);
  /// The label of operations on the activations of a layer.
  Label label(std::int64_t layer) const;

  Backend& backend_;
  bool remakes_ = false;
  std::vector<Row> rows_;
  std::vector<std::unique_ptr<OperandSet>> operands_;  ///< by layer
};

}  // namespace fp8lab
