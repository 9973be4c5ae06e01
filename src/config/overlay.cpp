#include "src/config/overlay.hpp"

#include <string>
#include <utility>
#include <vector>

namespace fp8lab {

// A copy would lose the file and line, and a key that stays would keep those of the value it had.
void move_into(toml::table& table, const toml::key& key, toml::node& node) {
  table.erase(key.str());
  node.visit([&](auto& value) { table.insert(key, std::move(value)); });
}

void make_room_for(std::string_view key, toml::table& table) {
  if (key != "sources") return;
  std::vector<std::string> others;
  for (auto&& [present, value] : table) {
    if (present.str() != "form") others.emplace_back(present.str());
  }
  for (const std::string& other : others) table.erase(other);
}

void overlay(toml::table& base, toml::table& over) {
  if (over.contains("sources")) make_room_for("sources", base);
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
