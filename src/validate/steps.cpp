#include "src/validate/steps.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "emulation/base/error.hpp"
#include "src/io/hash.hpp"
#include "src/io/json_document.hpp"
#include "src/io/run_reader.hpp"
#include "src/train/trainer.hpp"

namespace fp8lab {
namespace {

namespace fs = std::filesystem;

/// A new folder that goes away with its content.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string pattern = (fs::temp_directory_path() / "fp8lab-steps-XXXXXX").string();
    if (mkdtemp(pattern.data()) == nullptr) {
      throw RuntimeFailure("cannot make a temporary folder like " + pattern);
    }
    path_ = pattern;
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

constexpr const char* kStatistics[] = {"amax", "sqnr_db", "underflow_fraction", "scale_max"};

template <class T>
StepDifference first_difference(const std::vector<T>& expected, const std::vector<T>& actual,
                                const char* what) {
  const auto [want, got] =
      std::mismatch(expected.begin(), expected.end(), actual.begin(), actual.end());
  if (want == expected.end() && got == actual.end()) return {};
  return {want - expected.begin(), what};
}

}  // namespace

StepTrace trace_steps(const RunConfig& config, Backend& backend,
                      const std::function<void(std::int64_t, std::int64_t)>& progress) {
  const TemporaryFolder folder;
  TrainerOptions options;
  options.directory = folder.path();
  options.progress = [&](const Progress& now) {
    if (progress) progress(now.step, now.total_steps);
  };
  Trainer(config, backend, options).run();
  const fs::path file = folder.path() / "run.h5";
  StepTrace trace;
  for (const StepRecord& record : read_run(file).metrics) {
    trace.weights.push_back(record.weight_hash);
    trace.loss.push_back(record.loss);
    trace.grad_norm.push_back(record.grad_norm);
  }
  for (const char* name : kStatistics) {
    const std::vector<double> values = read_statistic(file, name);
    trace.statistics.insert(trace.statistics.end(), values.begin(), values.end());
  }
  return trace;
}

StepDifference compare_traces(const StepTrace& expected, const StepTrace& actual) {
  StepDifference earliest;
  for (const StepDifference& found :
       {first_difference(expected.loss, actual.loss, "loss"),
        first_difference(expected.grad_norm, actual.grad_norm, "gradient norm"),
        first_difference(expected.weights, actual.weights, "weights")}) {
    if (found.step >= 0 && (earliest.step < 0 || found.step < earliest.step)) earliest = found;
  }
  if (earliest.step < 0 && !expected.statistics.empty() &&
      expected.statistics != actual.statistics) {
    return {static_cast<std::int64_t>(expected.loss.size()), "operand statistics"};
  }
  return earliest;
}

namespace {

/// What hex16 wrote. Throws Error.
std::uint64_t from_hex16(const std::string& digits) {
  std::uint64_t hash = 0;
  const char* const end = digits.data() + digits.size();
  const auto [last, error] = std::from_chars(digits.data(), end, hash, 16);
  if (digits.size() != 16 || error != std::errc{} || last != end) {
    throw Error(fmt::format("'{}' is not 16 hexadecimal digits", digits));
  }
  return hash;
}

}  // namespace

std::string to_json(const GoldenSteps& golden) {
  nlohmann::ordered_json json;
  json["preset"] = golden.preset;
  json["recipe"] = golden.recipe;
  json["set"] = golden.settings;
  json["device"] = golden.device;
  json["config_hash"] = golden.config_hash;
  json["loss"] = golden.trace.loss;
  json["grad_norm"] = golden.trace.grad_norm;
  json["weights"] = nlohmann::json::array();
  for (const std::uint64_t hash : golden.trace.weights) json["weights"].push_back(hex16(hash));
  return json.dump(1) + "\n";
}

GoldenSteps read_golden_steps(const std::filesystem::path& file) {
  const nlohmann::json json = read_json_object(file);
  try {
    GoldenSteps golden;
    golden.preset = json.at("preset").get<std::string>();
    golden.recipe = json.at("recipe").get<std::string>();
    golden.settings = json.at("set").get<std::vector<std::string>>();
    golden.device = json.at("device").get<std::string>();
    golden.config_hash = json.at("config_hash").get<std::string>();
    golden.trace.loss = json.at("loss").get<std::vector<double>>();
    golden.trace.grad_norm = json.at("grad_norm").get<std::vector<double>>();
    for (const std::string& hash : json.at("weights").get<std::vector<std::string>>()) {
      golden.trace.weights.push_back(from_hex16(hash));
    }
    if (golden.trace.loss.size() != golden.trace.weights.size() ||
        golden.trace.grad_norm.size() != golden.trace.weights.size()) {
      throw Error("loss, grad_norm and weights differ in length");
    }
    return golden;
  } catch (const std::exception& problem) {
    throw Error(file.string() + ": not a record of training steps: " + problem.what());
  }
}

}  // namespace fp8lab
