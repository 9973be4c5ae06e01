// Delayed-scaling state on the host: carried between stages, in checkpoints, and between runs.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "emulation/backend.hpp"
#include "emulation/spec/attention_recipe.hpp"
#include "src/model/linear/linear.hpp"

namespace fp8lab {

/// The state of one delayed scale. Only the quantizer that wrote it can use it: the current scale
/// belongs to a format, the amaxes to a history of one length.
struct AmaxHistory {
  QuantSpec spec;
  std::vector<float> state;  ///< DelayedState
  std::int64_t steps = 0;    ///< steps whose amaxes are in the history

  /// Returns true if a tensor quantized by `other` can continue this history.
  bool fits(const QuantSpec& other) const {
    return spec.format == other.format && spec.scale == other.scale &&
           spec.history_length == other.history_length &&
           spec.amax_algorithm == other.amax_algorithm;
  }
};

/// Histories by name: "LAYER/x", "LAYER/w", "LAYER/dy"; a second orientation with a history of its
/// own is "LAYER/wgrad.x". Those of attention are "layers.0.attention/q" and so on.
using AmaxHistories = std::map<std::string, AmaxHistory>;

/// Returns the name in AmaxHistories of the state of a layer's `slot` (history_slot).
std::string amax_history_name(const std::string& layer, Slot slot);
/// Returns that name for an operand of the module `module`.
std::string amax_history_name(const std::string& module, const OperandDeclaration& operand);

/// Inverse of amax_history_name; nothing for other names.
struct HistoryOwner {
  std::string layer;
  Slot slot{};
  std::optional<AttentionSlot> attention = std::nullopt;  ///< instead of `slot`
};
std::optional<HistoryOwner> amax_history_owner(const std::string& name);

/// Returns true if `histories` has an entry `name` that a tensor quantized by `spec` can continue.
bool continues(const AmaxHistories& histories, const std::string& name, const QuantSpec& spec);

/// Returns one hash over all histories.
std::uint64_t hash_of(const AmaxHistories& histories);

/// Downloads the histories of all modules.
AmaxHistories amax_histories(Backend& backend, const std::vector<NamedOperands>& modules);

/// Uploads to each delayed scale of `operands`, which belong to module `module`, the history of its
/// name, if one fits. Returns the names of the scales without one.
std::vector<std::string> continue_histories(Backend& backend, const AmaxHistories& histories,
                                            const std::string& module, OperandSet& operands);
/// Restores the histories of all `modules`.
std::vector<std::string> continue_histories(Backend& backend, const AmaxHistories& histories,
                                            const std::vector<NamedOperands>& modules);

}  // namespace fp8lab
