// fp8lab doctor: whether the files of a run or study are whole.
#include <fmt/core.h>

#include <array>
#include <boost/program_options.hpp>
#include <nlohmann/json.hpp>

#include "src/cli/command.hpp"
#include "src/train/doctor.hpp"

namespace fp8lab::cli {
namespace {

namespace po = boost::program_options;

po::options_description doctor_options() {
  po::options_description options("fp8lab doctor DIR");
  auto add = options.add_options();
  add("directory", po::value<std::string>(), "that of a run or of a study");
  add("check", "change nothing");
  add("json", "machine-readable");
  add("help,h", "this text");
  return options;
}

constexpr std::array<const char*, 5> kHealthNames = {"whole", "busy", "repaired", "fixable",
                                                     "damaged"};

}  // namespace

int doctor(const std::vector<std::string>& arguments) {
  po::positional_options_description positional;
  positional.add("directory", 1);
  const po::variables_map values =
      parse_arguments("doctor", doctor_options(), arguments, positional);
  if (values.count("help") != 0) return ExitCode::kSuccess;
  const std::vector<Finding> findings =
      examine(required(values, "directory", "doctor"), values.count("check") == 0);
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
  if (values.count("json") != 0) fmt::print("{}\n", json.dump(2));
  return damaged ? ExitCode::kMismatch : ExitCode::kSuccess;
}

}  // namespace fp8lab::cli
