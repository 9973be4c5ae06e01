// fp8lab export: writes a trained model as a folder that transformers and inference engines load.
#include <fmt/format.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <system_error>
#include <vector>

#include "emulation/base/error.hpp"
#include "emulation/base/input_error.hpp"
#include "src/architecture/layer_names.hpp"
#include "src/backend/factory.hpp"
#include "src/cli/command.hpp"
#include "src/cli/inputs/model_source.hpp"
#include "src/cli/options/backend_option.hpp"
#include "src/cli/options/output_path.hpp"
#include "src/cli/options/seed_option.hpp"
#include "src/cli/progress.hpp"
#include "src/config/config.hpp"
#include "src/config/reading/hugging_face.hpp"
#include "src/io/files/file_kind.hpp"
#include "src/model/weights/adapter_export.hpp"
#include "src/model/weights/model_export.hpp"
#include "src/train/run_record.hpp"

namespace fp8lab::cli {
namespace {

Options export_options() {
  Options options(
      "fp8lab export SOURCE DIR\n"
      "SOURCE is a run directory, a checkpoint, or a Hugging Face folder. DIR gets config.json,\n"
      "safetensors and the tokenizer's files; it must not exist or be empty. Of a model with "
      "low-rank\n"
      "adapters it gets these alone, as PEFT reads them");
  options.add("source", value<std::string>(), "SOURCE");
  options.add("dir", value<std::string>(), "DIR");
  options.add("dtype", one_of({"bf16", "f16", "f32"}, "bf16"),
              "type of the tensors that are not quantized");
  options.add(
      "recipe", value<std::string>(),
      "writes FP8 weights, quantized as fprop.w of this recipe: blocks such as 128x128 with "
      "weight_scale_inv, whole tensors and rows with weight_scale");
  options.add(
      "tokenizer", value<std::string>(),
      "folder whose tokenizer files are copied (default: SOURCE, or the Hugging Face folder that "
      "the run started from, or that of its training data)");
  options.add("shard-bytes", value<std::uint64_t>(5'000'000'000),
              "largest size of one file in bytes");
  options.add("seed", value<std::uint64_t>(0),
              "random seed of stochastic rounding and random signs");
  options.add("backend", one_of(quantizing_backends(), "cpu"), "what quantizes");
  options.add("threads", value<int>(0), "number of CPU threads; 0: one for each processor");
  return options;
}

StoredType dtype_of(const Values& values) {
  const auto& name = values["dtype"].as<std::string>();
  if (name == "bf16") return StoredType::bf16;
  return name == "f16" ? StoredType::f16 : StoredType::f32;
}

std::filesystem::path tokenizer_folder(const Values& values, const ModelSource& source) {
  if (values.count("tokenizer") == 0) {
    return source.tokenizer.empty() ? source.vocabulary.tokenizer_folder() : source.tokenizer;
  }
  const std::filesystem::path folder = values["tokenizer"].as<std::string>();
  if (!is_folder(folder)) {
    throw InputError({.where = "export",
                      .key = "--tokenizer",
                      .found = folder.string(),
                      .reason = ": is no folder"});
  }
  for (const char* name : {"tokenizer.json", "tokenizer.model", "vocab.json"}) {
    if (is_file(folder / name)) return folder;
  }
  throw InputError({.where = "export",
                    .key = "--tokenizer",
                    .found = folder.string(),
                    .reason = ": holds no tokenizer",
                    .accepted = "a folder with tokenizer.json, tokenizer.model or vocab.json"});
}

/// What the run of an adapter started from.
std::string base_of(const ModelSource& source) {
  if (!source.run) return {};
  return recorded_run(*source.run, source.name, {}).init_from.string();
}

std::string base_words(const std::string& base) {
  if (!base.empty()) return base;
  return "random weights, which no file holds: adapters that can be used need a run with "
         "--init-from";
}

}  // namespace

int export_command(const std::vector<std::string>& arguments) {
  const Values values =
      parse_arguments("export", export_options(), arguments, {{"source", 1}, {"dir", 1}});
  if (values.count("help") != 0) return ExitCode::kSuccess;
  if (values.count("recipe") == 0) {
    refuse_given(values, "export", {"seed", "backend", "threads"}, "quantizes by --recipe");
  }
  ExportOptions options;
  options.dtype = dtype_of(values);
  options.shard_bytes = values["shard-bytes"].as<std::uint64_t>();
  if (options.shard_bytes == 0) {
    throw InputError({.where = "export",
                      .key = "--shard-bytes",
                      .found = "0",
                      .accepted = "a size from 1 on, which one tensor may exceed"});
  }
  options.seed = values["seed"].as<std::uint64_t>();
  if (values.count("recipe") != 0) {
    options.recipe = load_recipe(values["recipe"].as<std::string>());
    check_seed(values, "export", weight_specs(*options.recipe));
  }
  const ModelSource source = open_model(required(values, "source", "export"), {});
  const std::string folder = required(values, "dir", "export");
  output_folder(folder, "export: DIR");
  options.tokenizer = tokenizer_folder(values, source);
  options.tokenizer_name = source.vocabulary.tokenizer;
  if (source.require_model().lora.rank > 0) {
    refuse_given(values, "export", {"recipe", "tokenizer", "shard-bytes"},
                 "is not for low-rank adapters, which have one file in high precision");
    PartsLine parts("export", PartsLine::First::alike);
    export_adapters(*source.tensors, source.require_model(), options.dtype, base_of(source), folder,
                    parts.report());
    parts.clear();
    fmt::print("{}: low-rank adapters of {}\n", folder, base_words(base_of(source)));
    return ExitCode::kSuccess;
  }
  const auto backend =
      make_backend(values["backend"].as<std::string>(), threads_of(values, "export"));
  if (options.recipe) check_layer_names(*options.recipe, source.require_model(), "export");
  print_notes(export_notes(source.require_model(), options));
  PartsLine parts("export", PartsLine::First::alike);
  export_model(*backend, *source.tensors, source.require_model(), options, folder, parts.report());
  parts.clear();
  fmt::print(
      "{}{}\n", folder,
      options.tokenizer.empty() ? ": without a tokenizer, which --tokenizer FOLDER copies" : "");
  return ExitCode::kSuccess;
}

}  // namespace fp8lab::cli
