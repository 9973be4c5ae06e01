// fp8lab presets and fp8lab models: list and show the built-in configurations.
#include <fmt/format.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "src/architecture/parts.hpp"
#include "src/cli/command.hpp"
#include "src/cli/options/output_path.hpp"
#include "src/config/config.hpp"
#include "src/config/reading/experiments.hpp"
#include "src/config/tables/model_table.hpp"

namespace fp8lab::cli {
namespace {

nlohmann::ordered_json preset_row(const std::string& name) {
  const auto file = find_experiment("presets", name, "");
  return {{"name", name}, {"summary", experiment_summary(file)}, {"file", file.string()}};
}

nlohmann::ordered_json model_row(const std::string& name) {
  const auto file = find_experiment("models", name, "");
  const ModelConfig model = load_model(name);
  return {{"name", name},
          {"parameters", declaration_of(model).weights()},
          {"layers", model.layer_count()},
          {"hidden_size", model.hidden_size},
          {"vocab_size", model.vocab_size},
          {"summary", experiment_summary(file)},
          {"file", file.string()}};
}

/// Returns "124.4 M".
std::string millions(double count) { return fmt::format("{:.1f} M", count / 1e6); }

/// Returns the whole run file: without bases, and with every key that has an effect.
std::string preset_text(const std::string& name) { return load_preset(name, {}).text; }

std::string model_text(const std::string& name) { return model_table_text(load_model(name)); }

/// A kind of built-in configuration.
struct ConfigurationKind {
  std::string command;
  std::string usage;
  std::string next;  ///< what to do with the text that `show` prints
  nlohmann::ordered_json (*row)(const std::string& name);
  std::string (*text)(const std::string& name);
};

const ConfigurationKind& preset_kind() {
  static const ConfigurationKind kind = {
      "presets",
      "The built-in run configurations, for train --preset NAME and base = \"NAME\" of a study;\n"
      "show prints one as a complete run file",
      "save it as FILE for fp8lab train --config FILE", preset_row, preset_text};
  return kind;
}

const ConfigurationKind& model_kind() {
  static const ConfigurationKind kind = {
      "models",
      "The built-in models with their parameters, for model = \"NAME\" of a run; show prints one,\n"
      "or the model of a Hugging Face folder, as the table of a run file",
      "the table [model] of a run file", model_row, model_text};
  return kind;
}

int list(const ConfigurationKind& kind, const Values& values) {
  auto rows = nlohmann::ordered_json::array();
  for (const std::string& name : experiment_names(kind.command)) rows.push_back(kind.row(name));
  if (values.count("json") != 0) {
    fmt::print("{}\n", json_text(rows));
    return ExitCode::kSuccess;
  }
  for (const auto& found : rows) {
    std::string facts;
    if (found.contains("parameters")) {
      facts = fmt::format("{:>9} {:>3} layers  ", millions(found["parameters"].get<double>()),
                          found["layers"].get<std::int64_t>());
    }
    fmt::print("{:<16} {}{}\n", found["name"].get<std::string>(), facts,
               found["summary"].get<std::string>());
  }
  return ExitCode::kSuccess;
}

int show(const ConfigurationKind& kind, const Values& values) {
  const std::string name = required(values, "name", kind.command + " show");
  const std::string text = kind.text(name);
  if (values.count("json") != 0) {
    fmt::print("{}\n", json_text({{"name", name}, {"text", text}}));
  } else {
    fmt::print("# {}: {}\n{}", name, kind.next, text);
  }
  return ExitCode::kSuccess;
}

int list_or_show(const ConfigurationKind& kind, const std::vector<std::string>& arguments,
                 int (*list_all)(const Values&), int (*show_one)(const Values&)) {
  Options options(fmt::format("fp8lab {} list | show NAME\n{}", kind.command, kind.usage));
  options.add("action", value<std::string>(), "list (default) or show");
  options.add("name", value<std::string>(), "name or file (show)");
  options.add("json", "machine-readable");
  const Values values =
      parse_arguments(kind.command, options, arguments, {{"action", 1}, {"name", 1}});
  if (values.count("help") != 0) return ExitCode::kSuccess;
  if (values.count("action") == 0) return list_all(values);
  return run_action(kind.command, values, "action",
                    {{"list", "", {"json"}, list_all}, {"show", "name", {"json"}, show_one}});
}

}  // namespace

int presets(const std::vector<std::string>& arguments) {
  return list_or_show(
      preset_kind(), arguments, [](const Values& values) { return list(preset_kind(), values); },
      [](const Values& values) { return show(preset_kind(), values); });
}

int models(const std::vector<std::string>& arguments) {
  return list_or_show(
      model_kind(), arguments, [](const Values& values) { return list(model_kind(), values); },
      [](const Values& values) { return show(model_kind(), values); });
}

}  // namespace fp8lab::cli
