// fp8lab recipes: the recipes that come with the program, and checks of one's own.
#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <string>

#include "emulation/base/error.hpp"
#include "emulation/spec/recipe.hpp"
#include "emulation/spec/recipe_names.hpp"
#include "src/cli/command.hpp"
#include "src/config/config.hpp"
#include "src/io/atomic_file.hpp"

namespace fp8lab::cli {
namespace {

namespace po = boost::program_options;
using Json = nlohmann::ordered_json;

po::options_description recipe_options() {
  po::options_description options("fp8lab recipes list | show NAME | check FILE");
  auto add = options.add_options();
  add("action", po::value<std::string>(), "list, show or check");
  add("name", po::value<std::string>(), "recipe name (show) or file (show, check)");
  add("tokens", po::value<std::int64_t>()->default_value(1024), "M of the layer warned about");
  add("in", po::value<std::int64_t>()->default_value(1024), "its input features");
  add("out", po::value<std::int64_t>()->default_value(4096), "its output features");
  add("json", "machine-readable");
  return options;
}

Json to_json(const LinearRecipe& recipe) {
  Json json;
  for (const Slot slot : kSlots) {
    const QuantSpec& spec = recipe.slot(slot);
    json["slots"][slot_name(slot)] = {
        {"format", format_name(spec.format)},
        {"tile", tile_name(spec.tile)},
        {"scale_format", word_for(kScaleFormatNames, spec.scale.format)},
        {"scale_rounding", word_for(kScaleRoundingNames, spec.scale.rounding)},
        {"scale_arithmetic", word_for(kScaleArithmeticNames, spec.scale.arithmetic)},
        {"scale_source", word_for(kScaleSourceNames, spec.scale_source)},
        {"amax_epsilon", spec.scale.amax_epsilon},
        {"epsilon_mode", word_for(kEpsilonModeNames, spec.scale.epsilon_mode)},
        {"encode_limit", word_for(kEncodeLimitNames, spec.scale.encode_limit)},
        {"scale_overflow", word_for(kScaleOverflowNames, spec.scale.scale_overflow)},
        {"four_over_six", word_for(kFourOverSixNames, spec.scale.four_over_six)},
        {"margin", spec.scale.margin},
        {"static_scale", spec.static_scale},
        {"history", spec.history_length},
        {"warmup_steps", spec.warmup_steps},
        {"amax_algorithm", word_for(kAmaxAlgorithmNames, spec.amax_algorithm)},
        {"rounding", word_for(kRoundingNames, spec.rounding)},
        {"overflow", word_for(kOverflowNames, spec.overflow)},
        {"transform", transform_name(spec.transform)},
        {"orientation_source", word_for(kOrientationSourceNames, spec.orientation_source)},
        {"weight_source", word_for(kWeightSourceNames, spec.weight_source)}};
  }
  for (const GemmRole role : kGemmRoles) {
    const GemmSpec& spec = recipe.gemm(role);
    json["gemms"][gemm_role_name(role)] = {
        {"accumulator", accumulator_name(spec.accumulator)},
        {"schedule", schedule_name(spec)},
        {"scale_order", word_for(kScaleOrderNames, spec.scale_order)},
        {"split_k", spec.split_k},
        {"output", word_for(kStorageNames, spec.output)}};
  }
  return json;
}

Json to_json(const Recipe& recipe, const std::vector<std::string>& found) {
  Json json;
  json["name"] = recipe.name;
  json["summary"] = recipe.summary;
  json["hash"] = recipe.hash;
  json["activations"] = word_for(kStorageNames, recipe.activation_dtype);
  json["linear"] = to_json(recipe.linear);
  json["keep_high_precision"] = recipe.keep_high_precision;
  json["overrides"] = Json::array();
  for (const RecipeOverride& exception : recipe.overrides) {
    json["overrides"].push_back(
        {{"match", exception.match}, {"linear", to_json(exception.recipe)}});
  }
  json["warnings"] = found;
  return json;
}

int list(const po::variables_map& values) {
  const bool json = values.count("json") != 0;
  Json rows = Json::array();
  for (const std::string& name : builtin_recipe_names()) {
    const Recipe recipe = load_recipe(name);
    if (json) {
      rows.push_back({{"name", name}, {"summary", recipe.summary}, {"hash", recipe.hash}});
    } else {
      fmt::print("{:<18} {}\n", name, recipe.summary);
    }
  }
  if (json) fmt::print("{}\n", rows.dump(2));
  return ExitCode::kSuccess;
}

void print_recipe(const Recipe& recipe, const po::variables_map& values) {
  std::array<std::int64_t, 3> shape{};
  const std::array<const char*, 3> names = {"tokens", "in", "out"};
  for (std::size_t i = 0; i < names.size(); ++i) {
    shape[i] = values[names[i]].as<std::int64_t>();
    if (shape[i] < 1) throw Error(fmt::format("recipes: --{} must be at least 1", names[i]));
  }
  const std::vector<std::string> found = warnings(recipe.linear, shape[0], shape[1], shape[2]);
  if (values.count("json") != 0) {
    fmt::print("{}\n", to_json(recipe, found).dump(2));
    return;
  }
  fmt::print("{}", describe(recipe));
  for (const std::string& line : found) fmt::print("warning: {}\n", line);
}

int show(const po::variables_map& values) {
  print_recipe(load_recipe(required(values, "name", "recipes")), values);
  return ExitCode::kSuccess;
}

int check(const po::variables_map& values) {
  const std::string file = required(values, "name", "recipes");
  print_recipe(parse_recipe(read_file(file), file), values);
  return ExitCode::kSuccess;
}

}  // namespace

int recipes(const std::vector<std::string>& arguments) {
  po::positional_options_description positional;
  positional.add("action", 1).add("name", 1);
  const po::variables_map values =
      parse_arguments("recipes", recipe_options(), arguments, positional);
  if (values.count("help") != 0) return ExitCode::kSuccess;
  return run_action("recipes", values, "action",
                    {{"list", "", {"json"}, list},
                     {"show", "name", {"tokens", "in", "out", "json"}, show},
                     {"check", "name", {"tokens", "in", "out", "json"}, check}});
}

}  // namespace fp8lab::cli
