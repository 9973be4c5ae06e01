// fp8lab validate: compares the arithmetic with recordings of the hardware.
#include <fmt/format.h>

#include <cstdint>
#include <cstdio>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "emulation/base/input_error.hpp"
#include "src/backend/factory.hpp"
#include "src/cli/command.hpp"
#include "src/cli/options/backend_option.hpp"
#include "src/cli/options/output_path.hpp"
#include "src/cli/progress.hpp"
#include "src/cli/validate_steps.hpp"
#include "src/cli/version.hpp"
#include "src/config/reading/document_kind.hpp"
#include "src/io/printable.hpp"
#include "src/validate/codec.hpp"
#include "src/validate/device_check.hpp"
#include "src/validate/export.hpp"
#include "src/validate/golden.hpp"
#include "src/validate/kernels.hpp"
#include "src/validate/measure_device.hpp"
#include "src/validate/mutants.hpp"
#include "src/validate/scalar_arithmetic.hpp"
#include "src/validate/third_party.hpp"
#if defined(FP8LAB_HAVE_CUDA)
#include "kernels/probes/codec_sweep.hpp"
#include "src/validate/conv_hashes.hpp"
#endif

namespace fp8lab::cli {
namespace {

/// One line of the result.
struct Row {
  std::string name;
  std::uint64_t cases = 0;
  std::uint64_t mismatches = 0;
  std::uint64_t unchecked = 0;
};

Options validate_options() {
  Options options(
      "fp8lab validate codec | golden DIR | thirdparty DIR | mutants [DIR] | kernels |\n"
      "    step [FILE...] | export DIR | device [PACK...]\n"
      "validate device asks the card of this machine (compute capability 8.0 or later) for "
      "tensor-core\n"
      "products and conversions, and compares them with the profiles of the specification. Results "
      "of\n"
      "A100, A2, Ada, L40S, H100, H200 and B200 are recorded; those of compute capability 8.7, "
      "10.3,\n"
      "11.0, 12.0 and 12.1 were never seen. The probe itself has run on an H200 and on a simulated "
      "GPU.\n"
      "It does not ask tcgen05, block-scaled instructions and sparse ones. --out writes a "
      "pack\n"
      "that you can send; validate device PACK compares it on any machine.");
  options.add(
      "what", value<std::string>(),
      "codec: conversions of all 2^32 floats; golden: recorded hardware results; thirdparty: "
      "results that others recorded, files CHIP_FORMAT.npz; mutants: whether the checks notice "
      "arithmetic that is wrong in one step; kernels: every operation of a "
      "backend against the CPU emulator; step: whole training steps likewise, or against recorded "
      "ones; export: vectors with hashes for other implementations; device: the tensor cores and "
      "conversions of a card");
  options.add("directory", value<std::vector<std::string>>(),
              "folder of the recorded files (golden, thirdparty, mutants) or of the new ones "
              "(export); step: recorded files to replay; device: packs instead of the card");
  options.add("out", value<std::string>(), "device: the pack to write");
  options.add("exhaustive", "codec: every float into every format of at most 16 bits (minutes)");
  options.add("backend", one_of(quantizing_backends(), "cpu"),
              "codec, kernels, step: backend under test");
  options.add("threads", value<int>(0), "number of CPU threads; 0: one for each processor");
  options.add("seed", value<std::uint64_t>(1),
              "mutants, kernels, export, device: random seed of the cases");
  options.add("outputs", value<std::uint64_t>(20'000'000), "kernels: number of outputs to compare");
  options.add("rounds", value<int>(4),
              "kernels: at least this many rounds; small shapes come first");
  options.add("repeats", value<int>(2), "kernels: number of repeated calls, which must agree");
  options.add("only", value<std::string>(""),
              "kernels: only operations whose names contain this text");
  options.add("preset", value<std::string>("quickstart"), "step: built-in configuration");
  options.add("recipe", value<std::vector<std::string>>(),
              "step: recipe, repeatable (default: bf16)");
  options.add_set("step: KEY=VALUE, repeatable");
  options.add("steps", value<int>(), "step: replay only this many steps of each recording");
  options.add("no-graphs", "step: backend cuda without CUDA graphs");
  options.add("record", value<std::string>(),
              "step: folder to record the steps of the backend in, one file for each recipe");
  options.add("json", value<std::string>(), "also write the result to this file");
  return options;
}

/// Returns the folder that was given, or an empty text.
std::string directory_of(const Values& values) {
  if (values.count("directory") == 0) return {};
  const auto& given = values["directory"].as<std::vector<std::string>>();
  if (given.size() > 1)
    throw InputError(
        {.where = "validate", .reason = fmt::format("one folder is enough, got {} too", given[1])});
  return given.front();
}

std::string recorded_directory(const Values& values, const std::string& what) {
  const std::string directory = directory_of(values);
  if (!directory.empty()) return directory;
  throw InputError({.where = fmt::format("validate {}", what),
                    .reason = fmt::format("the folder of the {} files is missing", what)});
}

std::vector<Row> check_codecs(const Values& values) {
  ProgressLine progress;
  std::vector<Row> rows;
  for (const CodecReport& report :
       validate_codecs(values.count("exhaustive") != 0,
                       [&](const std::string& line) { progress.update(line); })) {
    rows.push_back({report.name, report.cases, report.mismatches, 0});
  }
  return rows;
}

#if defined(FP8LAB_HAVE_CUDA)
/// Returns the expected hashes: recorded ones for FP8, those of the codec on the CPU for bf16.
std::vector<std::uint64_t> conversion_hashes(cuda::SweptFormat format) {
  if (format != cuda::SweptFormat::bf16) {
    const auto& recorded = kConversionHashes[format == cuda::SweptFormat::e5m2 ? 1 : 0];
    return {std::begin(recorded), std::end(recorded)};
  }
  std::vector<std::uint64_t> hashes;
  for (const Bf16ChunkResult& result : sweep_bf16(kConversionHashSeed)) {
    hashes.push_back(result.hash);
  }
  return hashes;
}
#endif

/// Compares the conversions of all 2^32 floats on the device, by the codec and by the instruction.
std::vector<Row> check_codecs_on_device() {
#if defined(FP8LAB_HAVE_CUDA)
  if (cuda::device_count() == 0)
    throw InputError({.where = "validate",
                      .key = "--backend",
                      .found = "cuda",
                      .reason = ": no CUDA device is present"});
  constexpr std::pair<cuda::SweptFormat, const char*> kFormats[] = {
      {cuda::SweptFormat::e4m3, "e4m3"},
      {cuda::SweptFormat::e5m2, "e5m2"},
      {cuda::SweptFormat::bf16, "bf16"}};
  std::vector<Row> rows;
  for (const auto& [format, name] : kFormats) {
    const std::vector<std::uint64_t> expected = conversion_hashes(format);
    for (const auto source : {cuda::CodecSource::numerics, cuda::CodecSource::hardware}) {
      const std::vector<std::uint64_t> hashes =
          cuda::codec_sweep(format, source, kConversionHashSeed);
      Row row{fmt::format("f32 to {} {}, device", name,
                          source == cuda::CodecSource::numerics ? "codec" : "instruction"),
              std::uint64_t{1} << 32, 0, 0};
      for (std::size_t chunk = 0; chunk < hashes.size(); ++chunk) {
        if (hashes[chunk] != expected[chunk]) row.mismatches += std::uint64_t{1} << 24;
      }
      rows.push_back(row);
    }
  }
  constexpr std::uint64_t kReciprocals = std::uint64_t{251} << 23;
  rows.push_back({"1 / x for 2^-125 <= x < 2^126 without a branch, device", kReciprocals,
                  cuda::reciprocal_sweep(), 0});
  return rows;
#else
  throw InputError({.where = "validate",
                    .key = "--backend",
                    .found = "cuda",
                    .reason = ": this build has no CUDA code"});
#endif
}

std::vector<Row> check_golden(const Values& values, std::vector<GoldenMismatch>& differences) {
  ProgressLine progress;
  GoldenOptions options;
  options.threads = values["threads"].as<int>();
  options.progress = [&](const std::string& file, double fraction) {
    progress.update(fmt::format("{} {:.0f} %", file, 100.0 * fraction));
  };
  options.first_mismatch = [&](const GoldenMismatch& mismatch) { differences.push_back(mismatch); };
  std::vector<Row> rows;
  for (const GoldenReport& report :
       validate_golden(recorded_directory(values, "golden"), options)) {
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

void write_rows_json(const std::string& path, const std::string& what, const std::vector<Row>& rows,
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
  write_json(path, json);
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
  write_json(path, json);
}

/// Returns the shipped CPU backend; functions that it does not offer separately (single casts,
/// scales, instructions and elements) come from the scalar reference.
Implementation shipped_implementation(Backend& backend) {
  Implementation implementation = scalar_implementation();
  Implementation shipped = backend_implementation(backend);
  implementation.quantize = std::move(shipped.quantize);
  implementation.gemm = std::move(shipped.gemm);
  return implementation;
}

int export_pack(const Values& values) {
  const std::string directory = directory_of(values);
  if (directory.empty())
    throw InputError({.where = "validate export", .reason = "the folder to be made is missing"});
  const auto seed = values["seed"].as<std::uint64_t>();
  const std::unique_ptr<Backend> backend = make_backend("cpu", values["threads"].as<int>());
  const ExportReport report =
      export_vectors(shipped_implementation(*backend), directory, seed, project_version());
  fmt::print("{}: {} results in {} files, {} bytes, seed {}\n", directory, report.results,
             report.files, report.bytes, seed);
  if (values.count("json") != 0) {
    const nlohmann::ordered_json json = {{"what", "export"},
                                         {"results", report.results},
                                         {"files", report.files},
                                         {"bytes", report.bytes},
                                         {"seed", seed}};
    write_json(values["json"].as<std::string>(), json);
  }
  return ExitCode::kSuccess;
}

int check_mutants(const Values& values) {
  MutantOptions options;
  options.golden = directory_of(values);
  options.seed = values["seed"].as<std::uint64_t>();
  ProgressLine progress;
  options.progress = [&](const std::string& name) { progress.update(name); };
  const std::unique_ptr<Backend> backend = make_backend("cpu", values["threads"].as<int>());
  const MutantOutcome outcome =
      validate_mutants(shipped_implementation(*backend), all_mutants(), options);
  print_mutants(outcome);
  if (values.count("json") != 0) write_mutants_json(values["json"].as<std::string>(), outcome);
  return outcome.good() ? ExitCode::kSuccess : ExitCode::kMismatch;
}

void write_kernels_json(const std::string& path, const Backend& tested,
                        const KernelOutcome& outcome) {
  nlohmann::ordered_json json;
  json["what"] = "kernels";
  json["device"] = tested.device();
  json["good"] = outcome.good();
  json["outputs"] = outcome.outputs;
  json["kernels"] = nlohmann::json::array();
  for (const KernelReport& kernel : outcome.kernels) {
    json["kernels"].push_back({{"kernel", kernel.kernel},
                               {"calls", kernel.calls},
                               {"outputs", kernel.outputs},
                               {"mismatches", kernel.mismatches}});
  }
  json["first_mismatches"] = nlohmann::json::array();
  for (const KernelMismatch& mismatch : outcome.mismatches) {
    json["first_mismatches"].push_back({{"kernel", mismatch.kernel},
                                        {"call", mismatch.what},
                                        {"tensor", mismatch.tensor},
                                        {"row", mismatch.row},
                                        {"col", mismatch.col},
                                        {"expected", fmt::format("{:#x}", mismatch.expected)},
                                        {"actual", fmt::format("{:#x}", mismatch.actual)},
                                        {"elements", mismatch.count},
                                        {"outside", mismatch.guard}});
  }
  write_json(path, json);
}

void print_mismatch(const KernelMismatch& mismatch) {
  fmt::print(
      "first mismatch of {}: {}: tensor {} row {} col {}: expected {:#x}, got {:#x}{}; {} "
      "elements differ\n",
      mismatch.kernel, mismatch.what, mismatch.tensor, mismatch.row, mismatch.col,
      mismatch.expected, mismatch.actual,
      mismatch.guard ? " (memory that must not be written)" : "", mismatch.count);
  std::fflush(stdout);
}

int check_kernels(const Values& values) {
  for (const char* option : {"rounds", "repeats"})
    positive_count(values, "validate kernels", option);
  const std::unique_ptr<Backend> tested =
      make_backend(values["backend"].as<std::string>(), values["threads"].as<int>());
  const std::unique_ptr<Backend> expected = make_backend("cpu", values["threads"].as<int>());
  KernelOptions options;
  options.seed = values["seed"].as<std::uint64_t>();
  options.outputs = values["outputs"].as<std::uint64_t>();
  options.rounds = values["rounds"].as<int>();
  options.repeats = values["repeats"].as<int>();
  options.only = values["only"].as<std::string>();
  ProgressLine progress;
  std::size_t printed = 0;
  // Printed immediately, since a comparison may be interrupted.
  options.progress = [&](const std::string& kernel, const KernelOutcome& so_far) {
    for (; printed < so_far.mismatches.size(); ++printed) {
      progress.clear();
      print_mismatch(so_far.mismatches[printed]);
    }
    progress.update(fmt::format("{} outputs, {} kernels with mismatches; {}", so_far.outputs,
                                so_far.mismatches.size(), kernel));
  };
  const KernelOutcome outcome = validate_kernels(*expected, *tested, options);
  progress.clear();
  for (const KernelReport& kernel : outcome.kernels) {
    fmt::print("{}: {} calls, {} outputs, {} mismatches\n", kernel.kernel, kernel.calls,
               kernel.outputs, kernel.mismatches);
  }
  fmt::print("{}: {} outputs, {} kernels with mismatches\n", tested->device(), outcome.outputs,
             outcome.mismatches.size());
  if (values.count("json") != 0) {
    write_kernels_json(values["json"].as<std::string>(), *tested, outcome);
  }
  return outcome.good() ? ExitCode::kSuccess : ExitCode::kMismatch;
}

/// Prints the result of a check, and writes it to the file of --json.
int report_rows(const Values& values, const std::string& what, const std::vector<Row>& rows,
                const std::vector<GoldenMismatch>& differences) {
  for (const Row& row : rows) {
    fmt::print("{}: {} cases, {} mismatches, {} unchecked\n", printable(row.name), row.cases,
               row.mismatches, row.unchecked);
  }
  for (const GoldenMismatch& mismatch : differences) {
    fmt::print("first mismatch in {}: {}: expected {:#x}, got {:#x}\n", printable(mismatch.file),
               printable(mismatch.where), mismatch.expected, mismatch.actual);
  }
  const Row total = add_up(rows);
  fmt::print("{} cases, {} mismatches, {} unchecked\n", total.cases, total.mismatches,
             total.unchecked);
  if (values.count("json") != 0) {
    write_rows_json(values["json"].as<std::string>(), what, rows, differences);
  }
  return total.mismatches == 0 && total.unchecked == 0 ? ExitCode::kSuccess : ExitCode::kMismatch;
}

int codec(const Values& values) {
  if (values["backend"].as<std::string>() == "cpu") {
    return report_rows(values, "codec", check_codecs(values), {});
  }
  refuse_given(values, "validate codec", {"exhaustive"}, "is for --backend cpu");
  return report_rows(values, "codec", check_codecs_on_device(), {});
}

int golden(const Values& values) {
  std::vector<GoldenMismatch> differences;
  const std::vector<Row> rows = check_golden(values, differences);
  return report_rows(values, "golden", rows, differences);
}

int third_party(const Values& values) {
  std::vector<GoldenMismatch> differences;
  std::vector<Row> rows;
  for (const ThirdPartyReport& report : validate_third_party(
           recorded_directory(values, "thirdparty"),
           [&](const GoldenMismatch& mismatch) { differences.push_back(mismatch); })) {
    rows.push_back({fmt::format("{} ({})", report.counts.file, report.rule), report.counts.cases,
                    report.counts.mismatches, report.counts.unchecked});
  }
  return report_rows(values, "thirdparty", rows, differences);
}

void print_device_findings(const DeviceFacts& facts, const std::vector<DeviceFinding>& findings) {
  const std::string_view cards = recorded_cards(facts.major, facts.minor);
  fmt::print("{}, compute capability {}.{} ({}), driver {}.{}\n", printable(facts.name),
             facts.major, facts.minor,
             cards.empty() ? "no results recorded" : fmt::format("recorded: {}", cards),
             facts.driver / 1000, facts.driver % 1000 / 10);
  for (const DeviceFinding& finding : findings) {
    if (finding.unchecked > 0) {
      fmt::print("{}: no profile, {} results; {}\n", finding.what, finding.unchecked,
                 finding.deviation);
      continue;
    }
    fmt::print("{}: {}, {} results, {} differ{}\n", finding.what, finding.expected, finding.results,
               finding.different,
               finding.deviation.empty()
                   ? ""
                   : fmt::format(": {}; first: {}", finding.deviation, finding.first));
  }
}

nlohmann::ordered_json json_of(const DeviceFacts& facts,
                               const std::vector<DeviceFinding>& findings) {
  nlohmann::ordered_json json = {
      {"device", facts.name},
      {"compute_capability", fmt::format("{}.{}", facts.major, facts.minor)},
      {"driver", facts.driver}};
  json["findings"] = nlohmann::json::array();
  for (const DeviceFinding& finding : findings) {
    json["findings"].push_back({{"what", finding.what},
                                {"expected", finding.expected},
                                {"results", finding.results},
                                {"different", finding.different},
                                {"unchecked", finding.unchecked},
                                {"deviation", finding.deviation},
                                {"first", finding.first}});
  }
  return json;
}

int device(const Values& values) {
  std::vector<DevicePack> packs;
  if (values.count("directory") != 0) {
    refuse_given(values, "validate device", {"out", "seed"}, "is for the card, not for packs");
    for (const std::string& path : values["directory"].as<std::vector<std::string>>()) {
      refuse_other_kind(path, kPackKind);
      packs.push_back(read_device_pack(path));
    }
  } else {
    DeviceMeasurement measurement;
    measurement.seed = values["seed"].as<std::uint64_t>();
    packs.push_back(measure_device(measurement, project_version()));
    if (values.count("out") != 0) {
      write_device_pack(values["out"].as<std::string>(), packs.front());
    }
  }
  Row total;
  nlohmann::ordered_json json = {{"what", "device"}, {"packs", nlohmann::json::array()}};
  PhaseLine phase;
  for (const DevicePack& pack : packs) {
    phase.begin("validate device: comparing, and looking for what explains a difference");
    const std::vector<DeviceFinding> findings = check_device_pack(pack);
    phase.begin("");
    print_device_findings(pack.facts, findings);
    json["packs"].push_back(json_of(pack.facts, findings));
    for (const DeviceFinding& finding : findings) {
      total.cases += finding.results;
      total.mismatches += finding.different;
      total.unchecked += finding.unchecked;
    }
  }
  fmt::print("{} cases, {} mismatches, {} unchecked\n", total.cases, total.mismatches,
             total.unchecked);
  if (values.count("out") != 0) fmt::print("pack: {}\n", values["out"].as<std::string>());
  if (values.count("json") != 0) write_json(values["json"].as<std::string>(), json);
  return total.mismatches == 0 && total.unchecked == 0 ? ExitCode::kSuccess : ExitCode::kMismatch;
}

}  // namespace

int validate(const std::vector<std::string>& arguments) {
  const Values values =
      parse_arguments("validate", validate_options(), arguments, {{"what", 1}, {"directory", -1}});
  if (values.count("help") != 0) return ExitCode::kSuccess;
  check_output_files(values, "validate", {"json", "out"});
  threads_of(values, "validate");
  return run_action(
      "validate", values, "what",
      {{"codec", "", {"exhaustive", "backend", "json"}, codec},
       {"golden", "directory", {"threads", "json"}, golden},
       {"thirdparty", "directory", {"json"}, third_party},
       {"mutants", "directory", {"threads", "seed", "json"}, check_mutants},
       {"kernels",
        "",
        {"backend", "threads", "seed", "outputs", "rounds", "repeats", "only", "json"},
        check_kernels},
       {"step",
        "directory",
        {"backend", "threads", "preset", "recipe", "set", "steps", "no-graphs", "record", "json"},
        validate_steps},
       {"export", "directory", {"threads", "seed", "json"}, export_pack},
       {"device", "directory", {"out", "seed", "json"}, device}});
}

}  // namespace fp8lab::cli
