// fp8lab info: describes this build and the resources of this machine.
#include <fmt/format.h>
#include <hdf5.h>

#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string>

#include "emulation/base/default_threads.hpp"
#include "emulation/cpu/simd/target.hpp"
#include "emulation/spec/recipe_names.hpp"
#include "emulation/spec/tensor_core.hpp"
#include "src/cli/command.hpp"
#include "src/cli/options/output_path.hpp"
#include "src/cli/version.hpp"
#include "src/config/config.hpp"
#include "src/config/reading/experiments.hpp"

#if !defined(FP8LAB_VERSION) || !defined(FP8LAB_BUILD_TYPE)
#error "the build system defines FP8LAB_VERSION and FP8LAB_BUILD_TYPE"
#endif

namespace fp8lab::cli {
namespace {

std::string hdf5_version() {
  unsigned major = 0, minor = 0, release = 0;
  if (H5get_libversion(&major, &minor, &release) < 0) return "unknown";
  return fmt::format("{}.{}.{}", major, minor, release);
}

nlohmann::ordered_json collect() {
  nlohmann::ordered_json facts;
  facts["version"] = code_version();
  facts["build"] = FP8LAB_BUILD_TYPE;
  facts["compiler"] = __VERSION__;
  facts["simd"] = nlohmann::json::array();
  for (const cpu::SimdTarget target : cpu::available_targets()) {
    facts["simd"].push_back(cpu::name_of(target));
  }
  facts["simd_in_use"] = cpu::name_of(cpu::active_target());
  facts["threads"] = default_threads();
  facts["processors"] = available_processors();
#if defined(FP8LAB_HAVE_CUDA)
  facts["cuda"] = "compiled in";
#else
  facts["cuda"] = "not compiled in";
#endif
  facts["hdf5"] = hdf5_version();
  facts["experiments"] = experiments_directory().string();
  facts["recipes"] = builtin_recipe_names();
  return facts;
}

/// Returns "2: the processors that this process may use".
std::string threads_text() {
  const char* const why = std::getenv("OMP_NUM_THREADS") != nullptr
                              ? "OMP_NUM_THREADS"
                              : "the processors that affinity and control group leave this process";
  return fmt::format("{} of every command without --threads: {}", default_threads(), why);
}

std::string words(const nlohmann::ordered_json& value) {
  if (value.is_string()) return value.get<std::string>();
  if (!value.is_array()) return value.dump();
  std::string text;
  for (const auto& item : value) text += (text.empty() ? "" : " ") + item.get<std::string>();
  return text;
}

nlohmann::ordered_json parameters(const TensorCoreProfile& profile) {
  const numerics::GroupModel& group = profile.accumulator.group;
  nlohmann::ordered_json facts = {{"products", profile.accumulator.products()}};
  const bool ideal = profile.accumulator.unit == numerics::ChainUnit::ideal_fp32 ||
                     profile.accumulator.unit == numerics::ChainUnit::ideal_exact;
  if (ideal) return facts;
  facts["fraction_bits"] = group.fraction_bits;
  facts["accumulator"] = group.output == numerics::OutputKind::f16_nearest ? "fp16" : "fp32";
  facts["mantissa_bits"] = group.output_mantissa_bits;
  if (group.min_exponent != numerics::kNoExponentFloor) {
    facts["exponent_floor"] = group.min_exponent;
  }
  if (group.late_fraction_bits > 0) {
    facts["late_fraction_bits"] = group.late_fraction_bits;
    facts["partial_sums"] = group.partial_sums;
  }
  if (group.exact_products > 0) facts["exact_products"] = group.exact_products;
  for (const BlockScale& scale : profile.accumulator.block_scales) {
    if (scale.width == 0) continue;
    facts["block_scales"].push_back(
        {{"format", word_for(kScaleFormatNames, scale.format)}, {"width", scale.width}});
  }
  return facts;
}

nlohmann::ordered_json profiles() {
  auto rows = nlohmann::ordered_json::array();
  for (const TensorCoreProfile& profile : tensor_core_profiles()) {
    rows.push_back({{"name", profile.name},
                    {"operands", operand_names(profile.accumulator)},
                    {"arithmetic", describe(profile.accumulator)},
                    {"parameters", parameters(profile)},
                    {"evidence", evidence_name(profile.evidence)},
                    {"source", profile.source},
                    {"checked", profile.checked}});
    const std::string name = accumulator_name(profile.accumulator);
    if (name != profile.name) rows.back()["same_as"] = name;
  }
  return rows;
}

void print_profiles() {
  fmt::print("accumulators of recipes and gemm --spec, their arithmetic and its evidence:\n");
  for (const TensorCoreProfile& profile : tensor_core_profiles()) {
    const std::string name = accumulator_name(profile.accumulator);
    fmt::print("{:<22} {}: {}{}\n{:<22} {}: {}; {}\n", profile.name,
               operand_names(profile.accumulator), describe(profile.accumulator),
               name == profile.name ? "" : "; the record of " + name, "",
               evidence_name(profile.evidence), profile.source, profile.checked);
  }
}

}  // namespace

std::string project_version() { return FP8LAB_VERSION; }

std::string code_version() { return project_version() + "+" + build_identity(); }

int info(const std::vector<std::string>& arguments) {
  Options options(
      "fp8lab info\n"
      "Prints what this build is, what it uses of this machine, and the tensor cores that it "
      "emulates");
  options.add("accumulators", "the tensor cores alone, with their arithmetic and its evidence");
  options.add("json", "machine-readable, everything");
  const Values values = parse_arguments("info", options, arguments);
  if (values.count("help") != 0) return ExitCode::kSuccess;
  nlohmann::ordered_json facts = collect();
  if (values.count("json") != 0) {
    facts["profiles"] = profiles();
    fmt::print("{}\n", json_text(facts));
    return ExitCode::kSuccess;
  }
  if (values.count("accumulators") != 0) {
    print_profiles();
    return ExitCode::kSuccess;
  }
  facts["threads"] = threads_text();
  facts.erase("processors");
  facts.erase("recipes");
  for (const auto& [name, value] : facts.items()) fmt::print("{:<12} {}\n", name, words(value));
  fmt::print("tensor cores {}, listed by fp8lab info --accumulators\n",
             tensor_core_profiles().size());
  fmt::print(
      "recipes {}, presets {}, models {}, listed by fp8lab recipes list, fp8lab presets and "
      "fp8lab models\n",
      builtin_recipe_names().size(), experiment_names("presets").size(),
      experiment_names("models").size());
  return ExitCode::kSuccess;
}

}  // namespace fp8lab::cli
