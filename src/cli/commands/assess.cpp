// fp8lab assess: measures the cost of each recipe for a checkpoint, and locates it.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "emulation/base/input_error.hpp"
#include "src/architecture/layer_names.hpp"
#include "src/assessment/assessed_model.hpp"
#include "src/assessment/document_losses.hpp"
#include "src/assessment/gemm_time.hpp"
#include "src/assessment/gradient_errors.hpp"
#include "src/assessment/outliers.hpp"
#include "src/assessment/sensitivity.hpp"
#include "src/assessment/suggestion.hpp"
#include "src/backend/factory.hpp"
#include "src/cli/analysis_package.hpp"
#include "src/cli/command.hpp"
#include "src/cli/finite_json.hpp"
#include "src/cli/inputs/checkpoint_source.hpp"
#include "src/cli/inputs/evaluation_data.hpp"
#include "src/cli/inputs/loaded_model.hpp"
#include "src/cli/inputs/model_source.hpp"
#include "src/cli/options/backend_option.hpp"
#include "src/cli/options/output_path.hpp"
#include "src/cli/progress.hpp"
#include "src/config/config.hpp"
#include "src/data/mixture.hpp"
#include "src/io/files/atomic_file.hpp"
#include "src/train/checkpoint/checkpoint.hpp"
#include "src/train/checkpoint/identity.hpp"

