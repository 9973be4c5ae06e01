// fp8lab validate: the arithmetic against recordings of the hardware.
#include <fmt/format.h>

#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "emulation/api/error.hpp"
#include "src/backend/factory.hpp"
#include "src/cli/command.hpp"
#include "src/cli/progress.hpp"
#include "src/io/atomic_file.hpp"
#include "src/validate/codec.hpp"
#include "src/validate/golden.hpp"
#include "src/validate/mutants.hpp"
#include "src/validate/scalar_arithmetic.hpp"
#if defined(FP8LAB_HAVE_CUDA)
#include "kernels/codec_sweep.hpp"
#include "src/validate/conv_hashes.hpp"
#endif

namespace fp8lab::cli {
namespace {

namespace po = boost::program_options;

/// One line of the result.
struct Row {
  std::string name;
  std::uint64_t cases = 0;
  std::uint64_t mismatches = 0;
  std::uint64_t unchecked = 0;
};

po::options_description validate_options() {
  po::options_description options("fp8lab validate codec | golden DIR | mutants [DIR]");
  auto add = options.add_options();
  add("what", po::value<std::string>(),
      "codec: conversions of all 2^32 floats; golden: recorded hardware results; mutants: whether "
      "the checks notice arithmetic that is wrong in one step");
  add("directory", po::value<std::string>(), "folder of the golden files");
  add("exhaustive", "codec: every float into every format of at most 16 bits (minutes)");
  add("backend", po::value<std::string>()->default_value("cpu"),
      "codec: cpu, or cuda for the same sweep on the device");
  add("threads", po::value<int>()->default_value(0), "golden: 0 for all processors");
  add("seed", po::value<std::uint64_t>()->default_value(1), "mutants: of the generated cases");
  add("json", po::value<std::string>(), "also write the result to this file");
  add("help", "this text");
  return options;
}

std::vector<Row> check_codecs(const po::variables_map& values) {
  ProgressLine progress;
  std::vector<Row> rows;
  for (const CodecReport& report :
       validate_codecs(values.count("exhaustive") != 0,
                       [&](const std::string& line) { progress.update(line); })) {
    rows.push_back({report.name, report.cases, report.mismatches, 0});
  }
  return rows;
}

/// The FP8 conversions of all 2^32 floats on the device, by our codec and by the instruction.
std::vector<Row> check_codecs_on_device() {
#if defined(FP8LAB_HAVE_CUDA)
  if (cuda::device_count() == 0) throw Error("validate: --backend cuda: no CUDA device is present");
  std::vector<Row> rows;
  for (const bool e5m2 : {false, true}) {
    for (const auto source : {cuda::CodecSource::numerics, cuda::CodecSource::hardware}) {
      const std::vector<std::uint64_t> hashes =
          cuda::codec_sweep(e5m2, source, kConversionHashSeed);
      const auto& expected = kConversionHashes[e5m2 ? 1 : 0];
      Row row{fmt::format("f32 to {} {}, device", e5m2 ? "e5m2" : "e4m3",
                          source == cuda::CodecSource::numerics ? "codec" : "instruction"),
              std::uint64_t{1} << 32, 0, 0};
      for (std::size_t chunk = 0; chunk < hashes.size(); ++chunk) {
        if (hashes[chunk] != expected[chunk]) row.mismatches += std::uint64_t{1} << 24;
      }
      rows.push_back(row);
    }
  }
  return rows;
#else
  throw Error("validate: --backend cuda: this build has no CUDA code");
#endif
}

std::vector<Row> check_golden(const po::variables_map& values,
                              std::vector<GoldenMismatch>& differences) {
  ProgressLine progress;
  GoldenOptions options;
  options.threads = values["threads"].as<int>();
  if (options.threads < 0) throw Error("validate: --threads must be 0 or more");
  options.progress = [&](const std::string& file, double fraction) {
    progress.update(fmt::format("{} {:.0f} %", file, 100.0 * fraction));
  };
  options.first_mismatch = [&](const GoldenMismatch& mismatch) { differences.push_back(mismatch); };
  std::vector<Row> rows;
  for (const GoldenReport& report :
       validate_golden(required(values, "directory", "validate golden"), options)) {
    rows.push_back({report.file, report.cases, report.mismatches, report.unchecked});
  }
  return rows;
}

Row add_up(const std::vector<Row>& rows) {
  Row total;
  for (const Row& row : rows) {
    total.cases += row.cases;
    total.mismatches += row.mismatches;
    total.unchecked += row.unchecked;
  }
  return total;
}

void write_json(const std::string& path, const std::string& what, const std::vector<Row>& rows,
                const std::vector<GoldenMismatch>& differences) {
  const Row total = add_up(rows);
  nlohmann::ordered_json json;
  json["what"] = what;
  json["cases"] = total.cases;
  json["mismatches"] = total.mismatches;
  json["unchecked"] = total.unchecked;
  json["files"] = nlohmann::json::array();
  for (const Row& row : rows) {
    json["files"].push_back({{"name", row.name},
                             {"cases", row.cases},
                             {"mismatches", row.mismatches},
                             {"unchecked", row.unchecked}});
  }
  json["first_mismatches"] = nlohmann::json::array();
  for (const GoldenMismatch& mismatch : differences) {
    json["first_mismatches"].push_back({{"file", mismatch.file},
                                        {"where", mismatch.where},
                                        {"expected", fmt::format("{:#x}", mismatch.expected)},
                                        {"actual", fmt::format("{:#x}", mismatch.actual)}});
  }
  write_file_atomically(path, json.dump(2) + "\n");
}

void print_mutants(const MutantOutcome& outcome) {
  for (const CheckReport& check : outcome.unmutated) {
    fmt::print("unmutated, {}: {} cases, {} mismatches{}{}\n", check.name, check.cases,
               check.mismatches, check.first.empty() ? "" : ": ", check.first);
  }
  std::size_t killed = 0;
  for (const MutantReport& mutant : outcome.mutants) {
    killed += mutant.killed ? 1 : 0;
    fmt::print("{}: {}: {}\n", mutant.name, mutant.broken,
               mutant.killed ? fmt::format("killed by {}: {}", mutant.check, mutant.first_mismatch)
                             : "SURVIVED");
  }
  fmt::print("{} mutants, {} killed, {} survived\n", outcome.mutants.size(), killed,
             outcome.mutants.size() - killed);
}

void write_mutants_json(const std::string& path, const MutantOutcome& outcome) {
  nlohmann::ordered_json json;
  json["what"] = "mutants";
  json["good"] = outcome.good();
  json["unmutated"] = nlohmann::json::array();
  for (const CheckReport& check : outcome.unmutated) {
    json["unmutated"].push_back({{"check", check.name},
                                 {"cases", check.cases},
                                 {"mismatches", check.mismatches},
                                 {"first_mismatch", check.first}});
  }
  json["mutants"] = nlohmann::json::array();
  for (const MutantReport& mutant : outcome.mutants) {
    json["mutants"].push_back({{"name", mutant.name},
                               {"broken", mutant.broken},
                               {"killed", mutant.killed},
                               {"check", mutant.check},
                               {"first_mismatch", mutant.first_mismatch}});
  }
  write_file_atomically(path, json.dump(2) + "\n");
}

/// The expected results are those of the shipped CPU backend; what it does not offer alone
/// (single casts, scales, instructions and elements) comes from the scalar reference.
int check_mutants(const po::variables_map& values) {
  if (values["backend"].as<std::string>() != "cpu") {
    throw Error("validate mutants: --backend: accepted: cpu");
  }
  MutantOptions options;
  if (values.count("directory") != 0) options.golden = values["directory"].as<std::string>();
  options.seed = values["seed"].as<std::uint64_t>();
  ProgressLine progress;
  options.progress = [&](const std::string& name) { progress.update(name); };
  const std::unique_ptr<Backend> backend = make_backend("cpu", values["threads"].as<int>());
  Implementation expected = scalar_implementation();
  Implementation shipped = backend_implementation(*backend);
  expected.quantize = std::move(shipped.quantize);
  expected.gemm = std::move(shipped.gemm);
  const MutantOutcome outcome = validate_mutants(expected, all_mutants(), options);
  print_mutants(outcome);
  if (values.count("json") != 0) write_mutants_json(values["json"].as<std::string>(), outcome);
  return outcome.good() ? ExitCode::kSuccess : ExitCode::kMismatch;
}

}  // namespace

int validate(const std::vector<std::string>& arguments) {
  po::positional_options_description positional;
  positional.add("what", 1).add("directory", 1);
  const po::variables_map values =
      parse_arguments("validate", validate_options(), arguments, positional);
  if (values.count("help") != 0) return ExitCode::kSuccess;
  const std::string what = required(values, "what", "validate");
  if (what == "mutants") return check_mutants(values);
  std::vector<GoldenMismatch> differences;
  std::vector<Row> rows;
  if (what == "codec") {
    const std::string backend = values["backend"].as<std::string>();
    if (backend != "cpu" && backend != "cuda") {
      throw Error(fmt::format("validate: unknown backend '{}'; accepted: cpu, cuda", backend));
    }
    rows = backend == "cuda" ? check_codecs_on_device() : check_codecs(values);
  } else if (what == "golden") {
    rows = check_golden(values, differences);
  } else {
    throw Error(
        fmt::format("validate: unknown check '{}'; accepted: codec, golden, mutants", what));
  }
  for (const Row& row : rows) {
    fmt::print("{}: {} cases, {} mismatches, {} unchecked\n", row.name, row.cases, row.mismatches,
               row.unchecked);
  }
  for (const GoldenMismatch& mismatch : differences) {
    fmt::print("first mismatch in {}: {}: expected {:#x}, got {:#x}\n", mismatch.file,
               mismatch.where, mismatch.expected, mismatch.actual);
  }
  const Row total = add_up(rows);
  fmt::print("{} cases, {} mismatches, {} unchecked\n", total.cases, total.mismatches,
             total.unchecked);
  if (values.count("json") != 0) {
    write_json(values["json"].as<std::string>(), what, rows, differences);
  }
  return total.mismatches == 0 && total.unchecked == 0 ? ExitCode::kSuccess : ExitCode::kMismatch;
}

}  // namespace fp8lab::cli
