#include "src/replay/run_difference.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <string_view>
#include <utility>

namespace fp8lab {
namespace {

bool is_one_of(const std::string& key, const std::vector<std::string_view>& names) {
  return std::find(names.begin(), names.end(), key) != names.end();
}

bool starts_with_any(const std::string& key, const std::vector<std::string_view>& beginnings) {
  return std::any_of(beginnings.begin(), beginnings.end(),
                     [&](std::string_view begin) { return key.starts_with(begin); });
}

bool is_of_recipe(const std::string& key) {
  return is_one_of(key, {"recipe", "exact"}) || key.starts_with("recipe of stage ") ||
         key.starts_with("recipe after ") || key.starts_with("fallback recipe ") ||
         key.ends_with(".recipe") || key.find(".recipe_at") != std::string::npos ||
         key.find(".fallback") != std::string::npos;
}

/// Returns true for what replaces a recipe in the course of a stage, or makes it exact in part.
bool is_beside_recipe(const std::string& key) {
  return key == "exact" || key.starts_with("fallback recipe ") ||
         (key.starts_with("recipe of stage ") && key.ends_with(" steps")) ||
         key.find(".recipe_at") != std::string::npos || key.find(".fallback") != std::string::npos;
}

bool is_of_evaluation(const std::string& key) {
  return key.find(".eval") != std::string::npos ||
         starts_with_any(key, {"evaluation data ", "questions ", "rollout recipe "});
}

/// Returns true for what changes no bit of a run. Paths of data and of the start do not: their
/// contents have entries of their own.
bool changes_no_bit(const std::string& key, const std::string& values) {
  if (key == "backend") return values.find("truth") == std::string::npos;
  if (key == "memory.loss_chunk") return false;
  return is_one_of(key, {"name", "init_from", "build", "device", "instruction set"}) ||
         starts_with_any(key, {"logging.", "warnings.", "memory."}) ||
         (key.find(".data.") != std::string::npos && key.ends_with(".path"));
}

bool is_of_data(const std::string& key) {
  return key.starts_with("training data ") || key.find(".data.") != std::string::npos;
}

void sort_one(const std::string& line, RunDifference& found, std::vector<std::string>& own_recipe,
              std::vector<std::string>& beside_recipe) {
  const std::size_t colon = std::min(line.find(": "), line.size());
  const std::string key = line.substr(0, colon);
  if (is_of_evaluation(key)) {
    found.evaluation = true;
  } else if (is_of_recipe(key)) {
    (is_beside_recipe(key) ? beside_recipe : own_recipe).push_back(key);
  } else if (changes_no_bit(key, line.substr(colon))) {
    found.machine = true;
  } else if (is_of_data(key)) {
    found.data = true;
  } else if (key == "seed") {
    found.seed = true;
  } else if (key.starts_with("model")) {
    found.model = true;
  } else if (key.starts_with("initial ")) {
    found.start = true;
  } else {
    found.settings.push_back(key);
  }
}

std::string explain_equal(const RunDifference& difference) {
  return difference.machine ? "A and B are the same run, executed or recorded in another way; "
                              "their bits must be equal"
                            : "A and B are the same run; their bits must be equal";
}

}  // namespace

bool RunDifference::is_pair() const {
  return recipe && !seed && !model && !start && !data && settings.empty();
}

std::vector<std::string> RunDifference::names() const {
  std::vector<std::string> all;
  const bool is_own = recipe && beside_recipe.empty();
  const std::array<std::pair<bool, const char*>, 6> kinds = {{{is_own, "recipe"},
                                                              {seed, "seed"},
                                                              {model, "model"},
                                                              {start, "initial weights"},
                                                              {data, "training data"},
                                                              {evaluation, "evaluation"}}};
  for (const auto& [differs, name] : kinds) {
    if (differs) all.emplace_back(name);
  }
  all.insert(all.begin(), beside_recipe.begin(), beside_recipe.end());
  all.insert(all.end(), settings.begin(), settings.end());
  return all;
}

RunDifference sort_differences(const std::vector<std::string>& made_of) {
  RunDifference found;
  std::vector<std::string> own, beside;
  for (const std::string& line : made_of) sort_one(line, found, own, beside);
  found.recipe = !own.empty() || !beside.empty();
  if (own.empty()) found.beside_recipe = std::move(beside);
  if (found.seed || found.model) found.start = false;  // it follows
  return found;
}

std::string explain(const RunDifference& difference) {
  constexpr std::size_t kMost = 4;
  std::vector<std::string> names = difference.names();
  if (names.empty()) return explain_equal(difference);
  const bool alone = names.size() == 1;
  if (names.size() > kMost) {
    const std::size_t more = names.size() - kMost;
    names.resize(kMost);
    names.push_back(fmt::format("{} more", more));
  }
  const std::string begin = fmt::format("A and B differ in {}", fmt::join(names, ", "));
  if (difference.is_pair()) {
    return begin + ": they are a pair; the gap between their losses" +
           (difference.evaluation ? " in training" : "") +
           (difference.beside_recipe.empty() ? " is what the recipe costs with this seed"
                                             : " is what that changes with this seed");
  }
  if (alone && difference.seed) {
    return begin + ": the difference of their losses is the noise between seeds";
  }
  if (alone && difference.evaluation) {
    return begin + ": they train with the same bits; their held-out losses are not comparable";
  }
  return begin +
         ": they are no pair; only runs that differ in the recipe alone tell what a recipe costs";
}

}  // namespace fp8lab
