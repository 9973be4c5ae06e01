// fp8lab replay: what the GEMMs of another program computed, from the files of fp8lab.recorder.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "emulation/base/input_error.hpp"
#include "src/cli/command.hpp"
#include "src/cli/options/output_path.hpp"
#include "src/config/reading/document_kind.hpp"
#include "src/io/files/atomic_file.hpp"
#include "src/io/files/file_kind.hpp"
#include "src/io/json_document.hpp"
#include "src/io/printable.hpp"
#include "src/io/shell_word.hpp"
#include "src/replay/replay_gemm.hpp"

namespace fp8lab::cli {
namespace {

namespace fs = std::filesystem;
using nlohmann::ordered_json;

Options replay_options() {
  Options options(
      "fp8lab replay FILE... | FOLDER\n"
      "FILE is a GEMM that fp8lab.recorder wrote, FOLDER its folder. Says under which "
      "accumulator,\n"
      "promotion, order of scales and split K the result has the same bits, names a fault\n"
      "(transposed, neighbouring, divided, missing or stale scales, codes read as another format,\n"
      "dropped promotion), or shows the first wrong element with its k. Of a folder, also lists\n"
      "which calls ran in FP8, and with which tiles");
  options.add("files", value<std::vector<std::string>>(), "records, or one folder of them");
  options.add("json", "machine-readable");
  return options;
}

/// Returns the records of a folder in the order of their names.
std::vector<fs::path> records_of(const fs::path& folder) {
  std::vector<fs::path> files;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
    if (entry.path().extension() == ".safetensors") files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  return files;
}

/// Prints calls.json as a table.
void print_calls(const ordered_json& calls, const fs::path& file) {
  constexpr const char* kCallKeys[] = {"calls", "api",    "m",      "n",   "k",   "a",
                                       "b",     "tile_a", "tile_b", "out", "fast"};
  std::vector<std::vector<std::string>> rows{{std::begin(kCallKeys), std::end(kCallKeys)}};
  for (const ordered_json& call : calls) {
    std::vector<std::string> row;
    for (const char* column : kCallKeys) {
      const auto cell = call.find(column);
      if (cell == call.end())
        throw Error(fmt::format("{}: a call has no {}", file.string(), column));
      row.push_back(cell->is_string() ? cell->get<std::string>() : cell->dump());
    }
    rows.push_back(std::move(row));
  }
  std::vector<std::size_t> widths(std::size(kCallKeys), 0);
  for (const auto& row : rows) {
    for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  for (const auto& row : rows) {
    std::string line;
    for (std::size_t i = 0; i < row.size(); ++i) line += fmt::format("{:<{}}  ", row[i], widths[i]);
    fmt::print("{}\n", printable(line.substr(0, line.find_last_not_of(' ') + 1)));
  }
}

ordered_json as_json(const RecordedGemm& gemm, const GemmReplay& replay) {
  ordered_json json{{"file", gemm.file},          {"api", gemm.api},
                    {"right", replay.is_right()}, {"faults", replay.faults},
                    {"error", replay.error},      {"same", ordered_json::array()}};
  for (const GemmArithmetic& same : replay.arithmetic.same) json["same"].push_back(same.label());
  if (replay.arithmetic.same.empty()) {
    json["nearest"] = replay.arithmetic.nearest.label();
    json["equal"] = replay.arithmetic.equal;
  }
  if (const auto& wrong = replay.wrong) {
    json["wrong"] = {{"row", wrong->row},           {"col", wrong->col},
                     {"recorded", wrong->recorded}, {"exact", wrong->exact},
                     {"count", wrong->count},       {"k_begin", wrong->k_begin},
                     {"k_end", wrong->k_end},       {"factor", wrong->factor}};
  }
  if (const auto& d = replay.divergence) {
    json["divergence"] = {
        {"row", d->row}, {"col", d->col}, {"k_begin", d->k_begin}, {"k_end", d->k_end}};
  }
  return json;
}

}  // namespace

int replay(const std::vector<std::string>& arguments) {
  const Values values = parse_arguments("replay", replay_options(), arguments, {{"files", -1}});
  if (values.count("help") != 0) return ExitCode::kSuccess;
  if (values.count("files") == 0) throw Error("replay: a FILE or a FOLDER is missing");
  std::vector<fs::path> files;
  ordered_json json = ordered_json::object();
  for (const std::string& given : values["files"].as<std::vector<std::string>>()) {
    if (!fs::is_directory(given)) {
      files.emplace_back(given);
      continue;
    }
    const fs::path calls = fs::path(given) / "calls.json";
    if (fs::exists(calls)) {
      json["calls"] = parse_json(read_file(calls), calls.string());
      if (values.count("json") == 0) print_calls(json["calls"], calls);
    }
    const std::vector<fs::path> found = records_of(given);
    if (found.empty() && !fs::exists(calls)) {
      const bool is_run = is_present(fs::path(given) / "run.h5");
      const bool is_study = is_present(fs::path(given) / "study.h5");
      const std::string folder = shell_path(given);
      throw InputError({.where = given,
                        .reason = "has no records of fp8lab.recorder",
                        .remedy = is_run ? fmt::format("it is a run: fp8lab verify {}", folder)
                                  : is_study
                                      ? fmt::format("it is a study: fp8lab report {}", folder)
                                      : std::string()});
    }
    files.insert(files.end(), found.begin(), found.end());
  }
  bool right = true;
  json["gemms"] = ordered_json::array();
  for (const fs::path& file : files) {
    refuse_other_kind(file, kRecordKind);
    const RecordedGemm gemm = read_recorded_gemm(file);
    const GemmReplay result = replay_gemm(gemm);
    right = right && result.is_right();
    json["gemms"].push_back(as_json(gemm, result));
    if (values.count("json") != 0) continue;
    for (const std::string& line : describe(gemm, result)) fmt::print("{}\n", printable(line));
  }
  if (values.count("json") != 0) fmt::print("{}\n", json_text(json));
  return right ? ExitCode::kSuccess : ExitCode::kMismatch;
}

}  // namespace fp8lab::cli
