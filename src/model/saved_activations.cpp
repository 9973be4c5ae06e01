#include "src/model/saved_activations.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "emulation/base/error.hpp"
#include "emulation/base/input_error.hpp"
#include "src/config/config_names.hpp"

namespace fp8lab {
namespace {

const SavedDeclaration& declared(const Declaration& declaration, SavedId id) {
  return declaration.saved()[static_cast<std::size_t>(id)];
}

Block block_of(const SavedDeclaration& saved) { return saved.stream_of.value_or(saved.block); }

std::string layer_name(std::int64_t layer) { return fmt::format("layers.{}", layer); }

bool recomputes(Recompute level, const SavedDeclaration& saved) {
  return saved.recomputed != Recompute::none && saved.recomputed <= level;
}

/// Returns true if recomputation at `level` begins with the residual stream `saved`.
bool begins_with(Recompute level, const SavedDeclaration& saved) {
  if (!saved.stream_of || recomputes(level, saved)) return false;
  return level >= (*saved.stream_of == Block::attention ? Recompute::layer : Recompute::gate_up);
}

/// A stream is also a summand of the next one, which the next block or the head adds up.
LiveRange phases_of(const SavedDeclaration& saved) {
  const Block block = block_of(saved);
  const LiveRange own{forward_of(block), backward_of(block)};
  if (!saved.stream_of) return own;
  if (block == Block::attention) return own | PassPhase::feed_forward;
  return own | PassPhase::attention | PassPhase::head;
}

}  // namespace

std::vector<LoggedActivation> logged_activations(const Declaration& declaration) {
  std::vector<LoggedActivation> all;
  for (const SavedDeclaration& saved : declaration.saved()) {
    if (!saved.is_activation_of_layer()) continue;
    all.push_back({layer_name(*saved.layer), saved.name, saved.extent});
  }
  return all;
}

QuantSpec saved_spec(const Recipe& recipe, const std::string& activation) {
  const SavedActivation* const by = recipe.saved_activation(activation);
  return by == nullptr || by->is_recomputed ? QuantSpec{} : by->spec;
}

QuantSpec logged_spec(const Recipe& recipe, const LoggedActivation& activation,
                      const AttentionExtents& extents) {
  if (!activation.attention) return saved_spec(recipe, activation.name);
  return recipe.attention.spec(*activation.attention, extents, recipe.activation_dtype);
}

namespace {

/// In the order of declaration.
std::vector<SavedId> activations_of(const Declaration& declaration, std::int64_t layer) {
  std::vector<SavedId> ids;
  for (std::size_t i = 0; i < declaration.saved().size(); ++i) {
    const SavedDeclaration& saved = declaration.saved()[i];
    if (saved.is_activation_of_layer() && saved.layer == layer) ids.push_back(SavedId{i});
  }
  return ids;
}

}  // namespace

bool recomputes_remakeable(const Recipe& recipe, const Declaration& declaration) {
  return std::any_of(declaration.saved().begin(), declaration.saved().end(),
                     [&](const SavedDeclaration& saved) {
                       const SavedActivation* const by = recipe.saved_activation(saved.name);
                       return saved.is_remakeable && by != nullptr && by->is_recomputed;
                     });
}

SavedActivations::SavedActivations(Backend& backend, Workspace& workspace,
                                   const Declaration& declaration, const SavedActivationsPlan& plan)
    : backend_(backend), remakes_(recomputes_remakeable(plan.recipe, declaration)) {
  if (plan.recipe.saved_activations.empty()) return;
  std::int64_t layers = 0;
  for (const SavedDeclaration& saved : declaration.saved()) {
    if (saved.layer) layers = std::max(layers, *saved.layer + 1);
  }
  for (std::int64_t layer = 0; layer < layers; ++layer) {
    add_layer(declaration, plan, layer, workspace);
  }
  if (rows_.empty()) operands_.clear();
}

void SavedActivations::add_layer(const Declaration& declaration, const SavedActivationsPlan& plan,
                                 std::int64_t layer, Workspace& workspace) {
  std::vector<OperandDeclaration> operands;
  for (const SavedId id : activations_of(declaration, layer)) {
    const SavedDeclaration& saved = declared(declaration, id);
    const SavedActivation* const by = plan.recipe.saved_activation(saved.name);
    OperandDeclaration& operand = operands.emplace_back();
    operand.name = operand.tensor_name = saved.name;
    operand.tensor = static_cast<std::uint32_t>(declaration.linears().size()) * kTensorsOfLinear +
                     static_cast<std::uint32_t>(id);
    operand.gemm = operand.tensor;
    operand.source = TensorView::without_memory(plan.activation, plan.tokens, saved.extent);
    const auto index = static_cast<std::size_t>(id);
    operand.is_made =
        by != nullptr && !by->is_recomputed && by->spec.is_cast() && plan.is_read[index];
    if (!operand.is_made) continue;
    if (begins_with(plan.recompute, saved)) {
      throw InputError(
          {.key = "saved_activations." + saved.name,
           .found = fp8lab::label(by->spec),
           .reason = fmt::format(", but memory.recompute = \"{}\" computes tensors again from it, "
                                 "which would have other bits",
                                 word_for(kRecomputeNames, plan.recompute)),
           .accepted = "the activation as it is, or memory.recompute = \"none\""});
    }
    operand.spec = by->spec;
    Row row{.id = id, .layer = layer, .block = block_of(saved)};
    row.operand = OperandId{operands.size() - 1};
    row.is_recomputed = recomputes(plan.recompute, saved);
    row.live = phases_of(saved);
    row.restored_in = backward_of(row.block);
    // The input of an activation function is restored before its output is computed again.
    if (remakes_ && saved.remakes_other) {
      row.restored_in = PassPhase::recompute;
      row.live = row.live | PassPhase::recompute;
    }
    if (row.is_recomputed) {
      operand.memory.live = row.live;
      operand.memory.buffer = "codes." + saved.name;
    }
    rows_.push_back(row);
  }
  operands_.push_back(
      std::make_unique<OperandSet>(backend_, workspace, layer_name(layer), std::move(operands)));
}

const SavedActivations::Row* SavedActivations::find(SavedId id) const {
  const auto found =
      std::find_if(rows_.begin(), rows_.end(), [&](const Row& row) { return row.id == id; });
  return found == rows_.end() ? nullptr : &*found;
}

const SavedActivations::Row& SavedActivations::row(SavedId id) const {
  const Row* const found = find(id);
  FP8LAB_ASSERT(found != nullptr);
  return *found;
}

Label SavedActivations::label(std::int64_t layer) const {
  return backend_.label().in_layer(layer_name(layer));
}

void SavedActivations::keep(const StepContext& context, SavedId id, const TensorView& values) {
  const Row& row = this->row(id);
  // What is recomputed has codes when it is restored; here it is measured.
  if (row.is_recomputed && !context.log_statistics) return;
  const LabelScope scope(backend_, label(row.layer));
  operands_[static_cast<std::size_t>(row.layer)]->quantize(context, row.operand, values);
}

void SavedActivations::restore(const StepContext& context, SavedId id, const TensorView& values) {
  const Row& row = this->row(id);
  OperandSet& operands = *operands_[static_cast<std::size_t>(row.layer)];
  const LabelScope scope(backend_, label(row.layer));
  if (row.is_recomputed) operands.make(context, row.operand, values);
  const LabelScope tensor(
      backend_, backend_.label().on_tensor(operands.declaration(row.operand).tensor_name));
  backend_.run(ops::Dequantize{operands.operand(row.operand), false, values});
}

}  // namespace fp8lab
