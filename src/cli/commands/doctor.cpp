// fp8lab doctor: checks whether the files of a run, a study or a model are intact.
#include <fmt/core.h>

#include <array>
#include <cmath>
#include <nlohmann/json.hpp>

#include "emulation/base/error.hpp"
#include "src/cli/command.hpp"
#include "src/cli/finite_json.hpp"
#include "src/cli/inputs/model_source.hpp"
#include "src/cli/options/output_path.hpp"
#include "src/cli/progress.hpp"
#include "src/cli/sqnr_summary.hpp"
#include "src/config/reading/hub_cache.hpp"
#include "src/io/printable.hpp"
#include "src/model_files/model_doctor.hpp"
#include "src/train/checkpoint/doctor.hpp"

namespace fp8lab::cli {
namespace {

using nlohmann::ordered_json;

Options doctor_options() {
  Options options(
      "fp8lab doctor DIR\n"
      "fp8lab doctor MODEL [--reference MODEL]\n"
      "DIR is the folder of a run or a study; MODEL a Hugging Face folder, or one safetensors "
      "file,\n"
      "of any family, quantized as by transformers (fp8), compressed-tensors, ModelOpt or "
      "torchao.\n"
      "Says of each tensor and block what is wrong and what that does to the model");
  options.add("directory", value<std::string>(),
              "folder of a run or a study, the target of an export that was killed, or a model");
  options.add("check", "report only, repair nothing (runs and studies)");
  options.add("reference", value<std::string>(),
              "the same model, as a rule in BF16: adds the SQNR of every tensor");
  options.add("json", "machine-readable");
  return options;
}

constexpr std::array<const char*, 5> kHealthNames = {"whole", "busy", "repaired", "fixable",
                                                     "damaged"};

int examine_runs(const Values& values, const std::string& directory) {
  refuse_given(values, "doctor", {"reference"}, "is for models");
  const std::vector<Finding> findings = examine(directory, values.count("check") == 0);
  ordered_json json = ordered_json::array();
  bool damaged = false;
  for (const Finding& finding : findings) {
    const char* const health = kHealthNames[static_cast<std::size_t>(finding.health)];
    damaged |= finding.health == Health::damaged;
    if (values.count("json") != 0) {
      json.push_back({{"file", finding.file.string()}, {"health", health}, {"text", finding.text}});
    } else {
      fmt::print("{:<9} {}: {}\n", health, finding.file.string(), finding.text);
    }
  }
  if (values.count("json") != 0) fmt::print("{}\n", json_text(json));
  return damaged ? ExitCode::kMismatch : ExitCode::kSuccess;
}

void print_json(const std::string& model, const ModelExamination& result) {
  ordered_json document;
  document["model"] = model;
  document["tensors"] = result.tensors;
  document["layouts"] = result.layouts;
  document["findings"] = ordered_json::array();
  for (const ModelFinding& one : result.findings) {
    document["findings"].push_back({{"severity", severity_name(one.severity)},
                                    {"kind", one.kind},
                                    {"tensor", one.tensor},
                                    {"block", one.block},
                                    {"count", one.count},
                                    {"text", one.text}});
  }
  for (const ComparedWeight& one : result.compared) {
    document["compared"].push_back({{"tensor", one.name},
                                    {"sqnr_db", finite_json(one.sqnr_db)},
                                    {"exact", std::isinf(one.sqnr_db)},
                                    {"max_error", finite_json(one.max_error)},
                                    {"worst_block_db", finite_json(one.worst_block_db)},
                                    {"worst_block", one.worst_block}});
  }
  fmt::print("{}\n", json_text(document));
}

void print_compared(const ModelExamination& result) {
  if (result.compared.empty()) return;
  std::size_t exact = 0, worst = 0;
  double sum = 0;
  for (std::size_t i = 0; i < result.compared.size(); ++i) {
    const double decibels = result.compared[i].sqnr_db;
    exact += std::isinf(decibels);
    if (std::isfinite(decibels)) sum += decibels;
    if (!(decibels >= result.compared[worst].sqnr_db)) worst = i;
  }
  const std::size_t other = result.compared.size() - exact;
  fmt::print("{} tensors compared, {} equal", result.compared.size(), exact);
  if (other > 0) {
    fmt::print("; SQNR of the others: mean {:.2f} dB, lowest {:.2f} dB in {}",
               sum / static_cast<double>(other), result.compared[worst].sqnr_db,
               printable(result.compared[worst].name));
  }
  fmt::print("\n");
}

int examine_files(const Values& values, const std::string& model) {
  refuse_given(values, "doctor", {"check"}, "is for runs and studies; models are only read");
  std::string reference;
  if (values.count("reference") != 0) {
    reference = existing_model_path(values["reference"].as<std::string>());
    if (!is_model_folder(reference)) {
      throw Error(fmt::format("doctor: --reference {}: holds no model", reference));
    }
  }
  PartsLine parts("doctor");
  const ModelExamination result = examine_model(model, reference, parts.report());
  parts.clear();
  if (values.count("json") != 0) {
    print_json(model, result);
  } else {
    for (const ModelFinding& one : result.findings) {
      fmt::print("{:<8} {}: {}\n", severity_name(one.severity), printable(one.tensor),
                 printable(one.text));
    }
    print_compared(result);
    for (const std::string& layout : result.layouts) fmt::print("{}\n", layout);
    fmt::print("{}: {} tensors, {} errors, {} warnings\n", model, result.tensors,
               result.count(Severity::error), result.count(Severity::warning));
  }
  const bool is_whole = result.count(Severity::error) + result.count(Severity::warning) == 0;
  return is_whole ? ExitCode::kSuccess : ExitCode::kMismatch;
}

}  // namespace

int doctor(const std::vector<std::string>& arguments) {
  const Values values = parse_arguments("doctor", doctor_options(), arguments, {{"directory", 1}});
  if (values.count("help") != 0) return ExitCode::kSuccess;
  const std::string given = required(values, "directory", "doctor");
  const std::string model = model_path(given);
  if (is_model_folder(model)) return examine_files(values, model);
  return examine_runs(values, folder_of_run_file(given));
}

}  // namespace fp8lab::cli
