#include "src/config/config_difference.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <sstream>
#include <utility>

#include "emulation/base/error.hpp"
#include "src/config/config.hpp"
#include "src/config/reading/toml_reader.hpp"
#include "src/config/reading/toml_text.hpp"

namespace fp8lab {
namespace {

using Children = std::vector<std::pair<std::string, const toml::node*>>;

bool is_list_of_tables(const toml::node& node) {
  return node.is_array() && !node.as_array()->empty() &&
         node.as_array()->is_homogeneous<toml::table>();
}

/// Returns a value in words. An empty list is what its key means when it is not there.
std::string text_of(const toml::node* node) {
  if (node == nullptr || (node->is_array() && node->as_array()->empty())) return "(none)";
  if (node->is_table()) return "(table)";
  if (is_list_of_tables(*node)) return "(tables)";
  if (const std::optional<FieldValue> value = value_of(*node)) return toml_text(*value);
  std::ostringstream text;
  node->visit([&](const auto& value) { text << value; });
  return text.str();
}

/// The keys of a table in the order in which they were written; toml++ sorts them by name.
Children children_of(const toml::table& table) {
  Children children;
  for (const auto& [key, value] : table) children.emplace_back(key.str(), &value);
  std::stable_sort(children.begin(), children.end(), [](const auto& a, const auto& b) {
    return a.second->source().begin.line < b.second->source().begin.line;
  });
  return children;
}

/// The tables of a list by their names, or by number unless every table has a name of its own.
Children children_of(const toml::array& list) {
  Children named;
  Children numbered;
  std::map<std::string, int> uses;
  for (const toml::node& element : list) {
    const std::string name = (*element.as_table())["name"].value_or(std::string());
    named.emplace_back(name, &element);
    numbered.emplace_back(std::to_string(numbered.size() + 1), &element);
    ++uses[name];
  }
  const bool unique = uses.size() == list.size() && uses.count("") == 0;
  return unique ? named : numbered;
}

Children children_of(const toml::node& node) {
  return node.is_table() ? children_of(*node.as_table()) : children_of(*node.as_array());
}

const toml::node* find_in(const Children& children, const std::string& name) {
  const auto found = std::find_if(children.begin(), children.end(),
                                  [&](const auto& child) { return child.first == name; });
  return found == children.end() ? nullptr : found->second;
}

std::string names_in(const Children& children, const Children& others) {
  std::vector<std::string> names;
  for (const auto& [name, node] : children) {
    if (find_in(others, name) != nullptr) names.push_back(name);
  }
  return join_names(names);
}

void compare(const std::string& path, const toml::node* stored, const toml::node* now,
             std::vector<std::string>& out) {
  const auto both = [&](auto is) {
    return stored != nullptr && now != nullptr && is(*stored) && is(*now);
  };
  const bool lists = both(is_list_of_tables);
  if (!lists && !both([](const toml::node& node) { return node.is_table(); })) {
    const std::string old_text = text_of(stored);
    const std::string new_text = text_of(now);
    if (old_text != new_text) out.push_back(fmt::format("{}: {} -> {}", path, old_text, new_text));
    return;
  }
  const Children old_children = children_of(*stored);
  const Children new_children = children_of(*now);
  const auto below = [&](const std::string& name) {
    return path.empty() ? name : path + "." + name;
  };
  for (const auto& [name, node] : new_children) {
    compare(below(name), find_in(old_children, name), node, out);
  }
  for (const auto& [name, node] : old_children) {
    if (find_in(new_children, name) == nullptr) compare(below(name), node, nullptr, out);
  }
  if (!lists) return;
  const std::string old_order = names_in(old_children, new_children);
  const std::string new_order = names_in(new_children, old_children);
  if (old_order != new_order) {
    out.push_back(fmt::format("order of {}: {} -> {}", path, old_order, new_order));
  }
}

}  // namespace

std::vector<std::string> differences(const std::string& stored_toml, const std::string& new_toml) {
  const toml::table stored = parse_toml(stored_toml, "the stored configuration");
  const toml::table now = parse_toml(new_toml, "the new configuration");
  std::vector<std::string> out;
  compare("", &stored, &now, out);
  return out;
}

std::vector<std::string> run_differences(const std::string& stored_toml,
                                         const std::string& new_toml) {
  std::string stored = stored_toml;
  try {
    stored = parse_run_config(stored_toml, "the stored configuration", {}).text;
  } catch (const Error&) {
    // The text has a key that no longer exists, or is a recipe file: compare it unparsed.
  }
  return differences(stored, new_toml);
}

std::string join_differences(const std::vector<std::string>& all, std::size_t most) {
  const auto shown = static_cast<std::ptrdiff_t>(std::min(most, all.size()));
  std::string text = fmt::format("{}", fmt::join(all.begin(), all.begin() + shown, "; "));
  if (all.size() > most) text += fmt::format("; and {} more", all.size() - most);
  return text;
}

}  // namespace fp8lab
