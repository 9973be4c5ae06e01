// fp8lab verify: executes steps of a recorded run again and compares them.
#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "emulation/base/input_error.hpp"
#include "src/cli/command.hpp"
#include "src/cli/inputs/model_source.hpp"
#include "src/cli/options/backend_option.hpp"
#include "src/cli/options/output_path.hpp"
#include "src/cli/options/replay_options.hpp"
#include "src/cli/progress.hpp"
#include "src/io/hash.hpp"
#include "src/replay/verify_run.hpp"

namespace fp8lab::cli {
namespace {

Options verify_options() {
  Options options(fmt::format(
      "fp8lab verify RUN\n"
      "RUN is a run folder or its run.h5. Executes steps again, and compares the bits of loss,\n"
      "gradient norm and weight hash with the file: from the checkpoint beside it if the run went\n"
      "on after that, else from the beginning, at most {} steps. The training data must be\n"
      "unchanged, and so must the initial weights for a start from the beginning. Status 3: a\n"
      "step has other bits",
      kVerifiedSteps));
  options.add("run", value<std::string>(), "RUN");
  options.add("steps", value<std::int64_t>(),
              "number of steps: --from 5 --steps 3 compares steps 6 to 8");
  options.add(
      "from", value<std::int64_t>(),
      "step after which --steps begins to count; steps between the start and it are executed and "
      "compared as well");
  options.add("backend", one_of(all_backends()),
              "backend that executes the steps (default: as recorded)");
  add_replay_options(options);
  return options;
}

/// Returns a number that must be at least `least`, or nothing.
std::optional<std::int64_t> counted(const Values& values, const std::string& option,
                                    std::int64_t least) {
  if (values.count(option) == 0) return std::nullopt;
  const auto number = values[option].as<std::int64_t>();
  if (number < least) {
    throw InputError({.where = "verify",
                      .key = fmt::format("--{}", option),
                      .found = fmt::to_string(number),
                      .accepted = fmt::format("numbers from {} on", least)});
  }
  return number;
}

nlohmann::ordered_json to_json(const RecordedRun& run, const Verification& found) {
  const bool good = found.difference.step < 0;
  nlohmann::ordered_json json = {{"what", "verify"},
                                 {"run", run.file.string()},
                                 {"good", good},
                                 {"start_step", found.start.position.step},
                                 {"executed", found.executed},
                                 {"compared", found.compared},
                                 {"hashed", found.hashed}};
  if (good) return json;
  json["first_step"] = found.difference.step;
  json["difference"] = found.difference.what;
  const auto record = [](const StepRecord& step) -> nlohmann::ordered_json {
    return {
        {"loss", step.loss}, {"grad_norm", step.grad_norm}, {"weights", hex16(step.weight_hash)}};
  };
  json["recorded"] = record(found.expected);
  json["executed_again"] = record(found.actual);
  return json;
}

}  // namespace

int verify(const std::vector<std::string>& arguments) {
  const Values values = parse_arguments("verify", verify_options(), arguments, {{"run", 1}});
  if (values.count("help") != 0) return ExitCode::kSuccess;
  check_output_files(values, "verify", {"json"});
  const std::optional<std::int64_t> from = counted(values, "from", 0),
                                    steps = counted(values, "steps", 1);
  const RecordedRun run =
      open_recorded_run(required(values, "run", "verify"), folders_to_look_in(values, "verify"));
  const ReplaySource source = chosen_source(run, values, "backend", "verify");
  require_unread(values, "verify", {"json"});
  PhaseLine phase;
  const Verification found =
      verify_run(run, source, from, steps, [&](const std::string& what) { phase.begin(what); });
  phase.begin("");
  if (values.count("json") != 0) {
    write_json(values["json"].as<std::string>(), to_json(run, found));
  }
  const std::int64_t first = found.start.position.step;
  if (found.difference.step < 0) {
    fmt::print("{}: verified on {}: steps {} to {}, {} steps, same bits{}\n", run.file.string(),
               source.config.backend, first + 1, found.last, found.compared,
               found.hashed == 0 ? "; the file has no hashes of the weights" : "");
    return ExitCode::kSuccess;
  }
  fmt::print(
      "{}: on {} {} differs first at step {}: loss {} in the file and {} here, weights {} "
      "and {}\n",
      run.file.string(), source.config.backend, found.difference.what, found.difference.step,
      found.expected.loss, found.actual.loss, hex16(found.expected.weight_hash),
      hex16(found.actual.weight_hash));
  return ExitCode::kMismatch;
}

}  // namespace fp8lab::cli
