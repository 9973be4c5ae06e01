#include "src/cli/quantize_model.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <system_error>
#include <vector>

#include "emulation/base/input_error.hpp"
#include "emulation/spec/recipe.hpp"
#include "src/architecture/layer_names.hpp"
#include "src/backend/factory.hpp"
#include "src/cli/command.hpp"
#include "src/cli/finite_json.hpp"
#include "src/cli/inputs/model_source.hpp"
#include "src/cli/options/output_path.hpp"
#include "src/cli/options/seed_option.hpp"
#include "src/cli/progress.hpp"
#include "src/cli/sqnr_summary.hpp"
#include "src/config/config.hpp"
#include "src/config/reading/hub_cache.hpp"
#include "src/config/recipe/spec_words.hpp"
#include "src/io/files/file_kind.hpp"
#include "src/io/printable.hpp"
#include "src/model/linear/operand.hpp"
#include "src/model/weights/model_export.hpp"
#include "src/model/weights/weight_names.hpp"

namespace fp8lab::cli {
namespace {

using nlohmann::ordered_json;

/// One quantizer and its errors on one weight.
struct Measurement {
  std::string quantizer;
  bool of_recipe = false;
  double scale_bits = 0;  ///< scale bits per element
  OperandStatistics statistics{};
};

struct MeasuredWeight {
  TensorHeader header;
  std::string layer;
  std::vector<Measurement> measurements;
};

/// Errors of one quantizer over all weights.
struct Summary {
  std::string quantizer;
  bool of_recipe = false;
  std::int64_t weights = 0;
  SqnrSummary sqnr;
  double most_underflow = 0, most_saturation = 0;
};

class ModelQuantizer {
 public:
  ModelQuantizer(const Values& values, const ModelSource& source, Backend& backend)
      : source_(source),
        backend_(backend),
        recipe_(load_recipe(values["recipe"].as<std::string>())),
        seed_(values["seed"].as<std::uint64_t>()) {
    for (const std::string& words : values["compare"].as<std::vector<std::string>>()) {
      others_.push_back(parse_quant_spec(words));
    }
    std::vector<QuantSpec> specs = weight_specs(recipe_);
    specs.insert(specs.end(), others_.begin(), others_.end());
    check_seed(values, "quantize", specs);
    if (source.model) check_layer_names(recipe_, *source.model, "quantize");
    if (source.model && source.model->tie_word_embeddings) {
      tied_embedding_ = source.tensors->headers().front().name;
    }
    for (const TensorHeader& header : source.tensors->headers()) {
      const std::optional<std::string> layer = layer_of(header);
      if (!layer) continue;
      const std::size_t begin = layer->find('.'), end = layer->find('.', begin + 1);
      if (begin == std::string::npos) continue;
      layers_ = std::max(layers_, std::stoi(layer->substr(begin + 1, end - begin - 1)) + 1);
    }
  }

  const Recipe& recipe() const { return recipe_; }

  /// Measures all linear weights, in the order of the files.
  std::vector<MeasuredWeight> measure() {
    std::vector<MeasuredWeight> weights;
    std::int64_t all = 0, done = 0;
    for (const TensorHeader& header : source_.tensors->headers()) {
      all += layer_of(header) ? header.size() : 0;
    }
    const auto millions = [](std::int64_t count) {
      return static_cast<std::size_t>(count / 1'000'000);
    };
    PartsLine parts("quantize", PartsLine::First::alike);
    for (std::size_t i = 0; i < source_.tensors->headers().size(); ++i) {
      const TensorHeader& header = source_.tensors->headers()[i];
      const std::optional<std::string> layer = layer_of(header);
      if (!layer) continue;
      parts.begin("measuring " + header.name, millions(done), millions(all), "million weights");
      weights.push_back({header, *layer, measure_weight(i, *layer)});
      done += header.size();
    }
    if (weights.empty()) {
      throw InputError({.where = source_.name,
                        .reason = "no weight of a linear layer",
                        .accepted = "names such as model.layers.0.self_attn.q_proj.weight"});
    }
    return weights;
  }

