#include "src/cli/ways_on.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <optional>
#include <utility>

#include "emulation/base/error.hpp"
#include "src/config/reading/toml_text.hpp"
#include "src/config/recipe/stage_recipes.hpp"
#include "src/io/files/file_kind.hpp"
#include "src/io/shell_word.hpp"
#include "src/study/process.hpp"
#include "src/train/checkpoint/checkpoint.hpp"
#include "src/train/run_directory.hpp"

namespace fp8lab::cli {
namespace {

constexpr const char* kExact = "bf16";

/// An option of `train` with its value, "--set" "stages.one.steps=3".
struct Option {
  std::string name, value;
};

/// Returns true if `option` gives what `changes` give: the same option, or the same key of --set.
bool is_replaced(const Option& option, const std::vector<Option>& changes) {
  const auto key_of = [](const Option& one) {
    if (one.name == "--recipe") return std::string("recipe");
    return one.name == "--set" ? one.value.substr(0, one.value.find('=')) : one.name;
  };
  return std::any_of(changes.begin(), changes.end(),
                     [&](const Option& change) { return key_of(change) == key_of(option); });
}

/// Returns the command of a new run: `arguments` with `changes`.
std::string changed_command(const std::vector<std::string>& arguments,
                            const std::vector<Option>& changes) {
  std::string command = "fp8lab train";
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const std::size_t equals = arguments[i].find('=');
    Option option{arguments[i].substr(0, equals), {}};
    if (equals != std::string::npos) option.value = arguments[i].substr(equals + 1);
    const bool has_next = i + 1 < arguments.size() && !arguments[i + 1].starts_with("--");
    if (equals == std::string::npos && has_next) option.value = arguments[++i];
    const bool is_of_this_run = option.name == "--resume" || option.name == "--step-descriptor";
    if (is_of_this_run || is_replaced(option, changes)) continue;
    command += " " + (option.value.empty() ? option.name : shell_option(option.name, option.value));
  }
  for (const Option& change : changes) command += " " + shell_option(change.name, change.value);
  return command;
}

/// Returns the checkpoint of a run, if it has one that can be read.
std::optional<CheckpointSummary> checkpoint_of(const std::filesystem::path& file) {
  if (!is_present(file)) return std::nullopt;
  try {
    return read_checkpoint(CheckpointFile(file));
  } catch (const Error&) {
    return std::nullopt;  // fp8lab doctor, which is named as well, says what it has
  }
}

class WaysOn {
 public:
  explicit WaysOn(const BrokenRun& run) : run_(run), stage_(run.config.stages.at(run.stage)) {}

  std::vector<std::string> lines() {
    std::vector<std::string> lines;
    const std::string checkpoint = checkpoint_line();
    if (!checkpoint.empty()) lines.push_back(checkpoint);
    const bool is_exact = has_exact_recipes();
    if (!is_exact) {
      add(lines, "bf16, which shows whether the recipe is at fault", exact_recipe(), kExact);
    }
    if (run_.had_update) {  // else no learning rate is at fault
      add(lines, fmt::format("half of stage {}'s learning_rate.peak", stage_.name),
          {{"--set", key("learning_rate.peak") + "=" + toml_number(stage_.learning_rate.peak / 2)}},
          "half-rate");
    }
    if (run_.step > 0 && !is_exact && !stage_.fallback) {
      add(lines, "leave out steps that are not finite, and go on in bf16",
          {{"--set", key("fallback") + "={recipe = \"bf16\", when = {nonfinite = true}}"}},
          "fallback");
    }
    return lines;
  }

 private:
  /// Returns true if every recipe of the stage, except that of a fallback, is bf16.
  bool has_exact_recipes() const {
    const std::vector<StageRecipe> recipes = recipes_of(run_.config, stage_);
    return std::all_of(recipes.begin(), recipes.end(), [](const StageRecipe& recipe) {
      return recipe.is_fallback || recipe.name == kExact;
    });
  }

  std::vector<Option> exact_recipe() const {
    if (stage_.recipe.empty() && stage_.recipe_at.empty()) return {{"--recipe", kExact}};
    std::vector<Option> changes = {{"--set", key("recipe") + "=" + kExact}};
    if (!stage_.recipe_at.empty()) changes.push_back({"--set", key("recipe_at") + "=[]"});
    return changes;
  }

  std::string key(const std::string& of_stage) const {
    return "stages." + stage_.name + "." + of_stage;
  }

  /// Adds a remedy whose run lies beside this one, in DIRECTORY-SUFFIX.
  void add(std::vector<std::string>& lines, const std::string& what, std::vector<Option> changes,
           const std::string& suffix) const {
    std::filesystem::path directory = run_.directory;
    if (!directory.has_filename()) directory = directory.parent_path();
    changes.push_back({"--out", directory.string() + "-" + suffix});
    lines.push_back(fmt::format("{}{}: {}", kWayOn, what, changed_command(run_.command, changes)));
  }

  std::string checkpoint_line() const {
    const std::filesystem::path file = RunDirectory(run_.directory).checkpoint_file();
    const std::optional<CheckpointSummary> found = checkpoint_of(file);
    if (run_.step == 0) return {};  // the checkpoint of a complete run is that of its end
    if (!found) {
      return fmt::format("no checkpoint before the break: logging.checkpoint_every_steps = {}",
                         run_.config.logging.checkpoint_every_steps);
    }
    const std::string run = shell_path(run_.directory.string());
    const std::int64_t steps = run_.step - found->position.step;
    std::string line =
        fmt::format("checkpoint {} step{} before the break, after step {}: {}", steps,
                    steps == 1 ? "" : "s", found->position.step, shell_path(file.string()));
    if (run_.config.exact.empty()) {
      line += fmt::format("; which tensors break from there: fp8lab whatif {} --recipe {}", run,
                          shell_path(recipes_of(run_.config, stage_).front().name));
    }
    return line;
  }

  const BrokenRun& run_;
  const StageConfig& stage_;
};

}  // namespace

std::string train_command(const std::vector<std::string>& arguments) {
  return changed_command(arguments, {});
}

bool had_update_before_break(const RunData& run) {
  if (run.metrics.empty()) return false;
  const StepRecord& first = run.metrics.front();
  if (std::isfinite(first.loss) && std::isfinite(first.grad_norm)) return true;
  return std::any_of(run.events.begin(), run.events.end(), [&](const EventRecord& event) {
    return event.kind == "fallback" && event.step == first.step;
  });
}

std::vector<std::string> ways_on(const BrokenRun& run) { return WaysOn(run).lines(); }

}  // namespace fp8lab::cli
