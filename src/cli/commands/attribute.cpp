// fp8lab attribute: attributes the error of a gradient, at one step of a run, to its sources.
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "emulation/base/input_error.hpp"
#include "src/backend/factory.hpp"
#include "src/cli/command.hpp"
#include "src/cli/finite_json.hpp"
#include "src/cli/inputs/checkpoint_source.hpp"
#include "src/cli/options/backend_option.hpp"
#include "src/cli/options/output_path.hpp"
#include "src/cli/progress.hpp"
#include "src/config/recipe/model_recipe.hpp"
#include "src/diagnosis/attribution.hpp"

namespace fp8lab::cli {
namespace {

using nlohmann::ordered_json;

constexpr const char* kAttribute = "attribute";

Options attribute_options() {
  Options options(
      "fp8lab attribute RUN|CHECKPOINT [--recipe NAME ...]\n"
      "The gradient of one micro-batch of the run's present stage, from its checkpoint, under "
      "each\n"
      "recipe and in double precision: how far apart they are, and how much of that is due to "
      "each\n"
      "source of error, slot, GEMM and layer. Two gradients for each of these parts, so layers "
      "only\n"
      "when they are asked for. The gradient in double precision is computed on the CPU, once for\n"
      "all recipes; all else on the backend");
  options.add("run", value<std::string>(), "RUN, its directory, or CHECKPOINT, beside its run.h5");
  options.add("recipe", value<std::vector<std::string>>(),
              "by name or file, repeatable (default: that of the run)");
  options.add(
      "group", value<std::vector<std::string>>(),
      "source, scale, slot, GEMM or layer, repeatable: only these (default: all but layer)");
  options.add("layer", value<std::vector<std::string>>(),
              "layers as recipes name them, such as layers.*.mlp.down, repeatable: only these, and "
              "the groups that --group names");
  add_step_options(options, quantizing_backends());
  options.add("json", value<std::string>(), "also write every number to this file");
  return options;
}

/// The part of the total that the shares of a group do not explain; nothing if a part has no share.
struct Remainder {
  std::optional<double> alone = 1.0;
  double without = 1.0;
};

Remainder remainder_of(const Attribution& attribution, const PartGroup& group) {
  Remainder left;
  for (const Part& part : group.parts) {
    const std::optional<double> share = attribution.share_alone(part);
    left.alone = left.alone && share ? std::optional(*left.alone - *share) : std::nullopt;
    left.without -= attribution.share_without(part);
  }
  return left;
}

std::string error_text(const std::optional<double>& error) {
  return error ? fmt::format("{:.3g}", *error) : "-";
}

std::string percent(const std::optional<double>& share) {
  return share ? fmt::format("{:.1f} %", 100 * *share) : "-";
}

void print_group(const Attribution& attribution, const PartGroup& group) {
  std::size_t width = 9;  // "remainder"
  for (const Part& part : group.parts) width = std::max(width, part.name.size());
  const auto row = [&](const std::string& name, const std::string& alone,
                       const std::string& share_alone, const std::string& without,
                       const std::string& share_without) {
    fmt::print("{:<{}}  {:>9} {:>8}  {:>9} {:>8}\n", name, width, alone, share_alone, without,
               share_without);
  };
  fmt::print("\n");
  row(group.name, "alone", "share", "without", "share");
  std::vector<Part> parts = group.parts;
  std::stable_sort(parts.begin(), parts.end(),
                   [](const Part& a, const Part& b) { return a.without < b.without; });
  for (const Part& part : parts) {
    row(part.name, error_text(part.alone), percent(attribution.share_alone(part)),
        error_text(part.without), percent(attribution.share_without(part)));
  }
  const Remainder left = remainder_of(attribution, group);
  if (left.alone) row("remainder", "", percent(left.alone), "", percent(left.without));
}

/// Prints everything of one recipe; returns whether a group has a remainder.
bool print_attribution(const Recipe& recipe, const Attribution& attribution) {
  fmt::print(
      "gradient under recipe {}: error {:.4g} against double precision; with every source "
      "switched\n"
      "off {:.2g}. Errors are fractions of the norm of the exact gradient: with a source alone, "
      "and\n"
      "without it. Shares are percentages of the squared error: of a source alone, and what "
      "leaving\n"
      "it out takes away\n",
      recipe.name, attribution.whole, attribution.nothing);
  for (const std::string& sentence : attribution.remarks) fmt::print("{}\n", sentence);
  bool has_remainder = false;
  for (const PartGroup& group : attribution.groups) {
    print_group(attribution, group);
    has_remainder = has_remainder || remainder_of(attribution, group).alone;
  }
  return has_remainder;
}

/// Returns the recipes of the options, with different names, or that of the run.
std::vector<Recipe> recipes_of(const Values& values, const CheckpointedRun& run) {
  std::vector<Recipe> recipes;
  for (const std::string& name : words_of(values, "recipe")) {
    Recipe recipe = load_recipe_for(run.config.model, name, kAttribute);
    for (const Recipe& other : recipes) {
      if (other.name != recipe.name) continue;
      throw InputError({.where = std::string(kAttribute),
                        .key = "--recipe",
                        .found = name,
                        .reason = fmt::format(": two recipes are called '{}'", recipe.name),
                        .accepted = "one of each name"});
    }
    recipes.push_back(std::move(recipe));
  }
  if (recipes.empty()) recipes.push_back(run.recipe);
  return recipes;
}

ordered_json number_or_null(const std::optional<double>& value) {
  return value ? finite_json(*value) : ordered_json();
}

ordered_json to_json(const Recipe& recipe, const Attribution& attribution) {
  ordered_json json = {{"attributed_recipe", recipe.name},
                       {"attributed_recipe_hash", recipe.hash},
                       {"error", finite_json(attribution.whole)},
                       {"error_with_nothing", finite_json(attribution.nothing)},
                       {"remarks", attribution.remarks}};
  for (const PartGroup& group : attribution.groups) {
    ordered_json entry = {{"group", group.name}};
    for (const Part& part : group.parts) {
      entry["parts"].push_back({{"name", part.name},
                                {"alone", number_or_null(part.alone)},
                                {"share_alone", number_or_null(attribution.share_alone(part))},
                                {"without", finite_json(part.without)},
                                {"share_without", finite_json(attribution.share_without(part))}});
    }
    const Remainder left = remainder_of(attribution, group);
    if (left.alone) {
      entry["remainder_alone"] = finite_json(*left.alone);
      entry["remainder_without"] = finite_json(left.without);
    }
    json["groups"].push_back(std::move(entry));
  }
  return json;
}

}  // namespace

int attribute(const std::vector<std::string>& arguments) {
  const Values values = parse_arguments(kAttribute, attribute_options(), arguments, {{"run", 1}});
  if (values.count("help") != 0) return ExitCode::kSuccess;
  const std::string name = required(values, "run", kAttribute);
  check_output_files(values, kAttribute, {"json"});
  PhaseLine phase;
  phase.begin("opening " + name);
  const CheckpointSource source = open_checkpoint_source(name, values, kAttribute);
  const std::vector<Recipe> recipes = recipes_of(values, source.run);
  require_unread(values, kAttribute, {"json"});
  const int threads = threads_of(values, kAttribute);
  const auto backend = make_backend(source.run.config.backend, threads);
  phase.begin("estimating the time");
  PartsLine parts(kAttribute);
  const std::vector<Attribution> attributions = attribute_gradients(
      *backend, source.run, source.step, recipes,
      {words_of(values, "group"), words_of(values, "layer")}, threads,
      [&](const std::string& part, std::size_t done, std::size_t total) {
        // The first part, in double precision, takes as long as many of the others.
        phase.begin(done == 0 ? part : "");
        if (done > 0) parts.begin(part, done - 1, total - 1);
      },
      [&](std::size_t gradients, double seconds) {
        phase.begin("");
        print_estimate(kAttribute, fmt::format("{} gradients", gradients), seconds);
      });
  parts.clear();
  print_step(source, *backend);
  bool has_remainder = false;
  for (std::size_t i = 0; i < recipes.size(); ++i) {
    if (i > 0) fmt::print("\n");
    has_remainder = print_attribution(recipes[i], attributions[i]) || has_remainder;
  }
  if (has_remainder) {
    fmt::print(
        "\nremainder: what the shares of a group leave of 100 %, for parts that interact, sources\n"
        "outside the group, and chance; below 0 where parts count the same error\n");
  }
  if (values.count("json") != 0) {
    ordered_json json = step_json(source, *backend);
    if (recipes.size() == 1) {
      json.update(to_json(recipes.front(), attributions.front()));
    } else {
      for (std::size_t i = 0; i < recipes.size(); ++i) {
        json["recipes"].push_back(to_json(recipes[i], attributions[i]));
      }
    }
    write_json(values["json"].as<std::string>(), json);
  }
  return ExitCode::kSuccess;
}

}  // namespace fp8lab::cli
