#include "src/validate/steps.hpp"

#include <fmt/format.h>

#include <charconv>
#include <cstdint>
#include <nlohmann/json.hpp>

#include "emulation/base/input_error.hpp"
#include "src/io/hash.hpp"
#include "src/io/json_document.hpp"

namespace fp8lab {
namespace {

/// Parses the output of hex16. Throws Error for other text.
std::uint64_t from_hex16(const std::string& digits) {
  std::uint64_t hash = 0;
  const char* const end = digits.data() + digits.size();
  const auto [last, error] = std::from_chars(digits.data(), end, hash, 16);
  if (digits.size() != 16 || error != std::errc{} || last != end) {
    throw InputError({.found = quoted_word(digits), .reason = "is not 16 hexadecimal digits"});
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
  for (const char* name : {"loss", "grad_norm", "weights"}) {
    json[name] = nlohmann::json::array();
  }
  for (const StepRecord& step : golden.steps) {
    json["loss"].push_back(step.loss);
    json["grad_norm"].push_back(step.grad_norm);
    json["weights"].push_back(hex16(step.weight_hash));
  }
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
    const auto loss = json.at("loss").get<std::vector<double>>();
    const auto grad_norm = json.at("grad_norm").get<std::vector<double>>();
    const auto weights = json.at("weights").get<std::vector<std::string>>();
    if (loss.size() != weights.size() || grad_norm.size() != weights.size()) {
      throw InputError({.reason = "loss, grad_norm and weights differ in length"});
    }
    for (std::size_t i = 0; i < weights.size(); ++i) {
      StepRecord& step = golden.steps.emplace_back();
      step.step = static_cast<std::int64_t>(i) + 1;
      step.loss = loss[i];
      step.grad_norm = grad_norm[i];
      step.weight_hash = from_hex16(weights[i]);
    }
    return golden;
  } catch (const std::exception& problem) {
    throw InputError({.where = file.string(),
                      .reason = fmt::format("not a record of training steps: {}", problem.what())});
  }
}

}  // namespace fp8lab
