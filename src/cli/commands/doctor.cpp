// fp8lab doctor: checks whether the files of a run or study are intact.
#include <fmt/core.h>

#include <array>
#include <nlohmann/json.hpp>

#include "src/cli/command.hpp"
#include "src/cli/inputs/model_source.hpp"
#include "src/cli/options/output_path.hpp"
#include "src/train/checkpoint/doctor.hpp"

namespace fp8lab::cli {
namespace {

Options doctor_options() {
  Options options("fp8lab doctor DIR");
  options.add("directory", value<std::string>(),
              "folder of a run or a study, or the target of an export that was killed");
  options.add("check", "report only, repair nothing");
  options.add("json", "machine-readable");
  return options;
}

constexpr std::array<const char*, 5> kHealthNames = {"whole", "busy", "repaired", "fixable",
                                                     "damaged"};

}  // namespace

int doctor(const std::vector<std::string>& arguments) {
  const Values values = parse_arguments("doctor", doctor_options(), arguments, {{"directory", 1}});
  if (values.count("help") != 0) return ExitCode::kSuccess;
  const std::vector<Finding> findings = examine(
      folder_of_run_file(required(values, "directory", "doctor")), values.count("check") == 0);
  nlohmann::ordered_json json = nlohmann::ordered_json::array();
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

}  // namespace fp8lab::cli
