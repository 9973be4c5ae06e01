#include "src/train/amax_history.hpp"

#include "src/io/hash.hpp"

namespace fp8lab {

std::string amax_history_name(const std::string& layer, Tensor tensor) {
  return layer + "/" + tensor_name(tensor);
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

AmaxHistories amax_histories(Backend& backend,
                             const std::vector<std::unique_ptr<Linear>>& linears) {
  AmaxHistories histories;
  for (const auto& linear : linears) {
    for (const Tensor tensor : kTensors) {
      const TensorView& view = linear->delayed_states()[tensor];
      if (view.empty()) continue;
      AmaxHistory history{delayed_spec(linear->recipe(), tensor),
                          std::vector<float>(static_cast<std::size_t>(view.size())),
                          linear->history_steps()[tensor]};
      backend.download(history.state.data(), view);
      histories[amax_history_name(linear->name(), tensor)] = std::move(history);
    }
  }
  return histories;
}

std::vector<std::string> continue_histories(Backend& backend, const AmaxHistories& histories,
                                            const std::vector<std::unique_ptr<Linear>>& linears) {
  std::vector<std::string> missing;
  for (const auto& linear : linears) {
    for (const Tensor tensor : kTensors) {
      const TensorView& view = linear->delayed_states()[tensor];
      if (view.empty()) continue;
      const std::string name = amax_history_name(linear->name(), tensor);
      if (!continues(histories, name, delayed_spec(linear->recipe(), tensor))) {
        missing.push_back(name);
        continue;
      }
      const AmaxHistory& history = histories.at(name);
      backend.upload(view, history.state.data());
      linear->continue_history(tensor, history.steps);
    }
  }
  return missing;
}

}  // namespace fp8lab
