// fp8lab presets and fp8lab models: list the built-in names.
#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "src/cli/command.hpp"
#include "src/cli/output_path.hpp"
#include "src/config/config.hpp"
#include "src/config/experiments.hpp"
#include "src/io/atomic_file.hpp"
#include "src/model/decoder.hpp"

namespace fp8lab::cli {
namespace {

/// Returns the first sentence of the comment at the top of a file.
std::string summary_of(const std::filesystem::path& file) {
  std::istringstream lines(read_file(file.string()));
  std::string text;
  for (std::string line; std::getline(lines, line) && line.starts_with("# ");) {
    text += (text.empty() ? "" : " ") + line.substr(2);
  }
  for (std::size_t end = text.find(". "); end != std::string::npos;
       end = text.find(". ", end + 1)) {
    // The period of "et al. 2021" does not end a sentence.
    if (end + 2 < text.size() && std::isupper(static_cast<unsigned char>(text[end + 2])) != 0) {
      return text.substr(0, end);
    }
  }
  if (text.ends_with('.') || text.ends_with(':')) text.pop_back();
  return text;
}

nlohmann::ordered_json preset_row(const std::string& name) {
  const auto file = find_experiment("presets", name, "");
  return {{"name", name}, {"summary", summary_of(file)}, {"file", file.string()}};
}

nlohmann::ordered_json model_row(const std::string& name) {
  const auto file = find_experiment("models", name, "");
  const ModelConfig model = load_model(name);
  return {{"name", name},
          {"parameters", declaration_of(model).weights()},
          {"layers", model.num_hidden_layers},
          {"hidden_size", model.hidden_size},
          {"vocab_size", model.vocab_size},
          {"summary", summary_of(file)},
          {"file", file.string()}};
}

/// Returns "124.4 M".
std::string millions(double count) { return fmt::format("{:.1f} M", count / 1e6); }

int list(const std::string& command, const std::vector<std::string>& arguments,
         const std::string& usage, nlohmann::ordered_json (*row)(const std::string&)) {
  Options options("fp8lab " + command + "\n" + usage);
  options.add("json", "machine-readable");
  const Values values = parse_arguments(command, options, arguments);
  if (values.count("help") != 0) return ExitCode::kSuccess;
  auto rows = nlohmann::ordered_json::array();
  for (const std::string& name : experiment_names(command)) rows.push_back(row(name));
  if (values.count("json") != 0) {
    fmt::print("{}\n", json_text(rows));
    return ExitCode::kSuccess;
  }
  for (const auto& found : rows) {
    std::string facts;
    if (found.contains("parameters")) {
      facts = fmt::format("{:>9} {:>3} layers  ", millions(found["parameters"].get<double>()),
                          found["layers"].get<std::int64_t>());
    }
    fmt::print("{:<16} {}{}\n", found["name"].get<std::string>(), facts,
               found["summary"].get<std::string>());
  }
  return ExitCode::kSuccess;
}

}  // namespace

int presets(const std::vector<std::string>& arguments) {
  return list("presets", arguments,
              "The built-in run configurations, for train --preset NAME and base = \"NAME\" of a "
              "study",
              preset_row);
}

int models(const std::vector<std::string>& arguments) {
  return list("models", arguments,
              "The built-in models with their parameters, for model = \"NAME\" of a run",
              model_row);
}

}  // namespace fp8lab::cli