namespace fp8lab::cli {
namespace {

using nlohmann::ordered_json;

constexpr const char* kAssess = "assess";

/// Written beside the page.
constexpr const char* kFactsFile = "facts.json";
constexpr const char* kSuggestedFile = "suggested.toml";
constexpr const char* kBaseline = "bf16";
constexpr std::int64_t kMostSequences = 150;  ///< default of --sequences

Options assess_options() {
  Options options(
      "fp8lab assess MODEL --data TEXT ... [--recipe NAME ...]\n"
      "Measures what each recipe costs a checkpoint, without training: the gap of the held-out "
      "loss\n"
      "to bf16 with a 95 % interval, gradient errors of one batch, and outliers; with --map, also\n"
      "where the gap arises. MODEL is a Hugging Face folder, a checkpoint or a run");
  options.add("model", value<std::string>(), "MODEL");
  options.add("data", value<std::vector<std::string>>(),
              "held-out documents: .jsonl or .txt files, or token shards; repeatable");
  options.add("form", one_of({"running_text", "prompt_response"}), "format of --data");
  options.add("recipe", value<std::vector<std::string>>(),
              "recipe to compare with bf16, by name or file; repeatable (default: infir2, "
              "infir2_fp32scale, te_current and mxfp8)");
  options.add("sequences", value<std::int64_t>(),
              "number of sequences for the losses (default: all data, at most 150)");
  options.add(
      "map", value<std::string>(),
      "also quantize each layer, and each operand of its forward GEMM, alone by this recipe");
  options.add("map-sequences", value<std::int64_t>(16), "number of sequences for --map");
  options.add(
      "margin", value<double>(0.005),
      "with --map: finds the cheapest change of the recipe whose gap is within this share of the "
      "loss, runs it, and writes it to --out as suggested.toml; 0: no search");
  options.add("gradient-sequences", value<std::int64_t>(2),
              "number of sequences for the gradients; 0: no backward pass");
  options.add("out", value<std::string>(), "folder of the page (default: assess/MODEL)");
  options.add("json", value<std::string>(), "also write the answer as JSON to this file");
  add_pass_options(options, quantizing_backends());
  add_python(options, "numpy, scipy, h5py, matplotlib and jinja2");
  return options;
}

const std::vector<std::string> kUsualRecipes = {"infir2", "infir2_fp32scale", "te_current",
                                                "mxfp8"};

/// Returns true if the forward passes of two recipes have the same bits.
bool have_same_forward(const Recipe& a, const Recipe& b, const AssessedModel& model) {
  if (a.activation_dtype != b.activation_dtype) return false;
  for (const AttentionSlot slot :
       {AttentionSlot::q, AttentionSlot::k, AttentionSlot::v, AttentionSlot::p}) {
    if (a.attention.slots[slot] != b.attention.slots[slot]) return false;
  }
  const auto count = static_cast<int>(model.model().layer_count());
  return std::all_of(model.linears().begin(), model.linears().end(), [&](const auto& linear) {
    const LinearRecipe &left = a.for_layer(linear.name, count),
                       &right = b.for_layer(linear.name, count);
    return left.slot(Slot::fprop_x) == right.slot(Slot::fprop_x) &&
           left.slot(Slot::fprop_w) == right.slot(Slot::fprop_w) &&
           left.gemm(GemmRole::fprop) == right.gemm(GemmRole::fprop);
  });
}

ordered_json to_json(const std::vector<AssessedDocument>& documents) {
  ordered_json json = ordered_json::array();
  for (const AssessedDocument& document : documents) {
    json.push_back({document.source, document.index, document.tokens});
  }
  return json;
}

/// Returns the text of token `index` of the batch; empty if ids cannot be decoded to text.
std::string text_of(const Vocabulary& vocabulary, const Batch& batch, std::int64_t index) {
  if (!vocabulary.has_text()) return {};
  return vocabulary.decode({batch[kTokens][static_cast<std::size_t>(index)]});
}

ordered_json token_json(const Vocabulary& vocabulary, const Batch& batch, std::int64_t index) {
  const auto at = static_cast<std::size_t>(index);
  return {{"index", index},
          {"id", batch[kTokens][at]},
          {"text", text_of(vocabulary, batch, index)},
          {"position", batch[kPositions][at]}};
}

ordered_json to_json(const Outliers& outliers, const AssessedModel& model, const Batch& batch,
                     const Vocabulary& vocabulary) {
  ordered_json json = {{"inputs", ordered_json::array()}, {"sinks", ordered_json::array()}};
  for (const InputOutliers& input : outliers.inputs) {
    json["inputs"].push_back({{"layer", model.linears()[input.linear].name},
                              {"amax", input.amax},
                              {"median", input.median},
                              {"channel", input.channel},
                              {"channel_ratio", input.channel_ratio},
                              {"token_ratio", input.token_ratio},
                              {"token", token_json(vocabulary, batch, input.token)}});
  }
  for (const AttentionSink& sink : outliers.sinks) {
    json["sinks"].push_back(
        {{"share", sink.share}, {"token", token_json(vocabulary, batch, sink.token)}});
  }
  return json;
}

ordered_json to_json(const SensitivityMap& map, const std::string& recipe,
                     const AssessedModel& model) {
  ordered_json json = {{"recipe", recipe},
                       {"documents", to_json(map.baseline.documents)},
                       {"baseline", map.baseline.sums},
                       {"replicates", ordered_json::array()},
                       {"whole", map.recipe.sums},
                       {"layers", ordered_json::array()}};
  for (const DocumentLosses& one : map.replicates) json["replicates"].push_back(one.sums);
  for (const LayerSensitivity& layer : map.layers) {
    ordered_json entry = {{"layer", model.linears()[layer.linear].name},
                          {"both", layer.layer.sums}};
    if (layer.x) entry["x"] = layer.x->sums;
    if (layer.w) entry["w"] = layer.w->sums;
    json["layers"].push_back(std::move(entry));
  }
  return json;
}

ordered_json to_json(const RecipeGradient& gradient, const std::string& recipe,
                     const AssessedModel& model) {
  ordered_json json = {{"recipe", recipe},
                       {"error", finite_json(gradient.error)},
                       {"cosine", finite_json(gradient.cosine)},
                       {"layers", ordered_json::array()}};
  for (const LayerGradient& layer : gradient.layers) {
    ordered_json entry = {{"layer", model.linears()[layer.linear].name},
                          {"error", finite_json(layer.error)},
                          {"cosine", finite_json(layer.cosine)}};
    for (const Slot slot : kSlots) {
      entry["sqnr_db"][slot_name(slot)] = finite_json(layer.sqnr_db[slot]);
    }
    json["layers"].push_back(std::move(entry));
  }
  return json;
}

ordered_json to_json(const Suggestion& suggestion) {
  ordered_json json = {{"margin", suggestion.margin},
                       {"card", kRatedCard},
                       {"tokens", kRatedTokens},
                       {"tried", ordered_json::array()},
                       {"chosen", nullptr}};
  for (const TriedRecipe& tried : suggestion.tried) {
    json["tried"].push_back({{"words", tried.words},
                             {"gap", finite_json(tried.gap)},
                             {"layers", tried.layers},
                             {"seconds", nullptr}});
    if (tried.seconds) json["tried"].back()["seconds"] = *tried.seconds;
  }
  if (suggestion.chosen) json["chosen"] = *suggestion.chosen;
  return json;
}

/// Returns packed sequences of `data`, one per micro-batch, as in training.
std::vector<Batch> first_batches(const DataSources& data, std::int64_t count, std::int64_t length) {
  Mixture mixture(data, 0, 0);
  std::vector<Batch> batches;
  for (std::int64_t i = 0; i < count; ++i) batches.push_back(mixture.next(1, length));
  return batches;
}

/// Opens the data named by --data, or else the run's own evaluation data.
DataSources open_assessed_data(const ModelSource& source, const Values& values, RunConfig& run) {
  StageConfig& stage = run.stages.back();
  if (!stage.eval) {
    throw InputError({.where = "assess",
                      .key = "--data",
                      .reason = fmt::format(
                          "is missing: {} is no run with held-out data of its own", source.name)});
  }
  const bool own = values.count("data") == 0;
  if (own) stage.eval->data = source.places.evaluation_data(stage);
  DataSources data = open_sources(stage.eval->data, source.vocabulary, kAssess);
  if (own) {
    source.require_unchanged("evaluation data of stage " + stage.name, content_hash(data),
                             "name data with --data");
  }
  print_notes(vocabulary_notes(data, source.vocabulary));
  print_notes(document_notes(values, stage.eval->data, data));
  check_targets(data, stage.sequence_length, kAssess);
  return data;
}

/// Returns the baseline and then each named recipe once.
std::vector<Recipe> assessed_recipes(const Values& values) {
  std::vector<std::string> names = {kBaseline};
  const std::vector<std::string> asked =
      values.count("recipe") != 0 ? values["recipe"].as<std::vector<std::string>>() : kUsualRecipes;
  names.insert(names.end(), asked.begin(), asked.end());
  if (values.count("map") != 0) names.push_back(values["map"].as<std::string>());
  std::vector<Recipe> recipes;
  for (const std::string& name : names) {
    Recipe recipe = load_recipe(name);
    const bool known = std::any_of(recipes.begin(), recipes.end(),
                                   [&](const Recipe& one) { return one.hash == recipe.hash; });
    if (!known) recipes.push_back(std::move(recipe));
  }
  return recipes;
}

std::int64_t positive(const Values& values, const char* option, std::int64_t least) {
  const auto number = values[option].as<std::int64_t>();
  if (number < least) {
    throw InputError({.where = "assess",
                      .key = fmt::format("--{}", option),
                      .found = fmt::to_string(number),
                      .accepted = fmt::format("numbers from {} on", least)});
  }
  return number;
}

/// Shortens the sequences of a stage to what the data fill without a document that is read twice.
/// Returns their length.
std::int64_t fill_sequences(const DataSources& data, StageConfig& stage) {
  const std::int64_t asked = stage.sequence_length;
  stage.sequence_length = length_filled_by(data, asked);
  if (stage.sequence_length < asked) {
    print_notes(
        {fmt::format("the data fill no sequence of {} tokens: sequences have {}, since no "
                     "document counts twice",
                     asked, stage.sequence_length)});
  }
  return stage.sequence_length;
}

/// Returns the number of sequences for the losses: the requested one, or all
/// of the data up to a limit.
std::int64_t loss_sequences(const Values& values, const DataSources& data, std::int64_t length) {
  const std::int64_t whole = sequences_of(data, length);
  if (values.count("sequences") == 0) return std::min(whole, kMostSequences);
  const std::int64_t asked = positive(values, "sequences", 1);
  if (asked > whole) {
    print_notes(
        {fmt::format("the data fill {} sequences of {} tokens: --sequences {} is taken as "
                     "{}, since no document counts twice",
                     whole, length, asked, whole)});
  }
  return std::min(asked, whole);
}

class Stopwatch {
 public:
  double seconds() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - began_).count();
  }

