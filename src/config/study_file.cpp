// Study files: a grid of runs over one base configuration.
#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cstddef>
#include <set>
#include <string>
#include <vector>

#include "emulation/api/error.hpp"
#include "src/config/config.hpp"
#include "src/config/run_text.hpp"
#include "src/config/toml_reader.hpp"
#include "src/io/atomic_file.hpp"
#include "src/io/hash.hpp"

namespace fp8lab {
namespace {

// One value of a grid as TOML text.
std::string value_text(const toml::node& node, const TomlReader& reader, std::string_view key) {
  if (const toml::array* list = node.as_array()) {
    std::string text = "[";
    for (const toml::node& element : *list) {
      text += (text.size() > 1 ? ", " : "") + value_text(element, reader, key);
    }
    return text + "]";
  }
  if (node.is_string()) return toml_quoted(*node.value<std::string>());
  if (node.is_integer()) return std::to_string(*node.value<std::int64_t>());
  if (node.is_floating_point()) return fmt::format("{}", *node.value<double>());
  if (node.is_boolean()) return *node.value<bool>() ? "true" : "false";
  reader.fail(key, "accepted: strings, numbers, true, false and lists of them");
}

// Flattens [set] tables: nested keys become dotted ones.
void collect(const toml::table& table, const std::string& prefix, const TomlReader& reader,
             std::string_view name, std::vector<Assignment>& out) {
  for (const auto& [key, value] : table) {
    const std::string path =
        prefix.empty() ? std::string(key.str()) : fmt::format("{}.{}", prefix, key.str());
    if (const toml::table* inner = value.as_table()) {
      collect(*inner, path, reader, name, out);
    } else {
      out.push_back({path, value_text(value, reader, name)});
    }
  }
}

std::vector<Assignment> read_set(TomlReader& reader) {
  std::vector<Assignment> assignments;
  const std::optional<TomlReader> table = reader.table("set");
  if (table) collect(table->raw(), "", reader, "set", assignments);
  return assignments;
}

// A value as part of a folder name: "infir2", "seed1", "peak0.001".
std::string short_name(const std::string& key, const toml::node& node, const std::string& text) {
  std::string word = text;
  if (node.is_string()) {
    word = *node.value<std::string>();
    const bool is_file = word.find('/') != std::string::npos || word.ends_with(".toml");
    if (is_file) word = std::filesystem::path(word).stem().string();
  } else {
    word = key.substr(key.rfind('.') + 1) + text;
  }
  std::string name;
  for (const char c : word) {
    const bool plain =
        std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' || c == '.' || c == '-';
    if (plain) name += c;
  }
  return name;
}

// The cartesian product of every [[axis]]; the last one varies fastest.
std::vector<StudyArm> read_grid(TomlReader& document) {
  std::vector<StudyArm> arms;
  for (TomlReader& axis : document.tables("axis")) {
    const std::string key = axis.text("key", "");
    if (key.empty()) axis.refuse("key", "missing", "a configuration key such as recipe or seed");
    const toml::node* values = axis.node("values");
    axis.finish();
    if (values == nullptr || !values->is_array() || values->as_array()->empty()) {
      axis.fail("values", "accepted: a list of at least one value");
    }
    if (arms.empty()) arms.emplace_back();
    std::vector<StudyArm> product;
    for (const StudyArm& arm : arms) {
      for (const toml::node& value : *values->as_array()) {
        const std::string text = value_text(value, axis, "values");
        StudyArm next = arm;
        next.assignments.push_back({key, text});
        next.name += (next.name.empty() ? "" : "-") + short_name(key, value, text);
        product.push_back(std::move(next));
      }
    }
    arms = std::move(product);
  }
  return arms;
}

bool is_folder_name(const std::string& name) {
  return !name.empty() && name.front() != '.' && std::all_of(name.begin(), name.end(), [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' || c == '.' || c == '-';
  });
}

void read_arms(TomlReader& document, StudyConfig& study) {
  study.arms = read_grid(document);
  for (TomlReader& table : document.tables("arm")) {
    StudyArm arm;
    arm.name = table.text("name", "");
    if (!is_folder_name(arm.name)) {
      table.refuse("name", "'" + arm.name + "'", "letters, digits, '_', '-' and '.'");
    }
    arm.assignments = read_set(table);
    table.finish();
    study.arms.push_back(std::move(arm));
  }
  if (study.arms.empty()) {
    document.refuse("axis", "missing", "at least one [[axis]] or [[arm]] table");
  }
  std::set<std::string> names;
  for (const StudyArm& arm : study.arms) {
    if (arm.name == "shared" || !names.insert(arm.name).second) {
      throw Error(fmt::format("{}: the arm name '{}' is {}", document.where(), arm.name,
                              arm.name == "shared" ? "kept for the shared stages" : "not unique"));
    }
  }
}

RunConfig configure(const StudyConfig& study, const std::string& what,
                    const std::vector<Assignment>& assignments) {
  std::vector<Assignment> all = study.assignments;
  all.insert(all.end(), assignments.begin(), assignments.end());
  try {
    return load_run_config(study.base, all);
  } catch (const Error& error) {
    throw Error(fmt::format("study '{}', {}: {}", study.name, what, error.what()));
  }
}

// Every run of the study must be valid before the first one starts. Returns what identifies them.
std::string check_runs(const TomlReader& document, const StudyConfig& study) {
  std::string identity = configure(study, "shared stages", study.shared_assignments).text;
  bool has_baseline = false;
  for (const StudyArm& arm : study.arms) {
    const RunConfig config = configure(study, "arm '" + arm.name + "'", arm.assignments);
    has_baseline = has_baseline || config.recipe == study.baseline;
    identity += arm.name + "\n" + config.text;
    for (std::size_t i = 0; i < study.shared_stages.size(); ++i) {
      if (i < config.stages.size() && config.stages[i].name == study.shared_stages[i]) continue;
      document.fail("shared_stages", fmt::format("'{}' is not stage {} of the base configuration; "
                                                 "accepted: its leading stages in order",
                                                 study.shared_stages[i], i + 1));
    }
    if (!study.shared_stages.empty() && config.stages.size() == study.shared_stages.size()) {
      document.fail("shared_stages", "leave no stage for the arms");
    }
  }
  if (!has_baseline) {
    document.fail("baseline", fmt::format("no arm runs the recipe '{}'", study.baseline));
  }
  return identity;
}

}  // namespace

StudyConfig load_study_config(const std::filesystem::path& file) {
  const std::string origin = file.string();
  StudyConfig study;
  study.text = read_file(origin);
  const toml::table root = parse_toml(study.text, origin);
  TomlReader document(root, "", origin);
  study.name = document.text("name", file.stem().string());
  if (!is_folder_name(study.name)) {
    document.refuse("name", "'" + study.name + "'", "letters, digits, '_', '-' and '.'");
  }
  study.title = document.text("title", study.name);
  const std::string base = document.text("base", "");
  if (base.empty()) document.refuse("base", "missing", "a run configuration file");
  study.base = (file.parent_path() / base).lexically_normal();
  if (!std::filesystem::is_regular_file(study.base)) {
    document.fail("base", fmt::format("{} does not exist", study.base.string()));
  }
  study.shared_stages = document.texts("shared_stages");
  if (std::optional<TomlReader> shared = document.table("shared")) {
    study.shared_assignments = read_set(*shared);
    shared->finish();
  }
  study.assignments = read_set(document);
  study.baseline = document.text("baseline", study.baseline);
  read_arms(document, study);
  document.finish();
  const std::string identity = study.text + check_runs(document, study);
  study.hash = hex16(xxh3(identity.data(), identity.size()));
  return study;
}

}  // namespace fp8lab
