// fp8lab convert: a model's weights from BF16 to the files of quantized models, between those, and
// back.
#include <fmt/format.h>

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "emulation/base/error.hpp"
#include "src/backend/factory.hpp"
#include "src/cli/command.hpp"
#include "src/cli/finite_json.hpp"
#include "src/cli/options/backend_option.hpp"
#include "src/cli/options/output_path.hpp"
#include "src/cli/options/seed_option.hpp"
#include "src/cli/progress.hpp"
#include "src/cli/sqnr_summary.hpp"
#include "src/config/reading/hub_cache.hpp"
#include "src/config/recipe/spec_words.hpp"
#include "src/io/printable.hpp"
#include "src/model_files/conversion.hpp"
#include "src/model_files/model_doctor.hpp"

namespace fp8lab::cli {
namespace {

using nlohmann::ordered_json;

Options convert_options() {
  Options options(
      "fp8lab convert MODEL DIR --to TARGET\n"
      "MODEL is a Hugging Face folder of any family, in BF16 or quantized; DIR must not exist or "
      "be\n"
      "empty. TARGET is bf16, f16, f32, or DIALECT[:SCHEME][:CHANGE]:\n"
      "  fp8[:RxC|tensor][:ue8m0|e8m0|fnuz]             transformers, DeepSeek; RxC is 128x128\n"
      "  compressed-tensors[:channel|tensor|RxC|mxfp8|mxfp4|nvfp4]\n"
      "  modelopt[:tensor|channel|128x128|mxfp8|nvfp4]\n"
      "  torchao[:channel|tensor|mxfp8|nvfp4]\n"
      "Codes are kept where the target can hold them. Says what each tensor lost");
  options.add("source", value<std::string>(), "MODEL");
  options.add("dir", value<std::string>(), "DIR");
  options.add("to", value<std::string>(), "TARGET");
  options.add(
      "spec", value<std::string>(),
      "quantizer in place of the target's own, such as infir2:fprop.w; its format, tile and "
      "kind of scale must be the target's");
  options.add("ignore", value<std::vector<std::string>>(),
              "modules that stay as they are: a name, a part of one between dots, one with *, or "
              "re:EXPRESSION; repeatable. Embeddings, heads and routers always stay");
  options.add("input-scale", value<float>(),
              "scale of the inputs of each layer, for modelopt:tensor");
  options.add("shard-bytes", value<std::uint64_t>(5'000'000'000),
              "largest size of one file in bytes");
  options.add("seed", value<std::uint64_t>(0), "random seed of stochastic rounding");
  options.add("backend", one_of(quantizing_backends(), "cpu"), "what quantizes");
  options.add("threads", value<int>(0), "number of CPU threads; 0: one for each processor");
  options.add("json", "machine-readable");
  return options;
}

ConversionOptions options_of(const Values& values) {
  ConversionOptions options;
  options.target = parse_target(required(values, "to", "convert"));
  options.ignored = words_of(values, "ignore");
  options.shard_bytes = values["shard-bytes"].as<std::uint64_t>();
  if (options.shard_bytes == 0) {
    throw Error(
        "convert: --shard-bytes 0; accepted: a size from 1 on, which one tensor may exceed");
  }
  options.seed = values["seed"].as<std::uint64_t>();
  if (!options.target.layout) {
    refuse_given(values, "convert", {"spec", "ignore", "input-scale", "seed", "backend", "threads"},
                 "is for quantized targets");
    return options;
  }
  QuantSpec spec = spec_of_layout(*options.target.layout);
  if (values.count("spec") != 0) {
    spec = parse_quant_spec(values["spec"].as<std::string>());
    const std::string why = refuse_spec(*options.target.layout, spec);
    if (!why.empty()) {
      throw Error(fmt::format("convert: --spec {}: {}, which --to {} needs",
                              values["spec"].as<std::string>(), why,
                              values["to"].as<std::string>()));
    }
    options.spec = spec;
  }
  check_seed(values, "convert", std::span(&spec, 1));
  if (values.count("input-scale") != 0) {
    options.input_scale = values["input-scale"].as<float>();
    if (!(*options.input_scale > 0) || !std::isfinite(*options.input_scale)) {
      throw Error(fmt::format("convert: --input-scale {}: accepted: a finite number above 0",
                              *options.input_scale));
    }
  }
  return options;
}

ordered_json to_json(const ConvertedTensor& one) {
  const bool is_exact = one.sqnr_db == std::numeric_limits<double>::infinity();
  return {{"tensor", one.name},
          {"shape", one.shape},
          {"from", one.from},
          {"to", one.to},
          {"codes_kept", one.is_copied},
          {"exact", is_exact},
          {"sqnr_db", finite_json(one.sqnr_db)},
          {"max_error", one.max_error},
          {"amax", one.largest}};
}

void print_result(const Conversion& result, const std::string& folder, const Values& values) {
  if (values.count("json") != 0) {
    ordered_json document;
    document["folder"] = folder;
    document["to"] = values["to"].as<std::string>();
    document["copied"] = result.copied;
    document["tensors"] = ordered_json::array();
    for (const ConvertedTensor& one : result.tensors) document["tensors"].push_back(to_json(one));
    fmt::print("{}\n", json_text(document));
    return;
  }
  double sum = 0, lowest = std::numeric_limits<double>::infinity();
  std::size_t exact = 0, kept = 0, finite = 0;
  std::string lowest_name;
  for (const ConvertedTensor& one : result.tensors) {
    fmt::print("{} ({}): {} to {}: SQNR {} dB, largest error {:.4g} of {:.4g}{}\n",
               printable(one.name), fmt::join(one.shape, ", "), one.from, one.to,
               decibel_text(one.sqnr_db, 2), one.max_error, one.largest,
               one.is_copied ? ", codes kept" : "");
    kept += one.is_copied;
    exact += one.sqnr_db == std::numeric_limits<double>::infinity();
    if (!std::isfinite(one.sqnr_db)) continue;
    ++finite;
    sum += one.sqnr_db;
    if (one.sqnr_db >= lowest) continue;
    lowest = one.sqnr_db;
    lowest_name = one.name;
  }
  fmt::print("{}: {} tensors converted, {} with their codes kept, {} exact, {} copied", folder,
             result.tensors.size(), kept, exact, result.copied);
  if (finite > 0) {
    fmt::print("; SQNR mean {:.2f} dB, lowest {:.2f} dB in {}", sum / static_cast<double>(finite),
               lowest, printable(lowest_name));
  }
  fmt::print("\n");
}

/// What the doctor calls an error is not converted.
void refuse_errors(const std::string& source, const std::vector<ModelFinding>& findings) {
  for (const ModelFinding& one : findings) {
    if (one.severity != Severity::error || one.kind == "config_missing") continue;
    throw Error(fmt::format("{}: {}: {}; `fp8lab doctor` says more", source, one.tensor, one.text));
  }
}

}  // namespace

int convert(const std::vector<std::string>& arguments) {
  const Values values =
      parse_arguments("convert", convert_options(), arguments, {{"source", 1}, {"dir", 1}});
  if (values.count("help") != 0) return ExitCode::kSuccess;
  const ConversionOptions options = options_of(values);
  const std::string source = existing_model_path(required(values, "source", "convert"));
  const std::string folder = required(values, "dir", "convert");
  if (!is_model_folder(source)) {
    throw Error(
        fmt::format("{}: holds no model; accepted: a Hugging Face folder, or a safetensors "
                    "file (a run: fp8lab export)",
                    source));
  }
  output_folder(folder, "convert: DIR");
  std::vector<ModelFinding> findings;
  ModelFolder model = open_model_folder(source, findings);
  check_claims(model, findings);
  refuse_errors(source, findings);
  PartsLine parts("convert", PartsLine::First::alike);
  if (!model.weights.empty()) {  // scales and codes that are no numbers, or of another format
    check_values(model, parts.report(), findings);
    parts.clear();
    refuse_errors(source, findings);
  }
  const auto backend =
      make_backend(values["backend"].as<std::string>(), threads_of(values, "convert"));
  const Conversion result = convert_model(*backend, model, options, folder, parts.report());
  parts.clear();
  print_notes(result.notes);
  print_result(result, folder, values);
  return ExitCode::kSuccess;
}

}  // namespace fp8lab::cli
