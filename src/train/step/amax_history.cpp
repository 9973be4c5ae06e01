#include "src/train/step/amax_history.hpp"

#include <utility>

#include "src/io/hash.hpp"

namespace fp8lab {

std::string amax_history_name(const std::string& layer, Slot slot) {
  return layer + "/" +
         (is_second_orientation(slot) ? slot_name(slot) : tensor_name(tensor_of(slot)));
}

std::string amax_history_name(const std::string& module, const OperandDeclaration& operand) {
  return module + "/" + operand.history_name();
}

std::optional<HistoryOwner> amax_history_owner(const std::string& name) {
  const std::size_t slash = name.rfind('/');
  if (slash == std::string::npos) return std::nullopt;
  const std::string layer = name.substr(0, slash), word = name.substr(slash + 1);
  if (const std::optional<Tensor> tensor = tensor_from_name(word)) {
    return HistoryOwner{layer, first_orientation(*tensor)};
  }
  for (const Tensor tensor : kTensors) {
    const Slot second = second_orientation(tensor);
    if (word == slot_name(second)) return HistoryOwner{layer, second};
  }
  for (const AttentionSlot slot : kAttentionSlots) {
    if (word == name_of(slot)) return HistoryOwner{layer, {}, slot};
  }
  return std::nullopt;
}

bool continues(const AmaxHistories& histories, const std::string& name, const QuantSpec& spec) {
  const auto found = histories.find(name);
  return found != histories.end() && found->second.fits(spec) &&
         static_cast<std::int64_t>(found->second.state.size()) == DelayedState::length(spec);
}

std::uint64_t hash_of(const AmaxHistories& histories) {
  Xxh3Stream stream;
  for (const auto& [name, history] : histories) {
    stream.update(name);
    stream.update(&history.steps, sizeof history.steps);
    stream.update(history.state.data(), history.state.size() * sizeof(float));
  }
  return stream.digest();
}

AmaxHistories amax_histories(Backend& backend, const std::vector<NamedOperands>& modules) {
  AmaxHistories histories;
  for (const NamedOperands& module : modules) {
    const OperandSet& operands = *module.operands;
    for (const OperandId id : operands.ids()) {
      const TensorView& view = operands.delayed_state(id);
      if (view.empty()) continue;
      AmaxHistory history{operands.declaration(id).spec,
                          std::vector<float>(static_cast<std::size_t>(view.size())),
                          operands.history_steps(id)};
      backend.download(history.state.data(), view);
      histories[amax_history_name(module.name, operands.declaration(id))] = std::move(history);
    }
  }
  return histories;
}

std::vector<std::string> continue_histories(Backend& backend, const AmaxHistories& histories,
                                            const std::string& module, OperandSet& operands) {
  std::vector<std::string> missing;
  for (const OperandId id : operands.ids()) {
    const TensorView& view = operands.delayed_state(id);
    if (view.empty()) continue;
    const OperandDeclaration& operand = operands.declaration(id);
    const std::string name = amax_history_name(module, operand);
    if (!continues(histories, name, operand.spec)) {
      missing.push_back(name);
      continue;
    }
    const AmaxHistory& history = histories.at(name);
    backend.upload(view, history.state.data());
    operands.continue_history(id, history.steps);
  }
  return missing;
}

std::vector<std::string> continue_histories(Backend& backend, const AmaxHistories& histories,
                                            const std::vector<NamedOperands>& modules) {
  std::vector<std::string> missing;
  for (const auto& [module, operands] : modules) {
    for (std::string& name : continue_histories(backend, histories, module, *operands)) {
      missing.push_back(std::move(name));
    }
  }
  return missing;
}

}  // namespace fp8lab
