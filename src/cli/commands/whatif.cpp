// fp8lab whatif: shows which tensor breaks under which recipe, at one step of a run.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "emulation/base/input_error.hpp"
#include "emulation/recording/operation_words.hpp"
#include "src/architecture/layer_names.hpp"
#include "src/backend/factory.hpp"
#include "src/cli/command.hpp"
#include "src/cli/finite_json.hpp"
#include "src/cli/inputs/checkpoint_source.hpp"
#include "src/cli/options/backend_option.hpp"
#include "src/cli/options/output_path.hpp"
#include "src/cli/progress.hpp"
#include "src/cli/sqnr_summary.hpp"
#include "src/config/recipe/spec_words.hpp"
#include "src/diagnosis/accumulators.hpp"
#include "src/diagnosis/diagnosis_time.hpp"
#include "src/diagnosis/estimator_remark.hpp"
#include "src/diagnosis/known_histories.hpp"
#include "src/diagnosis/layer_choice.hpp"
#include "src/diagnosis/replay.hpp"
#include "src/diagnosis/step_tensors.hpp"

namespace fp8lab::cli {
namespace {

using nlohmann::ordered_json;

constexpr const char* kWhatif = "whatif";

Options whatif_options() {
  Options options(
      "fp8lab whatif RUN|CHECKPOINT --recipe NAME ... [--accumulator NAME ...]\n"
      "Runs one micro-batch of the run's current stage forward and backward from its checkpoint,\n"
      "in the run's own recipe. --recipe: quantizes the operands of each GEMM of that pass under\n"
      "each recipe, and prints the errors of operands and products, the worst first. Trains\n"
      "nothing. --accumulator: evaluates the checkpoint with the accumulation of another tensor\n"
      "core");
  options.add("run", value<std::string>(), "RUN, its directory, or CHECKPOINT, beside its run.h5");
  options.add("recipe", value<std::vector<std::string>>(), "recipe by name or file, repeatable");
  options.add("accumulator", value<std::vector<std::string>>(),
              "accumulator of every GEMM that it can compute, such as sm89_mma_fp8 (fp8lab info "
              "--accumulators), repeatable");
  options.add("layer", value<std::vector<std::string>>(),
              "of --recipe: layers as recipes name them, such as layers.*.mlp.down, or * for all, "
              "repeatable (default: all but lm_head)");
  options.add("tensors",
              "mean, deviation and amax of every tensor that the step computes, in the "
              "run's own recipe");
  add_step_options(options, quantizing_backends());
  options.add("worst", value<std::int64_t>(20), "products in the first table; 0: all");
  options.add("json", value<std::string>(), "also write every number to this file");
  return options;
}

std::vector<Recipe> named_recipes(const std::vector<std::string>& names) {
  std::vector<Recipe> recipes;
  for (const std::string& name : names) {
    Recipe recipe = load_recipe(name);
    for (const Recipe& other : recipes) {
      if (other.name != recipe.name) continue;
      throw InputError({.where = std::string(kWhatif),
                        .key = "--recipe",
                        .found = name,
                        .reason = fmt::format(": two recipes are called '{}'", recipe.name),
                        .accepted = "one of each name"});
    }
    recipes.push_back(std::move(recipe));
  }
  return recipes;
}

Accumulator named_accumulator(const std::string& name) {
  if (name.find('/') != std::string::npos) {
    throw InputError(
        {.where = std::string(kWhatif),
         .key = "--accumulator",
         .found = name,
         .accepted =
             "a name alone, such as sm89_mma_fp8; schedules are those of the run's recipe"});
  }
  return parse_gemm_spec(name).accumulator;
}

/// One GEMM of one layer under one recipe.
struct Product {
  const RecipeReplay* replay = nullptr;
  const LayerReplay* layer = nullptr;
  GemmRole role{};

