#include "src/config/reading/overlay.hpp"

#include <algorithm>
#include <array>
#include <string>
#include <utility>
#include <vector>

namespace fp8lab {

// Moves instead of copying: a copy would lose file and line, and an existing key would
// keep those of its old value.
void move_into(toml::table& table, const toml::key& key, toml::node& node) {
  table.erase(key.str());
  node.visit([&](auto& value) { table.insert(key, std::move(value)); });
}

namespace {

/// A key that only some kinds of a table with a `kind` have.
struct KeyOfKinds {
  std::string_view key;
  std::array<std::string_view, 3> kinds;
};
constexpr std::array<KeyOfKinds, 9> kKeysOfKinds = {{
    {"decay_steps", {"wsd"}},
    {"decay", {"wsd"}},
    {"families", {"arithmetic"}},
    {"problems", {"arithmetic"}},
    {"corpus_seed", {"arithmetic"}},
    {"held_out", {"arithmetic"}},
    {"path", {"text", "jsonl", "tokens"}},
    {"document_begin", {"tokens"}},
    {"document_end", {"tokens"}},
}};

void make_room_for_kind(const toml::node& value, toml::table& table,
                        const std::function<bool(const toml::node&)>& may_go) {
  const std::string kind = value.value_or(std::string());
  const std::string before = table["kind"].value_or(std::string());
  if (kind.empty() || before == kind) return;
  for (const auto& [key, kinds] : kKeysOfKinds) {
    const toml::node* const present = table.get(key);
    const auto has = [&kinds = kinds](const std::string& name) {
      return std::find(kinds.begin(), kinds.end(), name) != kinds.end();
    };
    const bool was_for_it = before.empty() || has(before);
    if (present != nullptr && was_for_it && !has(kind) && may_go(*present)) table.erase(key);
  }
}

}  // namespace

void make_room_for(std::string_view key, const toml::node& value, toml::table& table,
                   const std::function<bool(const toml::node&)>& may_go) {
  if (key == "kind") make_room_for_kind(value, table, may_go);
  if (key != "sources") return;
  std::vector<std::string> others;
  for (auto&& [present, part] : table) {
    if (present.str() != "form") others.emplace_back(present.str());
  }
  for (const std::string& other : others) table.erase(other);
}

void overlay(toml::table& base, toml::table& over) {
  for (const char* key : {"sources", "kind"}) {
    if (over.contains(key)) {
      make_room_for(key, *over.get(key), base, [](const toml::node&) { return true; });
    }
  }
  for (auto&& [key, value] : over) {
    toml::node* present = base.get(key.str());
    if (present != nullptr && present->is_table() && value.is_table()) {
      overlay(*present->as_table(), *value.as_table());
    } else {
      move_into(base, key, value);
    }
  }
}

}  // namespace fp8lab
