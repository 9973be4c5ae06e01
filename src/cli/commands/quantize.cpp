// fp8lab quantize: computes codes, scales and the error of one matrix.
#include <fmt/format.h>

#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "emulation/base/input_error.hpp"
#include "emulation/spec/recipe.hpp"
#include "src/backend/factory.hpp"
#include "src/cli/command.hpp"
#include "src/cli/finite_json.hpp"
#include "src/cli/inputs/checkpoint_source.hpp"
#include "src/cli/inputs/matrix_files.hpp"
#include "src/cli/options/backend_option.hpp"
#include "src/cli/options/output_path.hpp"
#include "src/cli/options/seed_option.hpp"
#include "src/cli/quantize_model.hpp"
#include "src/cli/sqnr_summary.hpp"
#include "src/config/config.hpp"
#include "src/config/reading/nearest_name.hpp"
#include "src/config/recipe/spec_words.hpp"
#include "src/io/files/file_kind.hpp"

namespace fp8lab::cli {
namespace {

/// The quantizers that a model's weights are compared under.
const std::vector<std::string> kCompared = {"e4m3fn/tensor",  "e4m3fn/row",  "e4m3fn/1x128",
                                            "e4m3fn/128x128", "e5m2/tensor", "e5m2/row",
                                            "e5m2/1x128",     "e5m2/128x128"};

Options quantize_options() {
  Options options(
      "fp8lab quantize X.npy --spec SPEC | --recipe NAME --slot SLOT\n"
      "fp8lab quantize MODEL --recipe NAME\n"
      "X holds float32 or bf16 (uint16 bits) values (rows, K). The slots wgrad.x, wgrad.dy and\n"
      "dgrad.w of a recipe quantize X transposed, as in training; --spec quantizes X as it is.\n"
      "SPEC is RECIPE:SLOT or, as reports print it, FORMAT[/WORD...], such as e4m3fn/1x128/pow2:\n"
      "a tile, a scale format and further words in any order. Power-of-two scales are rounded by\n"
      "enc_floor (pow2) or rceil (e8m0), with which no element saturates, or by ocp_floor (mx32,\n"
      "which is 1x32/e8m0/ocp_floor), with which some do; others are ceil, even and\n"
      "scale_rounding:nearest.\n"
      "MODEL is a Hugging Face folder, a safetensors file, or a run: measures each weight of its\n"
      "linear layers as fprop.w of the recipe and under other quantizers");
  options.add("input", value<std::string>(), "X.npy or MODEL");
  options.add("spec", value<std::string>(),
              "quantizer such as e4m3fn/1x128/pow2 or infir2:fprop.x");
  options.add("recipe", value<std::string>(), "recipe by name or file");
  options.add("slot", one_of({"fprop.x", "fprop.w", "dgrad.dy", "dgrad.w", "wgrad.dy", "wgrad.x"}),
              "operand of the recipe");
  options.add("transpose", "with --spec: quantize X transposed");
  options.add(
      "partner", value<std::string>(),
      "Y.npy (rows, K), for a smooth transform: the tensor of the other operand of the GEMM. With "
      "--spec, X is the left operand unless SPEC is RECIPE:SLOT");
  options.add("compare",
              value<std::vector<std::string>>(kCompared,
                                              "e4m3fn and e5m2, "
                                              "each with tensor, row, 1x128 and 128x128"),
              "MODEL: another quantizer to compare for every weight, repeatable");
  options.add(
      "out", value<std::string>(),
      "CODES.npy; scales are written to CODES.scale.npy. MODEL: folder for the model in FP8, as "
      "fp8lab export writes it");
  options.add("dequantized", value<std::string>(),
              "write scale * decode(code), transforms undone, float32, to this file");
  options.add("report", "print error statistics (default without --out and --dequantized)");
  options.add("worst", value<std::int64_t>(10),
              "MODEL: number of weights to list, lowest SQNR first; 0: all");
  options.add("json", "print the statistics as JSON");
  options.add("seed", value<std::uint64_t>(0),
              "random seed of stochastic rounding and random signs");
  options.add("backend", one_of(quantizing_backends(), "cpu"), "what computes");
  options.add("threads", value<int>(0), "number of CPU threads; 0: one for each processor");
  return options;
}

/// The steps from X to the operand.
struct Plan {
  QuantSpec spec;
  bool transpose = false;
  std::optional<QuantSpec> first;  ///< quantized and dequantized by this first
  bool keeps_space = false;        ///< dequantized only into the space of its transform
  bool is_right = false;           ///< true for B of the product
  bool partner_transpose = false;  ///< orientation of the other operand's tensor
};

Plan plan_of_slot(const LinearRecipe& recipe, const std::string& name) {
  std::string names;
  for (const Slot slot : kSlots) {
    names += (names.empty() ? "" : ", ") + slot_name(slot);
    if (name != slot_name(slot)) continue;
    Plan plan;
    plan.spec = recipe.slot(slot);
    plan.transpose = is_second_orientation(slot);
    plan.is_right = is_right(slot);
    plan.partner_transpose = is_second_orientation(other_operand(slot));
    if (plan.spec.orientation_source != OrientationSource::high_precision) {
      plan.first = recipe.slot(other_orientation(slot));
      plan.keeps_space = plan.spec.orientation_source == OrientationSource::transformed;
    }
    return plan;
  }
  throw InputError({.where = "quantize",
                    .noun = "unknown slot",
                    .key = name,
                    .nearest = did_you_mean(name, names),
                    .accepted = names});
}

Plan read_plan(const Values& values) {
  const bool by_recipe = values.count("recipe") != 0;
  if (by_recipe == (values.count("spec") != 0)) {
    throw InputError(
        {.where = "quantize", .reason = "give either --spec SPEC or --recipe NAME --slot SLOT"});
  }
  if (by_recipe) {
    if (values.count("transpose") != 0) {
      throw InputError({.where = "quantize",
                        .key = "--transpose",
                        .reason = "is for --spec; a recipe's slot says it"});
    }
    const LinearRecipe recipe = load_recipe(values["recipe"].as<std::string>()).linear;
    return plan_of_slot(recipe, required(values, "slot", "quantize"));
  }
  if (values.count("slot") != 0)
    throw InputError({.where = "quantize", .key = "--slot", .reason = "is for --recipe"});
  Plan plan;
  const std::string words = values["spec"].as<std::string>();
  plan.spec = parse_quant_spec(words);
  plan.transpose = values.count("transpose") != 0;
  if (const std::optional<RecipeSlot> of = recipe_slot_from_text(words)) {
    plan.is_right = is_right(of->slot);
  }
  return plan;
}

OperandStatistics measure(Backend& backend, const TensorView& x, const Plan& plan,
                          const QuantizedOperand& operand) {
  const TensorView record = backend.allocate(DType::u8, 1, sizeof(OperandStatistics));
  backend.run(ops::MeasureOperand{
      .source = x, .transpose = plan.transpose, .operand = operand, .record = record});
  std::vector<std::byte> bytes(sizeof(OperandStatistics));
  backend.download(bytes.data(), record);
  OperandStatistics statistics;
  std::memcpy(&statistics, bytes.data(), sizeof statistics);
  return statistics;
}

void print_report(const OperandStatistics& s, const QuantizedOperand& operand, bool json) {
  const std::vector<std::pair<const char*, double>> rows = {
      {"amax", s.amax},
      {"rms", s.rms},
      {"mse", s.mse},
      {"sqnr_db", s.sqnr_db},
      {"cosine", s.cosine},
      {"bias", s.bias},
      {"underflow_fraction", s.underflow_fraction},
      {"saturation_fraction", s.saturation_fraction},
      {"nonfinite_count", s.nonfinite_count},
      {"kurtosis", s.kurtosis},
      {"crest_factor", s.crest_factor},
      {"channel_outlier_ratio", s.channel_outlier_ratio},
      {"scale_min", s.scale_min},
      {"scale_max", s.scale_max},
      {"scale_log2_spread", s.scale_log2_spread},
      {"zero_tile_fraction", s.zero_tile_fraction},
      {"scale_bits_per_element", scale_bits_per_element(operand.spec, operand.rows, operand.k)},
  };
  if (json) {
    nlohmann::ordered_json object;
    object["operand"] = label(operand.spec);
    object["rows"] = operand.rows;
    object["k"] = operand.k;
    for (const auto& [name, value] : rows) object[name] = finite_json(value);
    object["exact"] = is_exact(s);  // null for infinity and NaN, which JSON lacks
    fmt::print("{}\n", json_text(object));
    return;
  }
  fmt::print("{} ({}, {})\n", label(operand.spec), operand.rows, operand.k);
  for (const auto& [name, value] : rows) {
    fmt::print("  {:<22} {}\n", name,
               std::isnan(value) ? "undefined" : fmt::format("{:.9g}", value));
  }
}

/// Prints a note if scale * decode(code) of finite elements exceeds FP32;
/// statistics leave them out.
void note_overflow(const NpyArray& x, const OperandStatistics& statistics,
                   const std::string& file) {
  const double overflowed = statistics.nonfinite_count - static_cast<double>(count_special(x));
  if (!(overflowed > 0)) return;
  print_notes({fmt::format(
      "{}: scale * code of {} finite elements is beyond FP32; amax and all other statistics but "
      "nonfinite_count are of the rest",
      file, overflowed)});
}

/// Returns the path of the scales, beside the codes.
std::filesystem::path scale_file(std::filesystem::path codes) {
  return codes.replace_extension(".scale.npy");
}

void write_results(Backend& backend, const Values& values, const QuantizedOperand& operand) {
  if (values.count("out") != 0) {
    const std::filesystem::path codes = values["out"].as<std::string>();
    write_npy(codes, read_back(backend, operand.codes));
    if (operand.spec.has_scale()) {
      write_npy(scale_file(codes), read_back(backend, operand.scales));
    }
  }
  if (values.count("dequantized") != 0) {
    const TensorView decoded = backend.allocate(DType::f32, operand.rows, operand.k);
    backend.run(ops::Dequantize{operand, false, decoded});
    write_npy(values["dequantized"].as<std::string>(), read_back(backend, decoded));
  }
}

}  // namespace

int quantize(const std::vector<std::string>& arguments) {
  const Values values = parse_arguments("quantize", quantize_options(), arguments, {{"input", 1}});
  if (values.count("help") != 0) return ExitCode::kSuccess;
  const std::string file = required(values, "input", "quantize");
  threads_of(values, "quantize");
  const bool is_matrix = values.count("slot") + values.count("spec") != 0;
  // A name of nothing is told what models are accepted, unless it is meant as a matrix.
  if (is_model(file) || !(is_matrix || is_present(file))) return quantize_model(values);
  refuse_given(values, "quantize", {"compare", "worst"}, "is for a model");
  check_output_files(values, "quantize", {"out", "dequantized"}, Replaces::npy);
  const Plan plan = read_plan(values);
  std::vector<NamedFile> outputs = named_files(values, {"out", "dequantized"});
  if (values.count("out") != 0 && plan.spec.has_scale()) {
    const NamedFile scales{"the scales of --out", scale_file(values["out"].as<std::string>())};
    output_file(scales.path.string(), "quantize: " + scales.what, Replaces::npy);
    outputs.push_back(scales);
  }
  check_files_apart("quantize", outputs, named_files(values, {"input", "partner"}));
  const auto backend =
      make_backend(values["backend"].as<std::string>(), values["threads"].as<int>());
  NpyArray array = read_matrix(file);
  const TensorView x = upload(*backend, array.view());
  check_seed(values, "quantize", std::array{plan.spec, plan.first.value_or(plan.spec)});
  const auto seed = values["seed"].as<std::uint64_t>();
  TensorView source = x;
  Space source_space;
  if (plan.first) {
    const QuantizedOperand first = quantize_values(*backend, x, false, *plan.first, seed, file);
    source = backend->allocate(DType::f32, x.rows, x.cols);
    backend->run(ops::Dequantize{first, false, source, plan.keeps_space});
    if (plan.keeps_space) source_space = first.own_space();
  }
  std::optional<NpyArray> partner_array;
  std::optional<Partner> partner;
  if (values.count("partner") != 0) {
    if (!plan.spec.transform.is<Smoothing>()) {
      throw InputError(
          {.where = "quantize", .key = "--partner", .reason = "is for smooth transforms"});
    }
    partner_array = read_matrix(values["partner"].as<std::string>());
    partner =
        Partner{upload(*backend, partner_array->view()), plan.partner_transpose, plan.is_right};
  }
  QuantizedOperand operand =
      quantize_values(*backend, source, plan.transpose, plan.spec, seed, file, partner);
  operand.source_space = source_space;
  const OperandStatistics statistics = measure(*backend, x, plan, operand);
  note_overflow(array, statistics, file);
  for (const NamedFile& output : outputs) {
    require_unread(output.path, "quantize: " + output.what);
  }
  const bool json = values.count("json") != 0;
  const bool wanted = values.count("report") != 0 || json ||
                      (values.count("out") == 0 && values.count("dequantized") == 0);
  if (wanted) print_report(statistics, operand, json);
  write_results(*backend, values, operand);
  return ExitCode::kSuccess;
}

}  // namespace fp8lab::cli