 private:
  /// Returns the linear layer of a tensor; a tied embedding is also the weight of the head.
  std::optional<std::string> layer_of(const TensorHeader& header) const {
    if (header.shape.size() != 2 || header.size() == 0 || !is_weight_type(header.type)) {
      return std::nullopt;
    }
    if (header.name == tied_embedding_) return "lm_head";
    return layer_of_weight(header.name);
  }

  Measurement measure_with(const TensorView& weight, std::size_t index, const QuantSpec& spec) {
    const std::size_t mark = backend_.memory_mark();
    const std::string& name = source_.tensors->headers()[index].name;
    const QuantizedOperand operand =
        quantize_values(backend_, weight, false, spec, seed_ + index, name);
    const TensorView record = backend_.allocate(DType::u8, 1, sizeof(OperandStatistics));
    backend_.run(ops::MeasureOperand{.source = weight, .operand = operand, .record = record});
    Measurement measurement;
    measurement.quantizer = label(spec);
    measurement.scale_bits = scale_bits_per_element(spec, operand.rows, operand.k);
    backend_.download(&measurement.statistics, record);
    backend_.release_to(mark);
    return measurement;
  }

  std::vector<Measurement> measure_weight(std::size_t index, const std::string& layer) {
    const QuantSpec& own = recipe_.for_layer(layer, layers_).slot(Slot::fprop_w);
    const std::size_t mark = backend_.memory_mark();
    const TensorView weight = upload_weight(backend_, *source_.tensors, index, own);
    std::vector<Measurement> measurements;
    if (own.is_quantized()) {
      measurements.push_back(measure_with(weight, index, own));
      measurements.back().of_recipe = true;
    }
    for (const QuantSpec& other : others_) {
      measurements.push_back(measure_with(weight, index, other));
    }
    backend_.release_to(mark);
    return measurements;
  }