 private:
  std::chrono::steady_clock::time_point began_ = std::chrono::steady_clock::now();
};

/// Returns the folder of the page.
std::filesystem::path page_folder(const ModelSource& source, const Values& values) {
  if (values.count("out") != 0) {
    return output_folder(values["out"].as<std::string>(), "assess: --out");
  }
  const std::filesystem::path model = std::filesystem::absolute(source.name).lexically_normal();
  const std::string name = model.has_filename() ? model.filename() : model.parent_path().filename();
  return output_folder("assess/" + name, "assess: --out");
}

/// Tells how long losses, map and gradients will take, unless that is seconds. The search for
/// outliers is shorter.
void tell_estimate(double losses, double map, std::size_t passes, double gradients) {
  constexpr double kLeastSaid = 10;
  if (losses + map + gradients < kLeastSaid) return;
  std::string text = fmt::format("assess: about {:.0f} s for the losses", losses);
  if (passes > 0) text += fmt::format(", {:.0f} s for the {} passes of the map", map, passes);
  text += ", then outliers";
  if (gradients > 0) text += fmt::format(", and {:.0f} s for the gradients", gradients);
  text += " ...\n";
  std::fputs(text.c_str(), stderr);
}

/// Computes the losses under all recipes; recipes with the same forward pass are evaluated once.
/// `first_taken` gets the seconds of the baseline's pass over the data.
ordered_json losses_of(AssessedModel& model, const std::vector<Recipe>& recipes,
                       const DataSources& data, std::int64_t sequences,
                       std::vector<std::vector<std::string>>& remarks, ordered_json& documents,
                       const std::function<void(double seconds)>& first_taken) {
  PartsLine parts(kAssess);
  ordered_json rows = ordered_json::array();
  for (std::size_t i = 0; i < recipes.size(); ++i) {
    ordered_json row = {{"name", recipes[i].name}, {"hash", recipes[i].hash}};
    parts.begin("losses under " + recipes[i].name, i, recipes.size());
    for (std::size_t j = 0; j < i && !row.contains("same_forward_as"); ++j) {
      if (!have_same_forward(recipes[i], recipes[j], model)) continue;
      row["same_forward_as"] = recipes[j].name;
      row["loss"] = rows[j]["loss"];
      row["sums"] = rows[j]["sums"];
    }
    if (!row.contains("same_forward_as")) {
      model.under(model.runnable(recipes[i], remarks[i]), [&](Transformer& transformer) {
        const Stopwatch of_pass;
        const DocumentLosses losses = document_losses(model, transformer, data, sequences);
        if (i == 0) {
          documents = to_json(losses.documents);
          first_taken(of_pass.seconds());
        }
        row["loss"] = finite_json(losses.mean);
        row["sums"] = ordered_json::array();
        for (const double sum : losses.sums) row["sums"].push_back(finite_json(sum));
      });
    }
    row["remarks"] = remarks[i];
    rows.push_back(std::move(row));
  }
  return rows;
}

}  // namespace

