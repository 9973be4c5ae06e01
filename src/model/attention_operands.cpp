#include "src/model/attention_operands.hpp"

#include <fmt/format.h>

#include <utility>

#include "emulation/base/error.hpp"
#include "emulation/base/input_error.hpp"
#include "emulation/spec/row_locality.hpp"

namespace fp8lab {
namespace {

/// Columns of the tensor of a slot; those of q for P and dS, which have no tensor.
std::int64_t columns_of(AttentionSlot slot, const ModelConfig& model) {
  const bool of_keys = slot == AttentionSlot::k || slot == AttentionSlot::v;
  return (of_keys ? model.num_key_value_heads : model.num_attention_heads) * model.head_dim;
}

[[noreturn]] void refuse(const std::string& reason) {
  throw InputError({.key = "attention", .reason = reason});
}

}  // namespace

std::string attention_name(std::int64_t layer) { return fmt::format("layers.{}.attention", layer); }

std::vector<LoggedActivation> logged_attention(const ModelConfig& model) {
  std::vector<LoggedActivation> all;
  for (std::int64_t layer = 0; layer < model.layer_count(); ++layer) {
    for (const AttentionSlot slot : kAttentionSlots) {
      all.push_back({fmt::format("layers.{}", layer), fmt::format("attention.{}", name_of(slot)),
                     columns_of(slot, model), slot});
    }
  }
  return all;
}

AttentionOperands::AttentionOperands(Backend& backend, Workspace& workspace,
                                     const Declaration& declaration, const ModelConfig& model,
                                     const AttentionPlan& plan)
    : backend_(backend), recipe_(plan.recipe), values_(plan.values) {
  for (const AttentionSlot slot : kAttentionSlots) {
    specs_[slot] = recipe_.spec(slot, plan.extents, values_);
  }
  check_support(model, plan);
  const auto first = static_cast<std::uint32_t>(declaration.linears().size()) * kTensorsOfLinear +
                     static_cast<std::uint32_t>(declaration.saved().size());
  for (std::int64_t layer = 0; layer < model.layer_count(); ++layer) {
    std::vector<OperandDeclaration> operands;
    for (const AttentionSlot slot : kAttentionSlots) {
      operands.push_back(declare(slot, first, layer, columns_of(slot, model), plan));
    }
    operands_.push_back(std::make_unique<OperandSet>(backend_, workspace, attention_name(layer),
                                                     std::move(operands)));
  }
}

OperandDeclaration AttentionOperands::declare(AttentionSlot slot, std::uint32_t first_number,
                                              std::int64_t layer, std::int64_t cols,
                                              const AttentionPlan& plan) const {
  OperandDeclaration operand;
  operand.name = fmt::format("attention.{}", name_of(slot));
  operand.tensor_name = name_of(slot);
  operand.tensor = first_number + static_cast<std::uint32_t>(layer * std::ssize(kAttentionSlots)) +
                   static_cast<std::uint32_t>(slot);
  operand.gemm = operand.tensor;
  operand.spec = specs_[slot];
  operand.source = TensorView::without_memory(backend_.storage(values_), plan.tokens, cols);
  operand.is_inside = is_inside_attention(slot);
  const bool is_training = plan.purpose == Purpose::training;
  const bool is_of_backward = slot == AttentionSlot::dout || slot == AttentionSlot::ds;
  const bool is_read = is_of_backward ? is_training && quantizes_backward() : true;
  operand.is_made = is_read && !operand.is_inside;
  operand.is_inside = operand.is_inside && is_read;
  LiveRange live = is_of_backward ? PassPhase::attention_backward : PassPhase::attention;
  if (is_training && !is_of_backward && quantizes_backward()) {
    live = live | PassPhase::attention_backward;
  }
  if (is_training && !is_of_backward && plan.recompute == Recompute::layer) {
    live = live | PassPhase::recompute;
  }
  operand.memory.live = live;
  operand.memory.buffer = "codes." + operand.name;
  return operand;
}

void AttentionOperands::check_support(const ModelConfig& model, const AttentionPlan& plan) const {
  const AttentionExtents& of = plan.extents;
  const AttentionShape shape{.batch = plan.tokens / of.sequence,
                             .sequence = of.sequence,
                             .heads = model.num_attention_heads,
                             .kv_heads = model.num_key_value_heads,
                             .head_dim = of.head_dim,
                             .kv_tile = of.kv_tile,
                             .q_tile = of.q_tile};
  const auto operand = [&](AttentionSlot slot) {
    return QuantizedOperand::without_memory(specs_[slot], plan.tokens, columns_of(slot, model));
  };
  const QuantizedOperand q = operand(AttentionSlot::q), k = operand(AttentionSlot::k),
                         v = operand(AttentionSlot::v), dout = operand(AttentionSlot::dout);
  if (quantizes_forward()) {
    const Support support =
        backend_.supports(ops::QuantizedAttentionForward{.shape = shape,
                                                         .values = values_,
                                                         .q = q,
                                                         .k = k,
                                                         .v = v,
                                                         .p = specs_[AttentionSlot::p],
                                                         .document_start = {},
                                                         .out = {},
                                                         .lse = {}});
    if (!support) refuse(support.reason);
  }
  if (!quantizes_backward() || plan.purpose != Purpose::training) return;
  const Support support =
      backend_.supports(ops::QuantizedAttentionBackward{.shape = shape,
                                                        .values = values_,
                                                        .q = q,
                                                        .k = k,
                                                        .v = v,
                                                        .dout = dout,
                                                        .p = specs_[AttentionSlot::p],
                                                        .ds = specs_[AttentionSlot::ds],
                                                        .document_start = {},
                                                        .out = {},
                                                        .lse = {},
                                                        .dq = {},
                                                        .dk = {},
                                                        .dv = {}});
  if (!support) refuse(support.reason);
}

void AttentionOperands::check_cache() const {
  if (!quantizes_forward()) return;
  const auto require = [](AttentionSlot slot, const std::string& reason) {
    if (reason.empty()) return;
    throw InputError({.key = fmt::format("attention.{}", name_of(slot)),
                      .reason = "cannot be generated token by token: " + reason,
                      .accepted = "static or delayed scales, of q and k also those of tokens; or "
                                  "nothing that is generated, such as eval.exact_match = 0"});
  };
  require(AttentionSlot::q, row_mixing(specs_[AttentionSlot::q]));
  require(AttentionSlot::k, ops::supports_cached_operand(specs_[AttentionSlot::k], false).reason);
  require(AttentionSlot::v, ops::supports_cached_operand(specs_[AttentionSlot::v], true).reason);
}

const QuantizedOperand& AttentionOperands::make(const StepContext& context, std::int64_t layer,
                                                AttentionSlot slot, const TensorView& values,
                                                bool is_first) {
  OperandSet& operands = *operands_[static_cast<std::size_t>(layer)];
  const LabelScope scope(backend_, backend_.label().in_layer(attention_name(layer)));
  operands.make(context, id_of(slot), values);
  if (is_first) operands.measure(context, id_of(slot), values);
  return operands.operand(id_of(slot));
}

const TensorView& AttentionOperands::ds_state(std::int64_t layer) const {
  return operands_[static_cast<std::size_t>(layer)]->delayed_state(id_of(AttentionSlot::ds));
}

}  // namespace fp8lab
