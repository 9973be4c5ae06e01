#include "src/config/reading/run_document.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <optional>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include "emulation/base/input_error.hpp"
#include "src/config/config_difference.hpp"
#include "src/config/reading/document_kind.hpp"
#include "src/config/reading/experiments.hpp"
#include "src/config/reading/hub_cache.hpp"
#include "src/config/reading/hugging_face.hpp"
#include "src/config/reading/nearest_name.hpp"
#include "src/config/reading/overlay.hpp"
#include "src/config/reading/toml_reader.hpp"
#include "src/config/reading/toml_text.hpp"
#include "src/config/tables/model_table.hpp"
#include "src/io/files/atomic_file.hpp"
#include "src/io/files/file_kind.hpp"
#include "src/io/hdf5/checkpoint_schema.hpp"
#include "src/io/tensors/safetensors.hpp"

namespace fp8lab {
namespace {

toml::table read_experiment(const std::string& folder, const std::string& name,
                            const std::string& where) {
  if (folder == "models") {
    const std::string path = require_model_path(name);
    if (is_hugging_face_folder(path)) {
      toml::table document = parse_toml(model_table_text(read_hugging_face_config(path)), path);
      return std::move(*document["model"].as_table());
    }
  }
  const std::string file = find_experiment(folder, name, where).string();
  return parse_toml(read_file(file), file);
}

// Replaces `base = "NAME"` in `table` by the keys of that file.
void resolve_base(toml::table& table, const std::string& folder, const std::string& origin) {
  const toml::node* base = table.get("base");
  if (base == nullptr) return;
  if (!base->is_string()) {
    throw InputError({.where = source_location(*base, origin),
                      .key = "base",
                      .reason = "is no string",
                      .accepted = fmt::format("a name out of {}, or a path",
                                              join_names(experiment_names(folder)))});
  }
  toml::table merged =
      read_experiment(folder, *base->value<std::string>(), source_location(*base, origin));
  table.erase("base");
  overlay(merged, table);
  table = std::move(merged);
}

/// Resolves `key = "NAME"`, or `base = "NAME"` in the table of that key.
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

// Returns a table whose only key, "value", is the assigned value; text that is
// not TOML becomes a string.
toml::table parse_value(const Assignment& assignment) {
  const std::string origin = origin_of(assignment);
  check_toml_depth(assignment.value, origin);
  try {
    toml::table parsed = toml::parse("value = " + assignment.value, origin);
    if (parsed.size() == 1 && parsed.contains("value")) return parsed;
  } catch (const toml::parse_error&) {
    // Not TOML: a bare word.
  }
  return parse_toml("value = " + toml_quoted(assignment.value), origin);
}

std::string start_of(const toml::table& document, const std::vector<Assignment>& assignments) {
  std::string start = document["init_from"].value_or(std::string());
  for (const Assignment& assignment : assignments) {
    if (assignment.key == "init_from")
      start = parse_value(assignment)["value"].value_or(std::string());
  }
  return start_path(start);
}

// Replaces the name of a Hub model by the snapshot it refers to, and the folder of
// a run by its checkpoint, so that the run records these.
void name_start(toml::table& document) {
  const auto start = document["init_from"].value<std::string>();
  if (!start) return;
  std::string path = start_path(*start);
  if (path != *start) document.insert_or_assign("init_from", std::move(path));
}

// Returns the model described by the file of the weights in `start`; nothing if
// the file describes none.
std::optional<ModelConfig> model_of_start(const std::string& start) {
  if (start.empty()) return std::nullopt;
  const std::filesystem::path path = start;
  if (is_hugging_face_folder(path)) return read_hugging_face_config(path);
  if (!is_file(path)) return std::nullopt;
  const SafetensorsFile file(path);
  const auto& metadata = file.metadata();
  if (const auto schema = metadata.find("schema");
      schema != metadata.end() && schema->second == kCheckpointSchema) {
    const auto own = metadata.find(kCheckpointModel);
    if (own == metadata.end()) return std::nullopt;  // the loader reports it
    return parse_model_table(own->second, start + ": model");
  }
  if (is_hugging_face_folder(path.parent_path())) {
    return read_hugging_face_config(path.parent_path());
  }
  return std::nullopt;
}

// Gives a run that starts from a model and describes none that model.
void resolve_initial_model(toml::table& document, const std::string& start) {
  if (document.contains("model")) return;
  if (const std::optional<ModelConfig> model = model_of_start(start)) {
    toml::table described = parse_toml(model_table_text(*model), start);
    document.insert("model", std::move(*described["model"].as_table()));
  }
}

void add_keys(const std::string& path, const toml::table& table, std::set<std::string>& keys) {
  for (const auto& [key, value] : table) {
    const std::string own = fmt::format("{}.{}", path, key.str());
    if (value.is_table()) add_keys(own, *value.as_table(), keys);
    keys.insert(own);
  }
}

// Returns the model keys ("model.rope_theta" ...) that the run sets itself, not through a base.
std::set<std::string> own_model_keys(const toml::table& document,
                                     const std::vector<Assignment>& assignments) {
  std::set<std::string> keys;
  if (const toml::table* model = document["model"].as_table()) add_keys("model", *model, keys);
  for (const Assignment& assignment : assignments) {
    if (assignment.key == "model") keys.clear();  // replaces the whole table
    if (!assignment.key.starts_with("model.")) continue;
    for (std::size_t end = 0; end != std::string::npos;) {
      end = assignment.key.find('.', end + 1);
      keys.insert(assignment.key.substr(0, end));
    }
    const toml::table value = parse_value(assignment);
    if (value["value"].is_table()) add_keys(assignment.key, *value["value"].as_table(), keys);
  }
  return keys;
}

bool states_all(const std::set<std::string>& keys, const ModelConfig& model) {
  std::set<std::string> all;
  const toml::table text = parse_toml(model_table_text(model), "the model");
  add_keys("model", *text["model"].as_table(), all);
  return std::includes(keys.begin(), keys.end(), all.begin(), all.end());
}

// Throws unless the values that a run takes from defaults or from a base equal those that its
// initial weights were trained with. Values that the run sets itself may differ: a longer context
// may need other frequencies.
void require_model_of_start(const toml::table& document, const std::string& start,
                            const std::set<std::string>& own, const std::string& origin) {
  if (start.empty() || !document["model"].is_table()) return;
  TomlReader reader(document, "", origin);
  const ModelConfig model = read_model_table(reader);
  if (states_all(own, model)) return;
  std::vector<std::string> different;
  for (const std::string& entry :
       differences_from_start(start, model, document.contains("growth"))) {
    if (own.count(entry.substr(0, entry.find(": "))) == 0) different.push_back(entry);
  }
  if (different.empty()) return;
  throw InputError(
      {.where = origin,
       .reason = fmt::format("the weights of {} belong to another model than the run's: {}", start,
                             join_differences(different, 20)),
       .accepted = "a run without [model], which has theirs, or these keys said in [model]"});
}

std::vector<std::string> split_key(const Assignment& assignment) {
  std::vector<std::string> parts;
  std::size_t begin = 0;
  while (true) {
    const std::size_t dot = assignment.key.find('.', begin);
    parts.push_back(assignment.key.substr(begin, dot - begin));
    if (parts.back().empty()) {
      throw InputError({.where = origin_of(assignment),
                        .reason = "the key is not dotted words",
                        .accepted = "for example optimizer.beta1 or stages.cpt.steps"});
    }
    if (parts.size() > kDeepestToml) {
      throw InputError({.where = fmt::format("{}...'", origin_of(assignment).substr(0, 80)),
                        .reason = "a key of too many parts",
                        .accepted = fmt::format("at most {}", kDeepestToml)});
    }
    if (dot == std::string::npos) return parts;
    begin = dot + 1;
  }
}

// Sets table.parts[first]....parts.back() to the assigned value.
void set_value(toml::table& table, const std::vector<std::string>& parts, std::size_t first,
               const Assignment& assignment, const std::string& origin) {
  toml::table* target = &table;
  for (std::size_t i = first; i + 1 < parts.size(); ++i) {
    if (!target->contains(parts[i])) target->insert(parts[i], toml::table{});
    toml::node* next = target->get(parts[i]);
    if (!next->is_table()) {
      throw InputError({.where = origin_of(assignment),
                        .key = fmt::to_string(parts[i]),
                        .reason = "is no table"});
    }
    target = next->as_table();
  }
  toml::table value = parse_value(assignment);
  // Values that the run file or an assignment sets itself are never erased.
  const auto is_of_a_base = [&](const toml::node& node) {
    const auto& path = node.source().path;
    return path && *path != origin && !path->starts_with(kAssignmentOrigin);
  };
  make_room_for(parts.back(), *value.get("value"), *target, is_of_a_base);
  move_into(*target, toml::key(parts.back()), *value.get("value"));
}

std::string name_of_stage(const toml::node& stage) {
  if (!stage.is_table()) return {};
  return stage.as_table()->get("name") == nullptr
             ? std::string()
             : stage.as_table()->get("name")->value_or(std::string());
}

void assign_to_stages(toml::table& document, const std::vector<std::string>& parts,
                      const Assignment& assignment, const std::string& origin) {
  const toml::node* node = document.get("stages");
  const bool usable = node != nullptr && node->is_array() && parts.size() >= 3;
  if (!usable) {
    throw InputError({.where = origin_of(assignment),
                      .reason = "stages are addressed as stages.NAME.key or stages.*.key"});
  }
  bool found = false;
  std::vector<std::string> names;
  for (toml::node& stage : *document.get("stages")->as_array()) {
    names.push_back(name_of_stage(stage));
    if (!stage.is_table() || (parts[1] != "*" && parts[1] != names.back())) continue;
    set_value(*stage.as_table(), parts, 2, assignment, origin);
    found = true;
  }
  if (!found) {
    throw InputError({.where = origin_of(assignment),
                      .noun = "no stage",
                      .key = fmt::to_string(parts[1]),
                      .nearest = did_you_mean(parts[1], names),
                      .accepted = fmt::format("{}, or *", join_names(names))});
  }
}

constexpr std::string_view kModelBase = "model.base";

// Replaces the base of the model and keeps the keys that the file itself sets. Must run before the
// present base is replaced by its keys, since those could no longer be told from the file's own.
void assign_model_base(toml::table& document, const std::vector<Assignment>& assignments) {
  const Assignment* base = nullptr;
  for (const Assignment& assignment : assignments) {
    if (assignment.key == kModelBase) base = &assignment;
  }
  if (base == nullptr) return;
  for (const Assignment& assignment : assignments) {
    if (assignment.key == "model") {
      throw InputError({.where = origin_of(*base),
                        .reason = fmt::format("beside {}, which replaces the whole model",
                                              origin_of(assignment)),
                        .accepted = "one of them"});
    }
  }
  toml::table value = parse_value(*base);
  toml::node* model = document.get("model");
  const bool has_keys = model != nullptr && model->is_table();
  move_into(has_keys ? *model->as_table() : document, toml::key(has_keys ? "base" : "model"),
            *value.get("value"));
}

// Applies assignments that replace a whole table, before the name in the table's place is looked
// up: that name need not exist.
void replace_tables(toml::table& document, const std::vector<Assignment>& assignments,
                    const std::string& origin) {
  for (const Assignment& assignment : assignments) {
    if (assignment.key == "model" || assignment.key == "optimizer") {
      set_value(document, {assignment.key}, 0, assignment, origin);
    }
  }
}

void refuse_base(const Assignment& assignment) {
  if (!assignment.key.ends_with(".base")) return;
  throw InputError({.where = origin_of(assignment),
                    .reason = fmt::format("a base cannot be exchanged, but for {}", kModelBase),
                    .accepted = "its single keys"});
}

}  // namespace

std::vector<std::string> differences_from_start(const std::string& start, const ModelConfig& model,
                                                bool grows) {
  std::optional<ModelConfig> stored = model_of_start(start);
  if (!stored) return {};
  // Has no effect on the arithmetic once weights exist.
  stored->initializer_range = model.initializer_range;
  stored->scaled_residual_init = model.scaled_residual_init;
  stored->scaled_norm_init = model.scaled_norm_init;
  if (model.positions == PositionKind::rope) {
    stored->max_position_embeddings = model.max_position_embeddings;
  }
  if (grows) stored->set_layer_count(model.layer_count());
  std::vector<std::string> different;
  for (const std::string& entry : differences(model_table_text(*stored), model_table_text(model))) {
    const std::string key = entry.substr(0, entry.find(": "));
    // A key that one of the models lacks follows from another that differs.
    const bool follows = entry.ends_with(" -> (none)") || entry.starts_with(key + ": (none) -> ");
    if (!follows) different.push_back(entry);
  }
  return different;
}

std::string origin_of(const Assignment& assignment) {
  const std::string place = assignment.place.empty() ? "" : fmt::format(" ({})", assignment.place);
  return fmt::format("{}'{}={}'{}", kAssignmentOrigin, assignment.key, assignment.value, place);
}

toml::table build_run_document(const std::string& text, const std::string& origin,
                               const std::vector<Assignment>& assignments) {
  toml::table document = parse_toml(text, origin);
  require_kind(document, DocumentKind::run, origin);
  assign_model_base(document, assignments);
  replace_tables(document, assignments, origin);
  const std::string start = start_of(document, assignments);
  const std::set<std::string> own_keys = own_model_keys(document, assignments);
  resolve_initial_model(document, start);
  resolve_references(document, origin);
  for (const Assignment& assignment : assignments) {
    if (assignment.key == kModelBase) continue;
    refuse_base(assignment);
    const std::vector<std::string> parts = split_key(assignment);
    if (parts[0] == "stages" && parts.size() > 1) {
      assign_to_stages(document, parts, assignment, origin);
    } else {
      set_value(document, parts, 0, assignment, origin);
    }
    resolve_references(document, origin);
  }
  name_start(document);
  require_model_of_start(document, start, own_keys, origin);
  return document;
}

}  // namespace fp8lab
