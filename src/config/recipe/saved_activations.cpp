#include "src/config/recipe/saved_activations.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <optional>
#include <string_view>
#include <utility>

#include "emulation/base/input_error.hpp"
#include "emulation/spec/recipe_names.hpp"
#include "src/architecture/layer_names.hpp"
#include "src/config/recipe/spec_words.hpp"

namespace fp8lab {
namespace {

constexpr const char* kDefault = "default";

/// Reads one value; `name` is empty for the default.
SavedActivation read_value(TomlReader& table, std::string_view key, const std::string& name,
                           DType activations) {
  const std::string words = table.text(key, "");
  SavedActivation saved{.name = name};
  if (words == kRecomputeWord) {
    const std::vector<std::string>& remakeable = saved_names_of_any_model().remakeable;
    if (std::find(remakeable.begin(), remakeable.end(), name) != remakeable.end()) {
      saved.is_recomputed = true;
      return saved;
    }
    table.refuse(key, {.found = fmt::format("'{}'", words),
                       .reason = fmt::format(", which is for {}", fmt::join(remakeable, ", ")),
                       .accepted = "the words of a quantizer; memory.recompute of a run computes "
                                   "blocks or layers again"});
  }
  try {
    if (recipe_slot_from_text(words)) {
      throw InputError({.found = fmt::format("'{}'", words),
                        .reason = "is a slot of another recipe",
                        .accepted = accepted_saved_activation()});
    }
    saved.spec = parse_quant_spec(words);
    if (const auto refusal = refuse_saved_activation(saved.spec)) throw InputError(*refusal);
  } catch (const InputError& error) {
    ErrorFields fields = error.fields();
    fields.where = fmt::format("{}: '{}'", table.where(key), table.path_of(key));
    throw InputError(std::move(fields));
  }
  const auto as_they_are = format_by_name(word_for(kStorageNames, activations));
  if (saved.spec.is_cast() || saved.spec.format == as_they_are) return saved;
  table.refuse(
      key, {.found = fmt::format("'{}'", words),
            .reason = fmt::format(", but activations are {}", word_for(kStorageNames, activations)),
            .accepted = accepted_saved_activation()});
}

}  // namespace

std::string accepted_saved_activation() {
  return "the words of a quantizer, such as e4m3fn/1x128/pow2; bf16 (fp32 with activations = "
         "\"fp32\"): as it is; of mlp.activated also recompute";
}

std::vector<SavedActivation> read_saved_activations(TomlReader& document, DType activations) {
  std::optional<TomlReader> table = document.table("saved_activations");
  if (!table) return {};
  std::vector<SavedActivation> rows;
  // node() adds a key to those that an error about an unknown one lists.
  if (table->node(kDefault) != nullptr)
    rows.push_back(read_value(*table, kDefault, "", activations));
  // TOML reads mlp.inner without quotes as a table within the table.
  std::map<std::string, std::optional<TomlReader>> nested;
  for (const std::string& name : saved_names_of_any_model().all) {
    const std::size_t dot = name.find('.');
    const std::string group = name.substr(0, dot);
    if (dot != std::string::npos && nested.count(group) == 0 && table->has(group)) {
      nested[group] = table->table(group);
    }
    const bool is_plain = table->node(name) != nullptr;
    if (is_plain) rows.push_back(read_value(*table, name, name, activations));
    if (dot == std::string::npos || nested.count(group) == 0) continue;
    TomlReader& inner = *nested[group];
    const std::string rest = name.substr(dot + 1);
    if (inner.node(rest) == nullptr) continue;
    if (is_plain) {
      inner.fail(rest, {.reason = fmt::format("written twice, also as \"{}\"", name)});
    }
    rows.push_back(read_value(inner, rest, name, activations));
  }
  for (auto& [group, reader] : nested) reader->finish();
  table->finish();
  if (!rows.empty()) return rows;
  document.fail(
      "saved_activations",
      {.reason = "the table is empty",
       .accepted = fmt::format("default, {}", fmt::join(saved_names_of_any_model().all, ", "))});
}

}  // namespace fp8lab
