#include "src/config/run_document.hpp"

#include <fmt/format.h>

#include <cstddef>
#include <filesystem>
#include <string_view>
#include <utility>
#include <vector>

#include "emulation/base/error.hpp"
#include "src/config/experiments.hpp"
#include "src/config/hugging_face.hpp"
#include "src/config/model_table.hpp"
#include "src/config/nearest_name.hpp"
#include "src/config/overlay.hpp"
#include "src/config/toml_reader.hpp"
#include "src/config/toml_text.hpp"
#include "src/io/atomic_file.hpp"

namespace fp8lab {
namespace {

toml::table read_experiment(const std::string& folder, const std::string& name,
                            const std::string& where) {
  if (folder == "models" && is_hugging_face_folder(name)) {
    toml::table document = parse_toml(model_table_text(read_hugging_face_config(name)), name);
    return std::move(*document["model"].as_table());
  }
  const std::string file = find_experiment(folder, name, where).string();
  return parse_toml(read_file(file), file);
}

// Replaces `base = "NAME"` in `table` by the file's keys.
void resolve_base(toml::table& table, const std::string& folder, const std::string& origin) {
  const toml::node* base = table.get("base");
  if (base == nullptr) return;
  if (!base->is_string()) {
    throw Error(fmt::format("{}: 'base' is no string; accepted: a name out of {}, or a path",
                            source_location(*base, origin), join_names(experiment_names(folder))));
  }
  toml::table merged =
      read_experiment(folder, *base->value<std::string>(), source_location(*base, origin));
  table.erase("base");
  overlay(merged, table);
  table = std::move(merged);
}

/// `key = "NAME"`, or `base = "NAME"` in the table of that key.
void resolve_table(toml::table& document, const char* key, const std::string& folder,
                   const std::string& origin) {
  toml::node* const node = document.get(key);
  if (node != nullptr && node->is_string()) {
    toml::table table =
        read_experiment(folder, *node->value<std::string>(), source_location(*node, origin));
    document.insert_or_assign(key, std::move(table));
  } else if (node != nullptr && node->is_table()) {
    resolve_base(*node->as_table(), folder, origin);
  }
}

void resolve_references(toml::table& document, const std::string& origin) {
  resolve_table(document, "model", "models", origin);
  resolve_table(document, "optimizer", "optimizers", origin);
  toml::node* stages = document.get("stages");
  if (stages == nullptr || !stages->is_array()) return;
  for (toml::node& stage : *stages->as_array()) {
    if (stage.is_table()) resolve_base(*stage.as_table(), "stages", origin);
  }
}

std::string origin_of(const Assignment& assignment) {
  return fmt::format("{}'{}={}'", kAssignmentOrigin, assignment.key, assignment.value);
}

// A table whose only key, "value", is the assigned value; text that is not TOML becomes a string.
toml::table parse_value(const Assignment& assignment) {
  const std::string origin = origin_of(assignment);
  check_toml_depth(assignment.value, origin);
  try {
    toml::table parsed = toml::parse("value = " + assignment.value, origin);
    if (parsed.size() == 1 && parsed.contains("value")) return parsed;
  } catch (const toml::parse_error&) {
    // A bare word.
  }
  return parse_toml("value = " + toml_quoted(assignment.value), origin);
}

// A run that starts from a Hugging Face model and describes none has that model.
void resolve_initial_model(toml::table& document, const std::vector<Assignment>& assignments) {
  if (document.contains("model")) return;
  std::string start = document["init_from"].value_or(std::string());
  for (const Assignment& assignment : assignments) {
    if (assignment.key == "init_from")
      start = parse_value(assignment)["value"].value_or(std::string());
  }
  if (!start.empty() && is_hugging_face_folder(start)) document.insert("model", start);
}

std::vector<std::string> split_key(const Assignment& assignment) {
  std::vector<std::string> parts;
  std::size_t begin = 0;
  while (true) {
    const std::size_t dot = assignment.key.find('.', begin);
    parts.push_back(assignment.key.substr(begin, dot - begin));
    if (parts.back().empty()) {
      throw Error(
          fmt::format("{}: the key is not dotted words; accepted: for example optimizer.beta1 "
                      "or stages.cpt.steps",
                      origin_of(assignment)));
    }
    if (parts.size() > kDeepestToml) {
      throw Error(fmt::format("{}...': a key of too many parts; accepted: at most {}",
                              origin_of(assignment).substr(0, 80), kDeepestToml));
    }
    if (dot == std::string::npos) return parts;
    begin = dot + 1;
  }
}

// Sets table.parts[first]....parts.back().
void set_value(toml::table& table, const std::vector<std::string>& parts, std::size_t first,
               const Assignment& assignment) {
  toml::table* target = &table;
  for (std::size_t i = first; i + 1 < parts.size(); ++i) {
    if (!target->contains(parts[i])) target->insert(parts[i], toml::table{});
    toml::node* next = target->get(parts[i]);
    if (!next->is_table()) {
      throw Error(fmt::format("{}: '{}' is no table", origin_of(assignment), parts[i]));
    }
    target = next->as_table();
  }
  toml::table value = parse_value(assignment);
  make_room_for(parts.back(), *target);
  move_into(*target, toml::key(parts.back()), *value.get("value"));
}

std::string name_of_stage(const toml::node& stage) {
  if (!stage.is_table()) return {};
  return stage.as_table()->get("name") == nullptr
             ? std::string()
             : stage.as_table()->get("name")->value_or(std::string());
}

void assign_to_stages(toml::table& document, const std::vector<std::string>& parts,
                      const Assignment& assignment) {
  const toml::node* node = document.get("stages");
  const bool usable = node != nullptr && node->is_array() && parts.size() >= 3;
  if (!usable) {
    throw Error(fmt::format("{}: stages are addressed as stages.NAME.key or stages.*.key",
                            origin_of(assignment)));
  }
  bool found = false;
  std::vector<std::string> names;
  for (toml::node& stage : *document.get("stages")->as_array()) {
    names.push_back(name_of_stage(stage));
    if (!stage.is_table() || (parts[1] != "*" && parts[1] != names.back())) continue;
    set_value(*stage.as_table(), parts, 2, assignment);
    found = true;
  }
  if (!found) {
    throw Error(fmt::format("{}: no stage '{}'{}; accepted: {}, or *", origin_of(assignment),
                            parts[1], did_you_mean(parts[1], names), join_names(names)));
  }
}

constexpr std::string_view kModelBase = "model.base";

// Another model under the keys that the file itself gives. It must come before the present base is
// replaced by its keys, since those could no longer be told from the file's own.
void assign_model_base(toml::table& document, const std::vector<Assignment>& assignments) {
  const Assignment* base = nullptr;
  for (const Assignment& assignment : assignments) {
    if (assignment.key == kModelBase) base = &assignment;
  }
  if (base == nullptr) return;
  for (const Assignment& assignment : assignments) {
    if (assignment.key == "model") {
      throw Error(
          fmt::format("{}: beside {}, which replaces the whole model; accepted: one of them",
                      origin_of(*base), origin_of(assignment)));
    }
  }
  toml::table value = parse_value(*base);
  toml::node* model = document.get("model");
  const bool has_keys = model != nullptr && model->is_table();
  move_into(has_keys ? *model->as_table() : document, toml::key(has_keys ? "base" : "model"),
            *value.get("value"));
}

// What replaces a whole table comes before the name in its place is looked up, which may be of
// nothing.
void replace_tables(toml::table& document, const std::vector<Assignment>& assignments) {
  for (const Assignment& assignment : assignments) {
    if (assignment.key == "model" || assignment.key == "optimizer") {
      set_value(document, {assignment.key}, 0, assignment);
    }
  }
}

void refuse_base(const Assignment& assignment) {
  if (!assignment.key.ends_with(".base")) return;
  throw Error(fmt::format("{}: a base cannot be exchanged, but for {}; accepted: its single keys",
                          origin_of(assignment), kModelBase));
}

}  // namespace

toml::table build_run_document(const std::string& text, const std::string& origin,
                               const std::vector<Assignment>& assignments) {
  toml::table document = parse_toml(text, origin);
  assign_model_base(document, assignments);
  replace_tables(document, assignments);
  resolve_initial_model(document, assignments);
  resolve_references(document, origin);
  for (const Assignment& assignment : assignments) {
    if (assignment.key == kModelBase) continue;
    refuse_base(assignment);
    const std::vector<std::string> parts = split_key(assignment);
    if (parts[0] == "stages" && parts.size() > 1) {
      assign_to_stages(document, parts, assignment);
    } else {
      set_value(document, parts, 0, assignment);
    }
    resolve_references(document, origin);
  }
  return document;
}

}  // namespace fp8lab
