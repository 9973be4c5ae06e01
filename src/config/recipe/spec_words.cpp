#include "src/config/recipe/spec_words.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string_view>
#include <vector>

#include "emulation/base/input_error.hpp"
#include "emulation/spec/gemm_rules.hpp"
#include "emulation/spec/recipe_names.hpp"
#include "emulation/spec/tensor_core.hpp"
#include "src/config/config.hpp"
#include "src/config/reading/nearest_name.hpp"
#include "src/config/reading/words.hpp"
#include "src/config/recipe/recipe_draft.hpp"

namespace fp8lab {
namespace {

GemmRequest problem_of_recipe(const std::string& text, std::size_t colon) {
  const LinearRecipe recipe = load_recipe(text.substr(0, colon)).linear;
  const std::string word = text.substr(colon + 1);
  for (const GemmRole role : kGemmRoles) {
    if (word != gemm_role_name(role)) continue;
    return {recipe.gemm(role), recipe.a(role), recipe.b(role)};
  }
  throw InputError({.where = fmt::format("GEMM '{}'", text),
                    .noun = "unknown role",
                    .key = word,
                    .nearest = did_you_mean(word, "fprop, dgrad, wgrad"),
                    .accepted = "fprop, dgrad, wgrad"});
}

}  // namespace

bool is_builtin_recipe(const std::string& word) {
  const std::vector<std::string> names = builtin_recipe_names();
  return std::find(names.begin(), names.end(), word) != names.end();
}

std::vector<std::string> split_at_slashes(const std::string& text) {
  std::vector<std::string> words;
  std::size_t begin = 0;
  while (true) {
    const std::size_t slash = text.find('/', begin);
    words.push_back(text.substr(begin, slash - begin));
    if (slash == std::string::npos) return words;
    begin = slash + 1;
  }
}

std::optional<int> split_k_from_word(const std::string& word) {
  if (word.rfind("split_k:", 0) != 0 && word.rfind("split_k=", 0) != 0) return std::nullopt;
  const std::optional<int> split = number_of<int>(std::string_view(word).substr(8));
  return split && *split >= 1 && *split <= 64 ? split : std::nullopt;
}

bool describes_one_operand(std::string_view key) {
  return key != "orientation_source" && key != "weight_source" && key != "estimator";
}

QuantSpec parse_quant_keys(const std::vector<SpecKey>& keys) {
  toml::table slot;
  for (const auto& [key, value] : keys) {
    if (!describes_one_operand(key)) {
      throw InputError(
          {.where = "QuantSpec", .key = key, .reason = "does not describe a single operand"});
    }
    std::visit([&slot, &name = key](const auto& plain) { slot.insert_or_assign(name, plain); },
               value);
  }
  if (!slot.contains("format"))
    throw InputError({.where = "QuantSpec", .key = "format", .reason = "is missing"});
  const toml::table document{{"slots", toml::table{{"default", slot}}}};
  TomlReader reader(document, "", "QuantSpec");
  RecipeDraft draft(DType::bf16);
  draft.read(reader);
  return draft.resolve().slot(Slot::fprop_x);
}

GemmSpec parse_gemm_spec(const std::string& text) {
  const std::vector<std::string> words = split_at_slashes(text);
  GemmSpec spec;
  std::optional<Accumulator> accumulator;
  try {
    accumulator = accumulator_by_name(words.front());
  } catch (const AccumulatorError& error) {
    ErrorFields fields = error.fields();
    fields.where = fmt::format("GEMM '{}'", text);
    throw InputError(std::move(fields));
  }
  if (!accumulator && is_builtin_recipe(text)) {
    throw InputError({.where = fmt::format("GEMM '{}'", text),
                      .reason = "is a recipe, of three GEMMs",
                      .accepted = fmt::format("{}:fprop, {}:dgrad or {}:wgrad", text, text, text)});
  }
  if (!accumulator) {
    std::string names;
    for (const TensorCoreProfile& known : tensor_core_profiles()) {
      names += ", " + std::string(known.name);
    }
    throw InputError({.where = fmt::format("GEMM '{}'", text),
                      .noun = "unknown accumulator",
                      .key = fmt::to_string(words.front()),
                      .nearest = did_you_mean(words.front(), names.substr(2)),
                      .accepted = "the names that fp8lab info --accumulators lists, such as "
                                  "sm90_wgmma_fp8, or RECIPE:ROLE such as infir2:fprop"});
  }
  spec.accumulator = *accumulator;
  SettledOnce settled(fmt::format("GEMM '{}'", text));
  for (std::size_t i = 1; i < words.size(); ++i) {
    const std::string& word = words[i];
    if (const std::optional<ScheduleChoice> schedule = schedule_from_name(word)) {
      settled.settle("schedule", word);
      spec.schedule = schedule->schedule;
      spec.promote_interval = schedule->promote_interval;
      continue;
    }
    if (const std::optional<int> split = split_k_from_word(word)) {
      settled.settle("split of K", word);
      spec.split_k = *split;
      continue;
    }
    if (word == "f32") {  // the spelling of label()
      settled.settle("output", word);
      spec.output = DType::f32;
      continue;
    }
    if (settled.take("output", kStorageNames, word, spec.output)) continue;
    if (settled.take("scale order", kScaleOrderNames, word, spec.scale_order)) continue;
    constexpr std::string_view kWords =
        "fast, promote:128, bf16, fp32, automatic, epilogue, b_then_a, a_then_b, product_first, "
        "in_instruction, split_k:2";
    throw InputError({.where = fmt::format("GEMM '{}'", text),
                      .noun = "unknown word",
                      .key = word,
                      .nearest = did_you_mean(word, kWords),
                      .accepted = std::string(kWords)});
  }
  return spec;
}

GemmRequest parse_gemm_problem(const std::string& text) {
  // "promote:128" contains a colon as well; the colon of a recipe precedes every slash of a spec.
  const std::string first = text.substr(0, text.find('/'));
  const bool is_words = first.starts_with("custom(") || accumulator_by_name(first).has_value();
  const std::size_t colon = text.rfind(':');
  if (!is_words && colon != std::string::npos) return problem_of_recipe(text, colon);
  GemmRequest problem;
  problem.gemm = parse_gemm_spec(text);
  problem.a = problem.b = problem.gemm.accumulator.default_operand();
  return problem;
}

}  // namespace fp8lab
