// The memory of delayed scaling outside the backend: between stages, in checkpoints, between runs.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "emulation/backend.hpp"
#include "src/model/linear.hpp"

namespace fp8lab {

/// The state of one delayed scale. It means something to the quantizer that wrote it
/// alone: the scale in force belongs to a format, the amaxes to a history of one length.
struct AmaxHistory {
  QuantSpec spec;
  std::vector<float> state;  ///< DelayedState
  std::int64_t steps = 0;    ///< whose amaxes it has seen

  /// True when a tensor quantized by `other` can continue it.
  bool fits(const QuantSpec& other) const {
    return spec.format == other.format && spec.scale == other.scale &&
           spec.history_length == other.history_length &&
           spec.amax_algorithm == other.amax_algorithm;
  }
};

/// By "LAYER/x", "LAYER/w" or "LAYER/dy"; of a second orientation that has its own,
/// "LAYER/wgrad.x".
using AmaxHistories = std::map<std::string, AmaxHistory>;

/// The name in AmaxHistories of a layer's state of `slot` (history_slot).
std::string amax_history_name(const std::string& layer, Slot slot);
/// The same for a history of an operand of the module `module`.
std::string amax_history_name(const std::string& module, const OperandDeclaration& operand);

/// What amax_history_name was made from. Nothing for other names.
struct HistoryOwner {
  std::string layer;
  Slot slot;
};
std::optional<HistoryOwner> amax_history_owner(const std::string& name);

/// True where `histories` have one called `name` that a tensor quantized by `spec` can continue.
bool continues(const AmaxHistories& histories, const std::string& name, const QuantSpec& spec);

/// Identity of all of them.
std::uint64_t hash_of(const AmaxHistories& histories);

/// Copies out of the backend what the layers remember.
AmaxHistories amax_histories(Backend& backend, const std::vector<std::unique_ptr<Linear>>& linears);

/// Gives each delayed scale of `operands`, those of the module `module`, the history with its name,
/// if there is one that fits. Returns the names of those that got none.
std::vector<std::string> continue_histories(Backend& backend, const AmaxHistories& histories,
                                            const std::string& module, OperandSet& operands);
/// The same for all of `linears`.
std::vector<std::string> continue_histories(Backend& backend, const AmaxHistories& histories,
                                            const std::vector<std::unique_ptr<Linear>>& linears);

}  // namespace fp8lab