  const ProductError& error() const { return layer->errors[role]; }
  const OperandStatistics& operand(Slot slot) const { return layer->operands[slot]; }
};

/// Returns the GEMMs by descending error; ties in the order of recipe, layer and GEMM.
std::vector<Product> products_of(const std::vector<RecipeReplay>& replays) {
  std::vector<Product> products;
  for (const RecipeReplay& replay : replays) {
    for (const LayerReplay& layer : replay.layers) {
      for (const GemmRole role : kGemmRoles) products.push_back({&replay, &layer, role});
    }
  }
  std::stable_sort(products.begin(), products.end(), [](const Product& a, const Product& b) {
    return a.error().whole > b.error().whole;
  });
  return products;
}

/// Returns the length of the longest of `texts` and `heading`.
std::size_t width_of(const std::string& heading, const std::vector<std::string>& texts) {
  std::size_t width = heading.size();
  for (const std::string& text : texts) width = std::max(width, text.size());
  return width;
}

struct Widths {
  std::size_t recipe, layer;
};

Widths widths_of(const std::vector<RecipeReplay>& replays) {
  std::vector<std::string> recipes, layers;
  for (const RecipeReplay& replay : replays) recipes.push_back(replay.recipe.name);
  for (const LayerReplay& layer : replays.front().layers) layers.push_back(layer.layer);
  return {width_of("recipe", recipes), width_of("layer", layers)};
}

/// Formats an error; "-": unknown.
std::string part_text(double error) {
  return std::isnan(error) ? "-" : fmt::format("{:.3g}", error);
}

void print_products(const std::vector<RecipeReplay>& replays, std::int64_t most) {
  const std::vector<Product> all = products_of(replays);
  const std::size_t count =
      most == 0 ? all.size() : std::min(all.size(), static_cast<std::size_t>(most));
  const auto [recipe, layer] = widths_of(replays);
  fmt::print(
      "\nproducts, the worst {} of {}: error of the result against exact arithmetic on "
      "unquantized\n"
      "operands, and its parts of accumulator and output and of an estimator, as fractions of the\n"
      "exact product (1: as large as that); of both operands SQNR in dB, and the fractions of "
      "their\n"
      "elements that underflow and saturate\n",
      count, all.size());
  fmt::print(
      "{:<{}}  {:<{}}  GEMM   {:>9} {:>9} {:>9}  {:<8} {:>7} {:>9} {:>9}  {:<8} {:>7} {:>9} "
      "{:>9}\n",
      "recipe", recipe, "layer", layer, "error", "of sums", "estimator", "A", "dB", "underflow",
      "saturated", "B", "dB", "underflow", "saturated");
  for (std::size_t i = 0; i < count; ++i) {
    const Product& product = all[i];
    fmt::print("{:<{}}  {:<{}}  {:<5}  {:>9.3g} {:>9} {:>9}", product.replay->recipe.name, recipe,
               product.layer->layer, layer, gemm_role_name(product.role), product.error().whole,
               part_text(product.error().accumulator), part_text(product.error().estimator));
    for (const Slot slot : {a_slot(product.role), b_slot(product.role)}) {
      const OperandStatistics& s = product.operand(slot);
      fmt::print("  {:<8} {:>7} {:>9.3g} {:>9.3g}", slot_name(slot), decibel_text(s.sqnr_db, 2),
                 s.underflow_fraction, s.saturation_fraction);
    }
    fmt::print("\n");
  }
}

/// A slot under one recipe, over the layers that round in it.
struct SlotSummary {
  std::int64_t layers = 0;
  SqnrSummary sqnr;  ///< by layer
  double most_underflow = 0, most_saturation = 0;
};

SlotSummary summarize(const RecipeReplay& replay, Slot slot) {
  SlotSummary summary;
  for (const LayerReplay& layer : replay.layers) {
    if (!layer.recipe.slot(slot).is_cast()) continue;
    const OperandStatistics& s = layer.operands[slot];
    ++summary.layers;
    summary.sqnr.add(s, layer.layer);
    summary.most_underflow = std::max(summary.most_underflow, s.underflow_fraction);
    summary.most_saturation = std::max(summary.most_saturation, s.saturation_fraction);
  }
  return summary;
}

/// A GEMM under one recipe, over all layers.
struct GemmSummary {
  double rms_error = 0, largest_error = 0;
  std::string largest;  ///< layer with the largest error
};

GemmSummary summarize(const RecipeReplay& replay, GemmRole role) {
  GemmSummary summary;
  double squares = 0;
  for (const LayerReplay& layer : replay.layers) {
    const double error = layer.errors[role].whole;
    squares += error * error;
    if (summary.largest.empty() || error > summary.largest_error) {
      summary.largest_error = error;
      summary.largest = layer.layer;
    }
  }
  summary.rms_error = std::sqrt(squares / static_cast<double>(replay.layers.size()));
  return summary;
}

void print_summaries(const std::vector<RecipeReplay>& replays) {
  const auto [recipe, layer] = widths_of(replays);
  fmt::print(
      "\nby slot, over the layers whose operand is rounded: SQNR in dB; the largest fraction of a\n"
      "layer's elements that underflows, and that saturates\n{:<{}}  slot      layers  {:>8} {:>9} "
      " "
      "{:<{}} {:>10} {:>10}\n",
      "recipe", recipe, "mean dB", "lowest dB", "in", layer, "underflow", "saturated");
  for (const Slot slot : kSlots) {
    for (const RecipeReplay& replay : replays) {
      const SlotSummary s = summarize(replay, slot);
      fmt::print("{:<{}}  {:<8}  {:>6}", replay.recipe.name, recipe, slot_name(slot), s.layers);
      if (s.layers > 0) {
        fmt::print("  {:>8} {:>9}  {:<{}} {:>10.3g} {:>10.3g}{}", decibel_text(s.sqnr.mean(), 2),
                   decibel_text(s.sqnr.lowest(), 2), s.sqnr.lowest_name(), layer, s.most_underflow,
                   s.most_saturation, s.sqnr.left_out());
      }
      fmt::print("\n");
    }
  }
  fmt::print(
      "\nby GEMM, over all layers: errors as fractions of the exact product\n{:<{}}  GEMM   {:>9} "
      "{:>9}  in\n",
      "recipe", recipe, "rms error", "largest");
  for (const GemmRole role : kGemmRoles) {
    for (const RecipeReplay& replay : replays) {
      const GemmSummary s = summarize(replay, role);
      fmt::print("{:<{}}  {:<5}  {:>9.3g} {:>9.3g}  {}\n", replay.recipe.name, recipe,
                 gemm_role_name(role), s.rms_error, s.largest_error, s.largest);
    }
  }
}

/// Describes how a replay differs from a run of its recipe, one sentence each.
std::vector<std::string> remarks(const RecipeReplay& replay) {
  std::vector<std::string> sentences;
  std::int64_t tensors = 0, layers = 0;
  std::string first_tensor, first_layer;
  for (const LayerReplay& layer : replay.layers) {
    for (const Slot slot : layer.without_history) {
      if (tensors++ == 0) first_tensor = amax_history_name(layer.layer, slot);
    }
    if (layer.smoothed_anew && layers++ == 0) first_layer = layer.layer;
  }
  if (tensors > 0) {
    sentences.push_back(history_remark(replay.recipe.name, tensors, first_tensor));
  }
  if (layers > 0) {
    sentences.push_back(
        fmt::format("recipe {}: the static smoothing factors of {} layers are those of this "
                    "micro-batch, as the "
                    "checkpoint has none that fit; the first is {}",
                    replay.recipe.name, layers, first_layer));
  }
  if (const auto remark = estimator_remark(replay.recipe)) sentences.push_back(*remark);
  if (!replay.recipe.attention.empty()) {
    sentences.push_back(
        fmt::format("recipe {} quantizes attention as well, which is not replayed; fp8lab assess "
                    "and eval compute it",
                    replay.recipe.name));
  }
  return sentences;
}

/// Returns true if a recipe rounds an operand of the layer.
bool is_quantized(const LayerReplay& layer) {
  return std::any_of(kSlots.begin(), kSlots.end(),
                     [&](Slot slot) { return layer.recipe.slot(slot).is_cast(); });
}

/// Names the replayed layers that the recipe leaves alone; empty if there are none.
std::string unquantized_layers(const RecipeReplay& replay, int layer_count) {
  std::vector<std::string> names;
  for (const LayerReplay& layer : replay.layers) {
    if (!is_quantized(layer)) names.push_back(layer.layer);
  }
  if (names.empty()) return {};
  return fmt::format(
      "recipe {}: {} of {} layers stay in {}, and their errors are the rounding of results: {}",
      replay.recipe.name, names.size(), replay.layers.size(),
      name_of(replay.recipe.activation_dtype), layer_pattern(names, layer_count));
}

void print_replays(const std::vector<RecipeReplay>& replays, std::int64_t worst, int layer_count) {
  for (const RecipeReplay& replay : replays) {
    for (const std::string& sentence : remarks(replay)) fmt::print("{}\n", sentence);
    const std::string unquantized = unquantized_layers(replay, layer_count);
    if (!unquantized.empty()) fmt::print("{}\n", unquantized);
  }
  print_products(replays, worst);
  print_summaries(replays);
}

ordered_json to_json(const RecipeReplay& replay) {
  ordered_json json = {{"recipe", replay.recipe.name}, {"recipe_hash", replay.recipe.hash}};
  json["remarks"] = remarks(replay);
  json["layers"] = ordered_json::array();
  for (const LayerReplay& layer : replay.layers) {
    ordered_json entry = {{"layer", layer.layer}, {"quantized", is_quantized(layer)}};
    for (const Slot slot : kSlots) {
      const OperandStatistics& s = layer.operands[slot];
      entry["operands"].push_back({{"slot", slot_name(slot)},
                                   {"quantizer", label(layer.recipe.slot(slot))},
                                   {"sqnr_db", finite_json(s.sqnr_db)},
                                   {"exact", is_exact(s)},
                                   {"underflow_fraction", finite_json(s.underflow_fraction)},
                                   {"saturation_fraction", finite_json(s.saturation_fraction)},
                                   {"amax", finite_json(s.amax)},
                                   {"rms", finite_json(s.rms)}});
    }
    for (const GemmRole role : kGemmRoles) {
      entry["products"].push_back(
          {{"gemm", gemm_role_name(role)},
           {"spec", label(layer.recipe.gemm(role))},
           {"relative_error", finite_json(layer.errors[role].whole)},
           {"operand_error", finite_json(layer.errors[role].operands)},
           {"estimator_error", finite_json(layer.errors[role].estimator)},
           {"accumulator_error", finite_json(layer.errors[role].accumulator)}});
    }
    json["layers"].push_back(std::move(entry));
  }
  return json;
}

void print_tensors(const std::vector<StepTensor>& tensors) {
  std::vector<std::string> layers, operations;
  for (const StepTensor& tensor : tensors) {
    layers.push_back(tensor.layer);
    operations.push_back(operation_words(tensor.operation) + ": " + tensor.output);
  }
  const std::size_t layer = width_of("layer", layers), operation = width_of("tensor", operations);
  fmt::print(
      "\ntensors of the micro-batch, in the order in which they are written: mean, standard\n"
      "deviation and amax in the tensor's own unit; zeros: fraction of the elements\n"
      "phase     {:<{}}  {:<{}}  {:>15}  {:>10}  {:>10}  {:>10}  {:>7}\n",
      "layer", layer, "tensor", operation, "shape", "mean", "deviation", "amax", "zeros");
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const StepTensor& tensor = tensors[i];
    fmt::print("{:<8}  {:<{}}  {:<{}}  {:>15}  {:>10.3g}  {:>10.3g}  {:>10.3g}  {:>7.3g}{}\n",
               tensor.phase, tensor.layer, layer, operations[i], operation,
               fmt::format("{} x {}", tensor.rows, tensor.cols), tensor.mean, tensor.deviation,
               tensor.amax, tensor.zeros,
               tensor.nonfinite == 0 ? "" : fmt::format("  {} not finite", tensor.nonfinite));
  }
}

ordered_json to_json(const StepTensor& tensor) {
  return {{"phase", tensor.phase},
          {"layer", tensor.layer},
          {"operation", tensor.operation},
          {"output", tensor.output},
          {"rows", tensor.rows},
          {"cols", tensor.cols},
          {"mean", finite_json(tensor.mean)},
          {"deviation", finite_json(tensor.deviation)},
          {"amax", finite_json(tensor.amax)},
          {"zeros", tensor.zeros},
          {"nonfinite", tensor.nonfinite}};
}

void print_accumulators(const std::vector<AccumulatorEvaluation>& rows, std::size_t layers,
                        const StageConfig& stage) {
  const auto name = [](const AccumulatorEvaluation& row) {
    return row.accumulator.empty() ? std::string("(as it is)") : row.accumulator;
  };
  std::vector<std::string> names;
  for (const AccumulatorEvaluation& row : rows) names.push_back(name(row));
  const std::size_t width = width_of("accumulator", names);
  fmt::print(
      "\nevaluated as other tensor cores accumulate: held-out loss of stage {} and its change in\n"
      "nats a token, and the logits of the micro-batch against those of the run as it is, rms and\n"
      "largest difference in nats\n{:<{}}  {:<10}  {:>9}  {:>10}  {:>10}  "
      "{:>10}  {:>10}\n",
      stage.name, "accumulator", width, "evidence", "layers", "loss", "change", "logits rms",
      "largest");
  for (const AccumulatorEvaluation& row : rows) {
    const std::string loss = row.loss ? fmt::format("{:.6f}", *row.loss) : "-";
    const std::string change =
        row.loss ? fmt::format("{:+.2e}", *row.loss - *rows.front().loss) : "-";
    const std::string count =
        row.accumulator.empty() ? "-" : fmt::format("{} of {}", row.layers, layers);
    fmt::print("{:<{}}  {:<10}  {:>9}  {:>10}  {:>10}  {:>10.3g}  {:>10.3g}\n", name(row), width,
               row.evidence.empty() ? "-" : row.evidence, count, loss, change, row.difference_rms,
               row.difference_largest);
  }
  fmt::print("logits of the run: rms {:.4g}\n", rows.front().logit_rms);
  if (!rows.front().loss) fmt::print("stage {} has no evaluation, so no loss\n", stage.name);
  for (const AccumulatorEvaluation& row : rows) {
    if (row.kept_because.empty()) continue;
    fmt::print("{}: the other layers keep their own; {}\n", row.accumulator, row.kept_because);
  }
}

ordered_json to_json(const AccumulatorEvaluation& row) {
  return {{"accumulator", row.accumulator},
          {"evidence", row.evidence},
          {"layers", row.layers},
          {"kept_because", row.kept_because},
          {"loss", row.loss ? finite_json(*row.loss) : ordered_json()},
          {"logit_rms", finite_json(row.logit_rms)},
          {"difference_rms", finite_json(row.difference_rms)},
          {"difference_largest", finite_json(row.difference_largest)}};
}

}  // namespace