int assess(const std::vector<std::string>& arguments) {
  const Values values = parse_arguments(kAssess, assess_options(), arguments, {{"model", 1}});
  if (values.count("help") != 0) return ExitCode::kSuccess;
  if (values.count("map") == 0) {
    refuse_given(values, kAssess, {"map-sequences", "margin"}, "is for --map");
  }
  const auto margin = values["margin"].as<double>();
  if (!(margin >= 0.0 && margin < 1.0)) {
    throw InputError({.where = "assess",
                      .key = "--margin",
                      .found = fmt::to_string(margin),
                      .accepted = "a share of the loss from 0 to 1, such as 0.005"});
  }
  check_output_files(values, kAssess, {"json"});
  const std::vector<Recipe> recipes = assessed_recipes(values);
  const ModelSource source =
      open_model(required(values, "model", kAssess), folders_to_look_in(values, kAssess));
  const std::filesystem::path folder = page_folder(source, values);
  const RunConfig plain = pass_run(source, values, kAssess);
  for (const Recipe& recipe : recipes) check_layer_names(recipe, plain.model, kAssess);
  OptionAssignments assignments(values, kAssess);
  add_data(values, last_stage(plain).name, assignments);
  RunConfig run = pass_run(source, values, kAssess, assignments);
  require_accepted_backend(values, run, source.name, kAssess);
  const auto interpreter = values["python"].as<std::string>();
  if (const int code = run_analysis(interpreter, kAssess, {"--check"}, "the check"); code != 0) {
    return code;
  }
  const StageConfig& stage = run.stages.back();
  PhaseLine phase;
  phase.begin("opening the data");
  const DataSources data = open_assessed_data(source, values, run);
  require_unread(values, kAssess, {"json"});
  for (const char* name : {kFactsFile, kSuggestedFile}) {
    require_unread(folder / name, "assess: --out");
  }
  const std::int64_t length = fill_sequences(data, run.stages.back());
  const std::int64_t sequences = loss_sequences(values, data, length);
  const std::int64_t for_gradients = std::min(positive(values, "gradient-sequences", 0), sequences);
  const std::int64_t for_map = std::min(positive(values, "map-sequences", 1), sequences);
  phase.begin("loading weights of " + source.name);
  const auto backend = make_backend(run.backend, threads_of(values, kAssess));
  const AmaxHistories histories =
      source.checkpoint != nullptr ? read_amax_histories(*source.checkpoint) : AmaxHistories{};
  BatchShape shape{stage.micro_batch_sequences, length, run.attention, {}};
  shape.memory.loss_chunk = run.memory.loss_chunk;
  ordered_json facts = {{"model", source.name},
                        {"parameters", declaration_of(run.model).weights()},
                        {"backend", backend->name()},
                        {"device", backend->device()},
                        {"sequences", sequences},
                        {"sequence_length", length},
                        {"micro_batch_sequences", shape.sequences},
                        {"data", content_hash(data)},
                        {"sources", ordered_json::array()}};
  for (const auto& corpus : data.corpora)
    facts["sources"].push_back(corpus->records().front().name);
  std::vector<std::vector<std::string>> remarks(recipes.size());
  ordered_json seconds;
  std::optional<Suggestion> suggestion;
  {
    AssessedModel model(*backend, run, *source.tensors, source.name, histories, shape);
    phase.begin("");
    const Stopwatch of_losses;
    const Recipe* mapped_recipe = nullptr;
    if (values.count("map") != 0) {
      const std::string hash = load_recipe(values["map"].as<std::string>()).hash;
      mapped_recipe = &*std::find_if(recipes.begin(), recipes.end(),
                                     [&](const Recipe& one) { return one.hash == hash; });
    }
    double of_gradients_about = 0;  // seconds
    const auto estimate = [&](double of_pass) {
      std::size_t different = 0;
      for (std::size_t i = 0; i < recipes.size(); ++i) {
        different += std::none_of(recipes.begin(), recipes.begin() + static_cast<std::ptrdiff_t>(i),
                                  [&](const Recipe& one) {
                                    return have_same_forward(one, recipes[i], model);
                                  })
                         ? 1
                         : 0;
      }
      const std::size_t passes = mapped_recipe != nullptr ? map_passes(model, *mapped_recipe) : 0;
      const double share = static_cast<double>(for_map) / static_cast<double>(sequences);
      // A backward pass has twice the products of a forward pass.
      of_gradients_about = 3.0 * of_pass * static_cast<double>(for_gradients) /
                           static_cast<double>(sequences) * static_cast<double>(recipes.size());
      tell_estimate(of_pass * static_cast<double>(different),
                    of_pass * share * static_cast<double>(passes), passes, of_gradients_about);
    };
    facts["recipes"] =
        losses_of(model, recipes, data, sequences, remarks, facts["documents"], estimate);
    seconds["losses"] = of_losses.seconds();
    if (const Recipe* mapped = mapped_recipe) {
      const Stopwatch of_map;
      std::vector<std::string> said;
      const Recipe baseline = model.runnable(recipes.front(), said);
      PartsLine parts(kAssess);
      const SensitivityMap map =
          map_sensitivity(model, baseline, model.runnable(*mapped, said), data, for_map,
                          [&](const std::string& layer, std::size_t done, std::size_t total) {
                            parts.begin("map: " + layer, done, total);
                          });
      parts.clear();
      facts["map"] = to_json(map, mapped->name, model);
      facts["map"]["sequences"] = for_map;
      seconds["map"] = of_map.seconds();
      if (margin > 0.0) {
        const Stopwatch of_suggestion;
        const auto loss_of = [&](const Recipe& recipe) {
          double loss = 0;
          model.under(model.runnable(recipe, said), [&](Transformer& transformer) {
            loss = document_losses(model, transformer, data, for_map).loss();
          });
          return loss;
        };
        SuggestionPlanner planner(model, *mapped, map, loss_of, [&](const std::string& words) {
          phase.begin("running " + mapped->name + ", " + words);
        });
        suggestion = planner.plan(margin);
        facts["suggestion"] = to_json(*suggestion);
        seconds["suggestion"] = of_suggestion.seconds();
      }
    }
    const Stopwatch of_outliers;
    phase.begin("looking for outliers");
    std::vector<Batch> batch = first_batches(data, 1, length);
    if (shape.sequences > 1) batch = {Mixture(data, 0, 0).next(shape.sequences, length)};
    std::vector<std::string> said;
    facts["outliers"] =
        to_json(find_outliers(model, model.runnable(recipes.front(), said), batch.front()), model,
                batch.front(), data.vocabulary());
    seconds["outliers"] = of_outliers.seconds();
    if (for_gradients > 0) {
      const Stopwatch of_gradients;
      PartsLine parts(kAssess, PartsLine::First::alike);
      phase.begin("");
      print_estimate(
          kAssess,
          fmt::format("gradients of {} sequences under {} recipes", for_gradients, recipes.size()),
          of_gradients_about);
      std::vector<Recipe> runnable;
      for (const Recipe& recipe : recipes) runnable.push_back(model.runnable(recipe, said));
      BatchShape one = shape;
      one.sequences = 1;
      const std::vector<RecipeGradient> gradients =
          gradient_errors(*backend, run.model, *source.tensors, source.name, histories, one,
                          first_batches(data, for_gradients, length), runnable, run.seed,
                          [&](const std::string& recipe, std::size_t done, std::size_t total) {
                            parts.begin("gradients under " + recipe, done, total);
                          });
      facts["gradients"] = {{"sequences", for_gradients}, {"recipes", ordered_json::array()}};
      for (std::size_t i = 0; i < recipes.size(); ++i) {
        facts["gradients"]["recipes"].push_back(to_json(gradients[i], recipes[i].name, model));
      }
      seconds["gradients"] = of_gradients.seconds();
    }
  }
  facts["seconds"] = seconds;
  phase.begin("");
  std::filesystem::create_directories(folder);
  if (suggestion && suggestion->chosen) {
    write_file_atomically(folder / kSuggestedFile, suggestion->tried[*suggestion->chosen].text);
  }
  const std::filesystem::path file = folder / kFactsFile;
  write_json(file.string(), facts);
  std::vector<std::string> words = {file.string(), "--out=" + folder.string()};
  if (values.count("json") != 0) words.push_back("--json=" + values["json"].as<std::string>());
  return run_analysis(interpreter, kAssess, std::move(words), "the page");
}

}  // namespace fp8lab::cli
