#include "src/cli/help_words.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <filesystem>

#include "src/config/config.hpp"
#include "src/config/key_help.hpp"
#include "src/config/reading/experiments.hpp"
#include "src/config/value_help.hpp"
#include "src/io/shell_word.hpp"

namespace fp8lab::cli {
namespace {

/// A folder of experiments/; `use` is a format of the name and, but for recipes, of the file.
struct NamedKind {
  const char* folder;
  const char* name;  ///< with its article
  const char* use;
};

constexpr std::array kNamedKinds = {
    NamedKind{"recipes", "a recipe",
              "recipe = \"{0}\" of a run file, or --recipe {0}; its page: fp8lab recipes show {0}"},
    NamedKind{"presets", "a preset",
              "fp8lab train --preset {0}; the whole run file: fp8lab presets show {0}"},
    NamedKind{"models", "a model",
              "model = \"{0}\" of a run file; its [model] table: fp8lab models show {0}"},
    NamedKind{"studies", "a study", "fp8lab ablate --study {1}; its runs: the same with --list"},
    NamedKind{"optimizers", "an optimizer", "optimizer = \"{0}\" of a run file; its keys: {1}"},
    NamedKind{"stages", "a stage", "base = \"{0}\" in [[stages]] of a run file; its keys: {1}"},
};

bool is_recipe(const NamedKind& kind) { return kind.folder == std::string("recipes"); }

std::vector<std::string> names_of(const NamedKind& kind) {
  return is_recipe(kind) ? builtin_recipe_names() : experiment_names(kind.folder);
}

std::string help_on_name(const NamedKind& kind, const std::string& name) {
  std::string summary, file;
  if (is_recipe(kind)) {
    summary = load_recipe(name).summary;
  } else {
    const std::filesystem::path found = find_experiment(kind.folder, name, "");
    summary = experiment_summary(found);
    file = shell_path(found.string());
  }
  return fmt::format("{}: {}{}{}\n    {}\n", name, kind.name, summary.empty() ? "" : ": ", summary,
                     fmt::format(fmt::runtime(kind.use), name, file));
}

}  // namespace

std::string help_on(const std::string& word) {
  std::string text;
  for (const NamedKind& kind : kNamedKinds) {
    const std::vector<std::string> names = names_of(kind);
    if (std::find(names.begin(), names.end(), word) == names.end()) continue;
    text += help_on_name(kind, word);
  }
  return text + key_help(word) + value_help(word);
}

std::vector<std::string> help_words() {
  std::vector<std::string> words;
  for (const NamedKind& kind : kNamedKinds) {
    for (std::string& name : names_of(kind)) words.push_back(std::move(name));
  }
  for (std::string& word : key_words()) words.push_back(std::move(word));
  for (std::string& word : value_words()) words.push_back(std::move(word));
  return words;
}

}  // namespace fp8lab::cli