int whatif(const std::vector<std::string>& arguments) {
  const Values values = parse_arguments(kWhatif, whatif_options(), arguments, {{"run", 1}});
  if (values.count("help") != 0) return ExitCode::kSuccess;
  const std::string name = required(values, "run", kWhatif);
  const std::vector<std::string> recipe_names = words_of(values, "recipe");
  const std::vector<std::string> accumulator_names = words_of(values, "accumulator");
  const bool wants_tensors = values.count("tensors") != 0;
  if (recipe_names.empty() && accumulator_names.empty() && !wants_tensors) {
    throw InputError(
        {.where = "whatif", .reason = "give --recipe NAME, --accumulator NAME or --tensors"});
  }
  if (recipe_names.empty()) refuse_given(values, kWhatif, {"layer", "worst"}, "is for --recipe");
  const auto worst = values["worst"].as<std::int64_t>();
  if (worst < 0)
    throw InputError({.where = "whatif",
                      .key = "--worst",
                      .found = fmt::to_string(worst),
                      .accepted = "numbers from 0 on"});
  check_output_files(values, kWhatif, {"json"});
  const std::vector<Recipe> recipes = named_recipes(recipe_names);
  std::vector<Accumulator> accumulators;
  for (const std::string& word : accumulator_names) accumulators.push_back(named_accumulator(word));

  PhaseLine phase;
  phase.begin("opening " + name);
  const CheckpointSource source = open_checkpoint_source(name, values, kWhatif);
  const CheckpointedRun& run = source.run;
  for (const Recipe& recipe : recipes) check_layer_names(recipe, run.config.model, kWhatif);
  const StageConfig& stage = run.stage();
  std::optional<DataSources> held_out;
  if (!accumulators.empty() && stage.eval) held_out = open_evaluation_data(source);
  require_unread(values, kWhatif, {"json"});
  const auto backend = make_backend(run.config.backend, threads_of(values, kWhatif));
  std::vector<RecipeReplay> replays;
  if (!recipes.empty()) {
    PartsLine parts(kWhatif);
    const std::vector<std::string> named = words_of(values, "layer");
    const std::size_t layers = chosen_layers(run.config.model, named).size();
    std::size_t done = 0;
    phase.begin("estimating the time");
    if (const auto seconds = replay_seconds(*backend, run, recipes, named)) {
      phase.begin("");
      print_estimate(kWhatif, fmt::format("{} layers under {} recipes", layers, recipes.size()),
                     *seconds);
    }
    phase.begin(fmt::format("the forward pass, then {} layers backward under {} recipes", layers,
                            recipes.size()));
    replays = replay_step(*backend, run, source.step, recipes, named, [&](const std::string& part) {
      phase.begin("");
      parts.begin("replaying " + part, done++, layers);
    });
    phase.begin("");
  }
  std::vector<AccumulatorEvaluation> rows;
  if (!accumulators.empty()) {
    rows = evaluate_accumulators(
        *backend, run, source.step, held_out ? &*held_out : nullptr, accumulators,
        [&](const std::string& part) { phase.begin("evaluating " + part); });
  }
  std::vector<StepTensor> tensors;
  if (wants_tensors) {
    phase.begin("measuring tensors");
    tensors = tensors_of_step(*backend, run, source.step);
  }
  phase.begin("");
  print_step(source, *backend);
  if (!replays.empty())
    print_replays(replays, worst, static_cast<int>(run.config.model.layer_count()));
  if (!rows.empty()) {
    print_accumulators(rows, declaration_of(run.config.model).linears().size(), stage);
  }
  if (wants_tensors) print_tensors(tensors);
  if (values.count("json") != 0) {
    ordered_json json = step_json(source, *backend);
    for (const RecipeReplay& replay : replays) json["recipes"].push_back(to_json(replay));
    for (const AccumulatorEvaluation& row : rows) json["accumulators"].push_back(to_json(row));
    for (const StepTensor& tensor : tensors) json["tensors"].push_back(to_json(tensor));
    write_json(values["json"].as<std::string>(), json);
  }
  return ExitCode::kSuccess;
}

}  // namespace fp8lab::cli
