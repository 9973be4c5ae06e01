#include "src/cli/help_words.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <filesystem>

#include "src/config/config.hpp"
#include "src/config/key_help.hpp"
#include "src/config/reading/experiments.hpp"
#include "src/io/shell_word.hpp"

namespace fp8lab::cli {
namespace {

/// A folder of experiments/; `use` is a format of the name and of the file.
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

std::string summary(const NamedKind& kind, const std::string& name,
                    const std::filesystem::path& file) {
  return kind.folder == std::string("recipes") ? load_recipe(name).summary
                                               : experiment_summary(file);
}

}  // namespace

std::string help_on(const std::string& word) {
  std::string text;
  for (const NamedKind& kind : kNamedKinds) {
    const std::vector<std::string> names = experiment_names(kind.folder);
    if (std::find(names.begin(), names.end(), word) == names.end()) continue;
    const std::filesystem::path file = find_experiment(kind.folder, word, "");
    const std::string said = summary(kind, word, file);
    text += fmt::format("{}: {}{}{}\n    {}\n", word, kind.name, said.empty() ? "" : ": ", said,
                        fmt::format(fmt::runtime(kind.use), word, shell_word(file.string())));
  }
  return text + key_help(word);
}

std::vector<std::string> help_words() {
  std::vector<std::string> words;
  for (const NamedKind& kind : kNamedKinds) {
    for (std::string& name : experiment_names(kind.folder)) words.push_back(std::move(name));
  }
  for (std::string& word : key_words()) words.push_back(std::move(word));
  return words;
}

}  // namespace fp8lab::cli