  const ModelSource& source_;
  Backend& backend_;
  Recipe recipe_;
  std::uint64_t seed_;
  std::vector<QuantSpec> others_;
  std::string tied_embedding_;  ///< empty if the head has weights of its own
  int layers_ = 0;
};

std::vector<Summary> summarize(const std::vector<MeasuredWeight>& weights) {
  std::vector<Summary> summaries;
  for (const MeasuredWeight& weight : weights) {
    for (const Measurement& one : weight.measurements) {
      auto found = std::find_if(summaries.begin(), summaries.end(), [&](const Summary& summary) {
        return summary.quantizer == one.quantizer && summary.of_recipe == one.of_recipe;
      });
      if (found == summaries.end()) {
        found = summaries.emplace(summaries.end());
        found->quantizer = one.quantizer;
        found->of_recipe = one.of_recipe;
      }
      const OperandStatistics& s = one.statistics;
      ++found->weights;
      found->sqnr.add(s, weight.header.name);
      found->most_underflow = std::max(found->most_underflow, s.underflow_fraction);
      found->most_saturation = std::max(found->most_saturation, s.saturation_fraction);
    }
  }
  return summaries;
}

std::vector<std::int64_t> top_channels(const OperandStatistics& s, std::int64_t channels) {
  std::vector<std::int64_t> top;
  for (int i = 0; i < std::min<std::int64_t>(OperandStatistics::kTopChannels, channels); ++i) {
    top.push_back(static_cast<std::int64_t>(s.top_channel[i]));
  }
  return top;
}

/// Returns the length of the longest quantizer's name.
template <class Row>
std::size_t widest(const std::vector<Row>& rows) {
  std::size_t width = 0;
  for (const Row& row : rows) width = std::max(width, row.quantizer.size());
  return width;
}

void print_weight(const MeasuredWeight& weight) {
  const OperandStatistics& s = weight.measurements.front().statistics;
  fmt::print(
      "{} ({}): {}\n  amax {:.6g}  rms {:.6g}  crest {:.4g}  kurtosis {:.4g}  "
      "channel outliers {:.4g}  top channels {}\n",
      printable(weight.header.name), fmt::join(weight.header.shape, ", "), weight.layer, s.amax,
      s.rms, s.crest_factor, s.kurtosis, s.channel_outlier_ratio,
      fmt::join(top_channels(s, weight.header.shape[1]), " "));
  const std::size_t width = widest(weight.measurements);
  for (const Measurement& one : weight.measurements) {
    fmt::print("  {} {:<{}} {:>8} dB  underflow {:<10.3g} saturated {:<10.3g} scale bits {:.4g}\n",
               one.of_recipe ? '*' : ' ', one.quantizer, width,
               decibel_text(one.statistics.sqnr_db, 3), one.statistics.underflow_fraction,
               one.statistics.saturation_fraction, one.scale_bits);
  }
}

void print_summary(const std::vector<MeasuredWeight>& weights, const std::string& recipe) {
  fmt::print("all weights of linear layers, * as recipe {} has it\n", recipe);
  const std::vector<Summary> summaries = summarize(weights);
  const std::size_t width = widest(summaries);
  for (const Summary& summary : summaries) {
    fmt::print(
        "  {} {:<{}} mean {:>8} dB  lowest {:>8} dB in {}{}; underflow up to {:.3g}, saturated "
        "up to {:.3g}\n",
        summary.of_recipe ? '*' : ' ', summary.quantizer, width,
        decibel_text(summary.sqnr.mean(), 3), decibel_text(summary.sqnr.lowest(), 3),
        summary.sqnr.lowest_name().empty() ? "none" : printable(summary.sqnr.lowest_name()),
        summary.sqnr.left_out(), summary.most_underflow, summary.most_saturation);
  }
}

/// Prints the `count` weights with the lowest SQNR under the first quantizer, which is the recipe's
/// if it has one; 0: all, in the order of the files.
void print_worst(const std::vector<MeasuredWeight>& weights, std::int64_t count) {
  std::vector<const MeasuredWeight*> order;
  for (const MeasuredWeight& weight : weights) order.push_back(&weight);
  const auto all = static_cast<std::int64_t>(order.size());
  if (count == 0 || count >= all) {
    fmt::print("\n");
    for (const MeasuredWeight* weight : order) print_weight(*weight);
    return;
  }
  const auto key = [](const MeasuredWeight* weight) {
    const double sqnr = weight->measurements.front().statistics.sqnr_db;
    return std::isnan(sqnr) ? std::numeric_limits<double>::infinity() : sqnr;
  };
  std::stable_sort(order.begin(), order.end(),
                   [&](const auto* a, const auto* b) { return key(a) < key(b); });
  fmt::print("\nthe {} of {} weights with the lowest SQNR (--worst 0: all; --json: every number)\n",
             count, all);
  for (std::int64_t i = 0; i < count; ++i) print_weight(*order[static_cast<std::size_t>(i)]);
}

ordered_json to_json(const MeasuredWeight& weight) {
  ordered_json object;
  object["tensor"] = weight.header.name;
  object["layer"] = weight.layer;
  object["shape"] = weight.header.shape;
  const OperandStatistics& first = weight.measurements.front().statistics;
  object["amax"] = finite_json(first.amax);
  object["rms"] = finite_json(first.rms);
  object["crest_factor"] = finite_json(first.crest_factor);
  object["kurtosis"] = finite_json(first.kurtosis);
  object["channel_outlier_ratio"] = finite_json(first.channel_outlier_ratio);
  object["top_channels"] = top_channels(first, weight.header.shape[1]);
  object["nonfinite_count"] = finite_json(first.nonfinite_count);
  for (const Measurement& one : weight.measurements) {
    const OperandStatistics& s = one.statistics;
    object["quantizers"].push_back({{"quantizer", one.quantizer},
                                    {"of_recipe", one.of_recipe},
                                    {"sqnr_db", finite_json(s.sqnr_db)},
                                    {"exact", is_exact(s)},
                                    {"mse", finite_json(s.mse)},
                                    {"cosine", finite_json(s.cosine)},
                                    {"underflow_fraction", finite_json(s.underflow_fraction)},
                                    {"saturation_fraction", finite_json(s.saturation_fraction)},
                                    {"scale_min", finite_json(s.scale_min)},
                                    {"scale_max", finite_json(s.scale_max)},
                                    {"zero_tile_fraction", finite_json(s.zero_tile_fraction)},
                                    {"scale_bits_per_element", one.scale_bits}});
  }
  return object;
}

void print_json(const std::vector<MeasuredWeight>& weights, const std::string& model,
                const std::string& recipe) {
  ordered_json document;
  document["model"] = model;
  document["recipe"] = recipe;
  for (const MeasuredWeight& weight : weights) document["weights"].push_back(to_json(weight));
  for (const Summary& summary : summarize(weights)) {
    document["summary"].push_back(
        {{"quantizer", summary.quantizer},
         {"of_recipe", summary.of_recipe},
         {"weights", summary.weights},
         {"exact", summary.sqnr.exact()},
         {"without_sqnr", summary.sqnr.undefined()},
         {"mean_sqnr_db", finite_json(summary.sqnr.mean())},
         {"lowest_sqnr_db", finite_json(summary.sqnr.lowest())},
         {"lowest_tensor", summary.sqnr.lowest_name()},
         {"largest_underflow_fraction", finite_json(summary.most_underflow)},
         {"largest_saturation_fraction", finite_json(summary.most_saturation)}});
  }
  fmt::print("{}\n", json_text(document));
}

}  // namespace

bool is_model(const std::string& input) {
  return is_folder(require_model_path(input)) || input.ends_with(".safetensors");
}

int quantize_model(const Values& values) {
  for (const char* option : {"spec", "slot", "transpose", "partner", "dequantized"}) {
    if (values.count(option) == 0) continue;
    throw InputError({.where = "quantize",
                      .key = fmt::format("--{}", option),
                      .reason = "is for a matrix; a model takes --recipe"});
  }
  required(values, "recipe", "quantize");
  const auto worst = values["worst"].as<std::int64_t>();
  if (worst < 0)
    throw InputError({.where = "quantize",
                      .key = "--worst",
                      .found = fmt::to_string(worst),
                      .accepted = "0 for all, or more"});
  if (values.count("json") != 0) {
    refuse_given(values, "quantize --json", {"worst"}, "is for the table; JSON has all weights");
  }
  if (values.count("out") != 0) {
    output_folder(values["out"].as<std::string>(), "quantize: --out");
    if (values.count("report") + values.count("json") == 0) {
      refuse_given(values, "quantize", {"compare"}, "needs --report or --json beside --out");
    }
  }
  const ModelSource source = open_model(values["input"].as<std::string>(), {});
  const auto backend =
      make_backend(values["backend"].as<std::string>(), values["threads"].as<int>());
  ModelQuantizer quantizer(values, source, *backend);
  const bool json = values.count("json") != 0;
  if (values.count("report") != 0 || json || values.count("out") == 0) {
    const std::vector<MeasuredWeight> weights = quantizer.measure();
    if (json) {
      print_json(weights, source.name, quantizer.recipe().name);
    } else {
      print_summary(weights, quantizer.recipe().name);
      print_worst(weights, worst);
    }
  }
  if (values.count("out") == 0) return ExitCode::kSuccess;
  ExportOptions options;
  options.recipe = quantizer.recipe();
  options.seed = values["seed"].as<std::uint64_t>();
  options.tokenizer = source.tokenizer;
  options.tokenizer_name = source.vocabulary.tokenizer;
  print_notes(export_notes(source.require_model(), options));
  PartsLine parts("quantize", PartsLine::First::alike);
  export_model(*backend, *source.tensors, source.require_model(), options,
               values["out"].as<std::string>(), parts.report());
  parts.clear();
  return ExitCode::kSuccess;
}

}  // namespace fp8lab::cli
