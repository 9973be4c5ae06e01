// Study files: a grid of runs over one base configuration.
#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cstddef>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "emulation/base/error.hpp"
#include "emulation/base/error_context.hpp"
#include "emulation/base/input_error.hpp"
#include "src/config/config.hpp"
#include "src/config/reading/document_kind.hpp"
#include "src/config/reading/experiments.hpp"
#include "src/config/reading/toml_reader.hpp"
#include "src/config/reading/toml_text.hpp"
#include "src/config/recipe/stage_recipes.hpp"
#include "src/config/run_name.hpp"
#include "src/config/tables/study_tables.hpp"
#include "src/io/files/atomic_file.hpp"
#include "src/io/files/file_kind.hpp"
#include "src/io/files/missing_file.hpp"
#include "src/io/hash.hpp"

namespace fp8lab {
namespace {

constexpr std::size_t kMostArms = 10000;
constexpr std::size_t kMostAxes = 64;

// Returns one value of a grid as TOML text.
std::string value_text(const toml::node& node, const TomlReader& reader, std::string_view key) {
  if (const toml::array* list = node.as_array()) {
    std::string text = "[";
    for (const toml::node& element : *list) {
      text += (text.size() > 1 ? ", " : "") + value_text(element, reader, key);
    }
    return text + "]";
  }
  if (const toml::table* table = node.as_table()) {
    std::string text;
    for (const auto& [word, value] : *table) {
      text += fmt::format("{}{} = {}", text.empty() ? "" : ", ", word.str(),
                          value_text(value, reader, key));
    }
    return "{" + text + "}";
  }
  if (node.is_string()) return toml_quoted(*node.value<std::string>());
  if (node.is_integer()) return std::to_string(*node.value<std::int64_t>());
  if (node.is_floating_point()) return toml_number(*node.value<double>());
  if (node.is_boolean()) return *node.value<bool>() ? "true" : "false";
  reader.fail(key, {.accepted = "strings, numbers, true, false, and lists and tables of them"});
}

// Flattens [set] tables: nested keys become dotted keys.
void collect(const toml::table& table, const std::string& prefix, const TomlReader& reader,
             std::string_view name, std::vector<Assignment>& out) {
  for (const auto& [key, value] : table) {
    const std::string path =
        prefix.empty() ? std::string(key.str()) : fmt::format("{}.{}", prefix, key.str());
    if (const toml::table* inner = value.as_table()) {
      collect(*inner, path, reader, name, out);
    } else {
      out.push_back({path, value_text(value, reader, name), source_location(value, "")});
    }
  }
}

std::vector<Assignment> read_set(TomlReader& reader) {
  std::vector<Assignment> assignments;
  const std::optional<TomlReader> table = reader.table("set");
  if (table) collect(table->raw(), "", reader, "set", assignments);
  return assignments;
}

// Returns a value as part of a folder name: "infir2", "seed1", "peak0.001", "e5m2_tensor_pow2".
std::string short_name(const Assignment& assignment) {
  std::string word = assignment.value;
  if (word.starts_with('"')) {
    word = word.substr(1, word.size() - 2);
    const bool is_quantizer = assignment.key.starts_with("optimizer.");
    const bool is_file = word.find('/') != std::string::npos && !is_quantizer;
    if (is_file || word.ends_with(".toml")) word = std::filesystem::path(word).stem().string();
    std::replace(word.begin(), word.end(), '/', '_');
  } else {
    if (word.ends_with(".0")) word.resize(word.size() - 2);
    word = assignment.key.substr(assignment.key.rfind('.') + 1) + word;
  }
  std::string name;
  for (const char c : word) {
    const bool plain =
        std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' || c == '.' || c == '-';
    if (plain) name += c;
  }
  return name;
}

// One [[axis]] table.
struct Axis {
  std::string key;
  const toml::array* values = nullptr;
  TomlReader table;
};

std::vector<Axis> read_axes(TomlReader& document) {
  std::vector<Axis> axes;
  for (TomlReader& table : document.tables("axis")) {
    const std::string key = table.text("key", "");
    if (key.empty())
      table.refuse("key", {.reason = "is missing",
                           .accepted = "a configuration key such as recipe or seed"});
    const toml::node* values = table.node("values");
    table.finish();
    if (values == nullptr || !values->is_array() || values->as_array()->empty()) {
      table.fail("values", {.accepted = "a list of at least one value"});
    }
    axes.push_back({key, values->as_array(), table});
  }
  return axes;
}

// Checks the number of arms before any arm is built. Counts in double, which cannot overflow.
void check_count(const TomlReader& document, const std::vector<Axis>& axes, std::size_t listed) {
  if (axes.size() > kMostAxes) {
    document.fail("axis", {.found = fmt::to_string(axes.size()),
                           .reason = "axes",
                           .accepted = fmt::format("at most {}", kMostAxes)});
  }
  double count = axes.empty() ? 0.0 : 1.0;
  for (const Axis& axis : axes) count *= static_cast<double>(axis.values->size());
  count += static_cast<double>(listed);
  if (count > static_cast<double>(kMostArms)) {
    document.fail(axes.empty() ? "arm" : "axis",
                  {.found = fmt::format("{:.{}g}", count, count < 1e15 ? 15 : 3),
                   .reason = "arms in all",
                   .accepted = fmt::format("at most {} in one study", kMostArms)});
  }
}

void check_arm_name(const TomlReader& table, const std::string& name, bool listed) {
  if (!is_run_name(name)) {
    const std::string rule(kRunNameRule);
    if (listed) table.refuse("name", {.found = fmt::format("'{}'", name), .accepted = rule});
    table.fail("values", {.reason = fmt::format("they make an arm called '{}'", name),
                          .accepted = fmt::format(
                              "{}; [[arm]] tables give such arms a name of their own", rule)});
  }
  if (is_kept_for_study(name)) {
    throw InputError(
        {.where = table.where(listed ? "name" : "values"),
         .reason = fmt::format("the arm name '{}' is kept for the study's own files", name)});
  }
}

void check_keys(const std::vector<Axis>& axes) {
  std::set<std::string> keys;
  for (const Axis& axis : axes) {
    if (keys.insert(axis.key).second) continue;
    axis.table.fail("key", {.reason = fmt::format(
                                "two axes vary '{}', of which an arm has only one value", axis.key),
                            .accepted = "each key once"});
  }
}

// Returns the Cartesian product of all [[axis]] tables; the last one varies fastest.
std::vector<StudyArm> expand_grid(const std::vector<Axis>& axes) {
  std::vector<StudyArm> arms;
  for (const Axis& axis : axes) {
    if (arms.empty()) arms.emplace_back();
    std::vector<StudyArm> product;
    for (const StudyArm& arm : arms) {
      for (const toml::node& value : *axis.values) {
        StudyArm next = arm;
        next.assignments.push_back(
            {axis.key, value_text(value, axis.table, "values"), source_location(value, "")});
        next.name += (next.name.empty() ? "" : "-") + short_name(next.assignments.back());
        if (&axis == &axes.back() || next.name.size() > kLongestName) {
          check_arm_name(axis.table, next.name, false);
        }
        product.push_back(std::move(next));
      }
    }
    arms = std::move(product);
  }
  return arms;
}

void read_arms(TomlReader& document, StudyConfig& study) {
  const std::vector<Axis> axes = read_axes(document);
  std::vector<TomlReader> tables = document.tables("arm");
  check_count(document, axes, tables.size());
  check_keys(axes);
  study.arms = expand_grid(axes);
  for (TomlReader& table : tables) {
    StudyArm arm;
    arm.name = table.text("name", "");
    check_arm_name(table, arm.name, true);
    arm.assignments = read_set(table);
    if (const toml::node* const shared = table.node("shared")) {
      if (!shared->is_boolean()) table.refuse_value("shared", false, "true or false", {});
      arm.is_alone = !shared->value_or(true);
    }
    table.finish();
    study.arms.push_back(std::move(arm));
  }
  if (study.arms.empty()) {
    document.refuse("axis",
                    {.reason = "is missing", .accepted = "at least one [[axis]] or [[arm]] table"});
  }
  std::set<std::string> names;
  for (const StudyArm& arm : study.arms) {
    if (!names.insert(arm.name).second) {
      throw InputError({.where = document.where(),
                        .reason = fmt::format("the arm name '{}' is not unique", arm.name)});
    }
  }
}

// Returns the run of the shared stages that `arm` starts from: `set`, and the values that the arm
// gives to the axes of [shared].
SharedRun shared_run_of(const TomlReader& document, const StudyConfig& study,
                        const std::vector<Assignment>& set, const StudyArm& arm) {
  SharedRun run{std::string(kSharedRun), set};
  for (const std::string& axis : study.shared_axes) {
    const auto given = std::find_if(arm.assignments.rbegin(), arm.assignments.rend(),
                                    [&](const Assignment& a) { return a.key == axis; });
    if (given == arm.assignments.rend()) {
      document.fail("shared.axes",
                    {.reason = fmt::format("the arm '{}' does not set '{}'", arm.name, axis),
                     .accepted = "keys that every arm sets"});
    }
    run.assignments.push_back(*given);
    run.name += "-" + short_name(*given);
  }
  return run;
}

void read_shared(TomlReader& document, StudyConfig& study) {
  study.shared_stages = document.texts("shared_stages");
  std::vector<Assignment> set;
  if (std::optional<TomlReader> shared = document.table("shared")) {
    if (study.shared_stages.empty()) {
      document.fail("shared", {.accepted = "only beside shared_stages"});
    }
    set = read_set(*shared);
    study.shared_axes = shared->texts("axes");
    shared->finish();
  }
  for (StudyArm& arm : study.arms) {
    if (study.shared_stages.empty() && arm.is_alone) {
      document.fail("arm", {.found = fmt::format("'{}'", arm.name),
                            .reason = "has shared = false",
                            .accepted = "only beside shared_stages"});
    }
    if (study.shared_stages.empty() || arm.is_alone) continue;
    SharedRun run = shared_run_of(document, study, set, arm);
    arm.shared_run = run.name;
    const auto known = std::find_if(study.shared_runs.begin(), study.shared_runs.end(),
                                    [&](const SharedRun& other) { return other.name == run.name; });
    if (known == study.shared_runs.end()) {
      study.shared_runs.push_back(std::move(run));
      continue;
    }
    // Short names leave out folders and signs, so two different starts could get the same name.
    for (std::size_t i = 0; i < run.assignments.size(); ++i) {
      const Assignment &one = known->assignments[i], &other = run.assignments[i];
      if (one.value == other.value) continue;
      document.fail("shared.axes", {.found = fmt::format("'{}'", one.key),
                                    .reason = fmt::format(
                                        "is {} and {}, whose shared runs would both be called {}",
                                        one.value, other.value, run.name),
                                    .accepted = "values with other names"});
    }
  }
}

// Reads baseline = "RECIPE", or a table with recipe and set.
void read_baseline(TomlReader& document, StudyConfig& study) {
  const toml::node* const written = document.node("baseline");
  if (written == nullptr || !written->is_table()) {
    study.baseline = document.text("baseline", study.baseline);
    return;
  }
  TomlReader table = *document.table("baseline");
  study.baseline = table.text("recipe", study.baseline);
  study.baseline_set = read_set(table);
  for (const Assignment& assignment : study.baseline_set) {
    if (assignment.key != "recipe" && !assignment.key.ends_with(".recipe")) continue;
    table.fail("set", {.reason = fmt::format("'{}': recipes part no pair", assignment.key),
                       .accepted = "baseline.recipe for that of baselines, and other keys here"});
  }
  table.finish();
}

bool is_same_key(const std::string& a, const std::string& b) {
  // stages.*.steps matches the key of every stage.
  std::istringstream left(a), right(b);
  std::string x, y;
  while (std::getline(left, x, '.')) {
    if (!std::getline(right, y, '.') || (x != y && x != "*" && y != "*")) return false;
  }
  return !std::getline(right, y, '.');
}

// Throws if an assignment of the command line has no effect because every arm sets the key itself.
void check_reach(const TomlReader& document, const StudyConfig& study,
                 const std::vector<Assignment>& assignments) {
  for (const Assignment& assignment : assignments) {
    const auto sets_key = [&](const auto& run) {
      return std::any_of(
          run.assignments.begin(), run.assignments.end(),
          [&](const Assignment& own) { return is_same_key(own.key, assignment.key); });
    };
    if (!std::all_of(study.arms.begin(), study.arms.end(), sets_key)) continue;
    if (!std::all_of(study.shared_runs.begin(), study.shared_runs.end(), sets_key)) continue;
    throw InputError({.where = document.where(),
                      .key = "--set",
                      .reason = fmt::format("{}={} has no effect: every arm sets it itself",
                                            assignment.key, assignment.value),
                      .accepted = "a study file with other values"});
  }
}

// Checks every run of the study before the first one starts. Returns the text that identifies them.
std::string check_runs(const TomlReader& document, StudyConfig& study) {
  std::string identity;
  const auto take = [&](const RunConfig& config) {
    for (const StageConfig& stage : config.stages)
      study.stage_recipes[stage.name] = own_recipes(stage);
    identity += canonical_text(config);
  };
  if (study.shared_runs.empty()) take(configure(study, "base", {}));
  for (const SharedRun& run : study.shared_runs) {
    take(configure(study, "run '" + run.name + "'", run.assignments));
  }
  bool has_baseline = false;
  for (const StudyArm& arm : study.arms) {
    const RunConfig config = configure(study, "arm '" + arm.name + "'", arm.assignments);
    has_baseline = has_baseline ||
                   (runs_baseline(study, config) &&
                    canonical_text(config) == canonical_text(configure_as_baseline(study, arm)));
    identity += arm.name + "\n" + canonical_text(config);
    for (std::size_t i = 0; i < study.shared_stages.size(); ++i) {
      if (i < config.stages.size() && config.stages[i].name == study.shared_stages[i]) continue;
      document.fail("shared_stages",
                    {.found = fmt::format("'{}'", study.shared_stages[i]),
                     .reason = fmt::format("is not stage {} of the base configuration", i + 1),
                     .accepted = "its leading stages in order"});
    }
    if (!study.shared_stages.empty() && config.stages.size() == study.shared_stages.size()) {
      document.fail("shared_stages", {.reason = "leave no stage for the arms"});
    }
  }
  if (!has_baseline) {
    document.fail("baseline",
                  {.reason = fmt::format("no arm runs the recipe '{}'{}", study.baseline,
                                         study.baseline_set.empty() ? "" : " with its set")});
  }
  return identity;
}

}  // namespace

const Table<StudyDesign>& design_table() {
  using S = StudyDesign;
  using fields::integer, fields::number;
  static const Table<S> table{{
      number("margin", &S::margin, 1e-6, 0.5,
             "fraction of the baseline's loss within which an arm counts as equivalent")
          .required(),
      number("alpha", &S::alpha, 1e-6, 0.25, "chance of a false verdict over all arms and looks"),
      number("power", &S::power, 0.5, 0.999, "chance of the verdict that is true"),
      integer("looks", &S::looks, 1, 50, "times that the study is judged"),
  }};
  return table;
}

const Field<StudyConfig>& scale_field() {
  static const Field<StudyConfig> field = [] {
    auto row = fields::number("scale", &StudyConfig::scale, 0.0, kLargestScale, "of all steps");
    row.accepted = fmt::format("a number above 0, at most {}", kLargestScale);
    row.set = [set = row.set](StudyConfig& study, const FieldValue& value) {
      StudyConfig trial;
      const bool fits = set(trial, value) && trial.scale > 0.0;
      if (fits) study.scale = trial.scale;
      return fits;
    };
    return row;
  }();
  return field;
}

bool runs_baseline(const StudyConfig& study, const RunConfig& arm) {
  const auto runs_another = [&](const StageConfig& stage) {
    const std::vector<std::string> names = own_recipes(stage);
    const auto base = study.stage_recipes.find(stage.name);
    if (base != study.stage_recipes.end() && names == base->second) return false;
    return std::any_of(names.begin(), names.end(),
                       [&](const std::string& name) { return name != study.baseline; });
  };
  return arm.recipe == study.baseline && arm.exact.empty() &&
         std::none_of(arm.stages.begin(), arm.stages.end(), runs_another);
}

RunConfig configure(const StudyConfig& study, const std::string& what,
                    const std::vector<Assignment>& assignments) {
  std::vector<Assignment> all = study.assignments;
  all.insert(all.end(), assignments.begin(), assignments.end());
  return at_place(fmt::format("study '{}', {}", study.name, what),
                  [&] { return load_run_config(study.base, all, study.scale); });
}

RunConfig configure_as_baseline(const StudyConfig& study, const StudyArm& arm) {
  std::vector<Assignment> assignments = arm.assignments;
  assignments.insert(assignments.end(), study.baseline_set.begin(), study.baseline_set.end());
  return configure(study, "arm '" + arm.name + "' with the set of baselines", assignments);
}

StudyConfig load_study_config(const std::filesystem::path& file,
                              const std::vector<Assignment>& assignments,
                              std::optional<double> scale) {
  const std::string origin = file.string();
  StudyConfig study;
  study.text = read_file(origin);
  const toml::table root = parse_toml(study.text, origin);
  require_kind(root, DocumentKind::study, origin);
  TomlReader document(root, "", origin);
  study.name = document.text("name", file.stem().string());
  if (!is_run_name(study.name)) {
    document.refuse(
        "name", {.found = fmt::format("'{}'", study.name), .accepted = std::string(kRunNameRule)});
  }
  study.title = document.text("title", study.name);
  const std::string base = document.text("base", "");
  if (base.empty())
    document.refuse(
        "base", {.reason = "is missing", .accepted = "a preset's name, or the path of a run file"});
  study.base = (file.parent_path() / base).lexically_normal();
  if (!is_file(study.base)) {
    const bool is_name = base.find('/') == std::string::npos && !base.ends_with(".toml");
    if (!is_name) {
      document.fail("base", {.found = study.base.string(),
                             .reason = "does not exist" + where_looked(study.base)});
    }
    study.base = find_experiment("presets", base, document.where("base"));
  }
  study.assignments = read_set(document);
  study.assignments.insert(study.assignments.end(), assignments.begin(), assignments.end());
  document.read(scale_field(), study);
  if (scale) study.scale = *scale;
  read_baseline(document, study);
  if (std::optional<TomlReader> table = document.table("design")) {
    StudyDesign design;
    read_table(*table, design_table(), design);
    study.design = design;
  }
  read_arms(document, study);
  read_shared(document, study);
  document.finish();
  check_reach(document, study, assignments);
  for (const Assignment& assignment : assignments) {
    study.text += fmt::format("\n# --set {}", toml_quoted(assignment.key + "=" + assignment.value));
  }
  if (scale) study.text += fmt::format("\n# --scale {}", *scale);
  const std::string identity = study.text + check_runs(document, study);
  study.hash = hex16(xxh3(identity.data(), identity.size()));
  return study;
}

}  // namespace fp8lab
