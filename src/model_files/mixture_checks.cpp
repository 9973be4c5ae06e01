// Mixtures that have a tensor for each expert: experts and projections that are missing, that
// differ, or that no loader looks for.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <optional>
#include <set>
#include <string_view>
#include <utility>

#include "src/model_files/model_doctor.hpp"

namespace fp8lab {
namespace {

using nlohmann::json;
using Extents = std::vector<std::int64_t>;

constexpr std::string_view kExperts = "experts.", kWord = "expert_";

constexpr const char* kTowers[] = {"vision", "visual", "audio", "talker"};

bool is_digit(char letter) { return letter >= '0' && letter <= '9'; }

/// "PREFIX.experts.", "3" and "up_proj.weight" of "PREFIX.experts.3.up_proj.weight".
struct ExpertName {
  std::string prefix, number, rest;

  bool is_canonical() const {
    const bool has_leading_zero = number.size() > 1 && number[0] == '0';
    return number.size() < 7 && !has_leading_zero &&
           std::all_of(number.begin(), number.end(), is_digit);
  }
};

/// Returns the parts of a name; nothing for a tensor of no expert or of several.
std::optional<ExpertName> expert_name(const std::string& name) {
  std::size_t at = name.find(kExperts);
  while (at != std::string::npos && at > 0 && name[at - 1] != '.') {
    at = name.find(kExperts, at + 1);
  }
  if (at == std::string::npos) return std::nullopt;
  std::size_t first = at + kExperts.size();
  if (name.compare(first, kWord.size(), kWord) == 0) first += kWord.size();
  const std::size_t dot = name.find('.', first);
  if (dot == std::string::npos || dot == first) return std::nullopt;
  ExpertName found{name.substr(0, first), name.substr(first, dot - first), name.substr(dot + 1)};
  const bool has_sign = found.number[0] == '-' || found.number[0] == '+';
  const bool is_number =
      found.number.size() > (has_sign ? 1u : 0u) &&
      std::all_of(found.number.begin() + (has_sign ? 1 : 0), found.number.end(), is_digit);
  if (!is_number) return std::nullopt;
  return found;
}

/// The number of experts of a layer that config.json states; -1: none.
std::int64_t stated_experts(const json& config) {
  for (const json* table : {&config, &config_field(config, "text_config")}) {
    for (const char* key : {"num_experts", "num_local_experts", "n_routed_experts",
                            "moe_num_experts", "num_routed_experts"}) {
      const std::int64_t stated = config_number(*table, key, -1);
      if (stated > 0) return stated;
    }
  }
  return -1;
}

/// Towers beside the language model have numbers of experts of their own.
bool is_of_tower(const std::string& prefix) {
  return std::any_of(std::begin(kTowers), std::end(kTowers),
                     [&](const char* tower) { return prefix.find(tower) != std::string::npos; });
}

class MixtureChecks {
 public:
  MixtureChecks(const ModelFolder& folder, std::vector<ModelFinding>& findings)
      : findings_(findings), stated_(stated_experts(folder.config)) {
    for (const StoredWeight& weight : folder.weights) add_tensor(weight.name, weight.shape());
    for (const StoredTensor* tensor : folder.plain) add_tensor(tensor->name, tensor->shape);
    is_whole_ = folder.config.is_object();  // one file may be a part of a model
  }

  void run() {
    for (const auto& [prefix, mixture] : mixtures_) {
      check_numbers(prefix, mixture);
      for (const auto& [rest, shapes] : mixture.shapes) {
        check_shapes(prefix, rest, shapes);
        check_projection(prefix, rest, shapes, mixture);
      }
    }
  }

 private:
  struct Mixture {
    std::set<std::int64_t> experts;
    std::map<std::string, std::map<std::int64_t, Extents>> shapes;  ///< by projection and expert
  };

  void add(const char* kind, const std::string& tensor, std::int64_t count, std::string text) {
    findings_.push_back({Severity::error, kind, tensor, {}, count, std::move(text)});
  }

  void add_tensor(const std::string& name, const Extents& shape) {
    const std::optional<ExpertName> parts = expert_name(name);
    if (!parts) return;
    if (!parts->is_canonical()) {
      add("expert_name", name, 1,
          fmt::format("is of expert '{}', for which no loader looks; accepted: a number from 0 on, "
                      "without sign and leading zeros",
                      parts->number));
      return;
    }
    Mixture& mixture = mixtures_[parts->prefix];
    const std::int64_t expert = std::stoll(parts->number);
    mixture.experts.insert(expert);
    mixture.shapes[parts->rest].emplace(expert, shape);
  }

  void check_numbers(const std::string& prefix, const Mixture& mixture) {
    const std::int64_t last = *mixture.experts.rbegin();
    const std::int64_t stated = is_of_tower(prefix) ? -1 : stated_;
    if (stated > 0 && last >= stated) {
      add("expert_name", prefix + std::to_string(last), 1,
          fmt::format("is there, but config.json says {} experts: no loader looks for it", stated));
    }
    const std::int64_t expected = std::max(stated, last + 1);
    const auto present = static_cast<std::int64_t>(mixture.experts.size());
    if (!is_whole_ || present == expected) return;
    std::int64_t hole = 0;
    while (mixture.experts.count(hole) != 0) ++hole;
    add("tensor_missing", prefix + std::to_string(hole), expected - present,
        fmt::format("is not there: {} of {} experts are; the others keep random values", present,
                    expected));
  }

  void check_shapes(const std::string& prefix, const std::string& rest,
                    const std::map<std::int64_t, Extents>& shapes) {
    std::map<Extents, std::int64_t> counts;
    for (const auto& [expert, shape] : shapes) ++counts[shape];
    if (counts.size() < 2) return;
    const auto usual =
        std::max_element(counts.begin(), counts.end(),
                         [](const auto& a, const auto& b) { return a.second < b.second; });
    const auto other = std::find_if(shapes.begin(), shapes.end(),
                                    [&](const auto& one) { return one.second != usual->first; });
    add("expert_shape", prefix + std::to_string(other->first) + "." + rest,
        static_cast<std::int64_t>(shapes.size()) - usual->second,
        fmt::format("has shape ({}), that of other experts ({}): the loader has one shape for all",
                    fmt::join(other->second, ", "), fmt::join(usual->first, ", ")));
  }

  void check_projection(const std::string& prefix, const std::string& rest,
                        const std::map<std::int64_t, Extents>& shapes, const Mixture& mixture) {
    const bool is_scale = rest.find("_scale") != std::string::npos;  // found beside its weight
    if (!is_whole_ || is_scale || shapes.size() == mixture.experts.size()) return;
    const auto hole = std::find_if(mixture.experts.begin(), mixture.experts.end(),
                                   [&](std::int64_t expert) { return shapes.count(expert) == 0; });
    add("tensor_missing", prefix + std::to_string(*hole) + "." + rest,
        static_cast<std::int64_t>(mixture.experts.size() - shapes.size()),
        fmt::format("is not there, though {} of {} experts have it: it keeps its random values",
                    shapes.size(), mixture.experts.size()));
  }

  std::vector<ModelFinding>& findings_;
  std::int64_t stated_ = -1;
  bool is_whole_ = false;
  std::map<std::string, Mixture> mixtures_;
};

}  // namespace

void check_mixtures(const ModelFolder& folder, std::vector<ModelFinding>& findings) {
  MixtureChecks(folder, findings).run();
}

}  // namespace fp8lab
