// fp8lab train: one run through all its stages.
#include <fmt/format.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <system_error>

#include "emulation/base/error.hpp"
#include "emulation/cpu/simd/target.hpp"
#include "src/backend/factory.hpp"
#include "src/cli/backend_option.hpp"
#include "src/cli/command.hpp"
#include "src/cli/output_path.hpp"
#include "src/cli/progress.hpp"
#include "src/cli/run_choice.hpp"
#include "src/cli/version.hpp"
#include "src/config/config.hpp"
#include "src/config/nearest_name.hpp"
#include "src/train/checkpoint.hpp"
#include "src/train/memory_fit.hpp"
#include "src/train/plan.hpp"
#include "src/train/run_check.hpp"
#include "src/train/run_directory.hpp"
#include "src/train/stop_signal.hpp"
#include "src/train/trainer.hpp"

namespace fp8lab::cli {
namespace {

namespace fs = std::filesystem;
Options train_options() {
  Options options("fp8lab train --config FILE | --preset NAME");
  add_run_choice(options);
  add_scale(options);
  options.add("backend", one_of(all_backends()), "default: the run's");
  options.add("out", value<std::string>(), "run directory (default: runs/NAME)");
  options.add("init-from", value<std::string>(),
              "checkpoint, Hugging Face folder or safetensors file whose weights start the run");
  options.add("arm", value<std::string>(), "name of the study arm, recorded in the run file");
  options.add("threads", value<int>(0), "0: all processors");
  options.add(
      "simd", value<std::string>(),
      "backend cpu: portable, avx2, avx512, avx512_fp16 or avx512_amx, if fp8lab info lists it");
  options.add(
      "no-graphs",
      "backend cuda: launch kernels that repeat from step to step one by one; the same bits");
  options.add("resume", "continue the run in --out");
  options.add("dry-run",
              "print recipe, memory and time estimate, and what --out holds; write nothing");
  return options;
}

/// The last line of a terminal is rewritten; elsewhere a line appears every so many seconds.
class ProgressPrinter {
 public:
  explicit ProgressPrinter(double every_seconds) : every_(every_seconds) {}

  void operator()(const Progress& progress) {
    const auto now = std::chrono::steady_clock::now();
    const bool last = progress.step == progress.total_steps;
    if (!terminal_ && !last && progress.step > 2 && now - printed_ < every_) return;
    printed_ = now;
    const std::string line = fmt::format(
        "step {}/{} {} loss {:.4f} grad {:.3f} lr {:.2e} {:.0f} tokens/s {:.0f} s left",
        progress.step, progress.total_steps, progress.stage, progress.loss, progress.grad_norm,
        progress.learning_rate, progress.tokens_per_second, progress.seconds_left);
    if (terminal_) {
      fmt::print("\r{}\033[K{}", line, last ? "\n" : "");
    } else {
      fmt::print("{}\n", line);
    }
    std::fflush(stdout);
  }

 private:
  std::chrono::duration<double> every_;
  bool terminal_ = isatty(STDOUT_FILENO) == 1;
  std::chrono::steady_clock::time_point printed_;
};

void choose_simd(const Values& values, const std::string& backend) {
  if (values.count("simd") == 0) return;
  if (backend != "cpu") {
    throw Error(fmt::format("train: --simd is for backend cpu, this run is on {}", backend));
  }
  const std::string name = values["simd"].as<std::string>();
  std::vector<std::string> names;
  for (const cpu::SimdTarget target : cpu::available_targets()) {
    names.emplace_back(cpu::name_of(target));
    if (name == names.back()) return cpu::set_active_target(target);
  }
  throw Error(fmt::format("train: unknown SIMD target '{}'{}; this build has {}", name,
                          did_you_mean(name, names), fmt::join(names, ", ")));
}

/// Throws Error for what training would refuse before its first step: of the configuration, its
/// recipes and data, its start and its folder.
void check_run(const Values& values, const TrainerOptions& options, RunConfig config) {
  RunDirectory(options.directory).check(options.resume);
  if (!options.init_from.empty()) config.init_from = options.init_from;
  check_growth(config, config.init_from);
  RunCheck check(
      [&](const std::string& name) { return make_backend(name, threads_of(values, "train")); });
  check.check(config);
}

/// What --dry-run says of the options that a plan does not depend on.
std::string describe_options(const TrainerOptions& options, const RunConfig& config) {
  std::string text;
  const fs::path& initial = options.init_from.empty() ? config.init_from : options.init_from;
  if (!initial.empty()) {
    open_initial_state(initial, config.model, config.growth);
    text += fmt::format("initial weights of {}, which fit the model\n", initial.string());
  }
  for (const auto& [key, value] : options.extra_meta) text += fmt::format("{} {}\n", key, value);
  const char* found = options.resume ? "holds a run, which is continued" : "new";
  return text + fmt::format("output {}: {}\n", options.directory.string(), found);
}

/// Why this machine or device would refuse the run; empty where it fits.
std::string describe_refusal(const RunConfig& config, const Backend& backend) {
  try {
    require_memory_of(config, backend);
  } catch (const Error& error) {
    return fmt::format("refused here: {}\n", error.what());
  }
  return {};
}

TrainerOptions trainer_options(const Values& values, const RunConfig& config) {
  TrainerOptions options;
  options.directory = output_folder(text_of(values, "out", "runs/" + config.name), "train: --out");
  options.resume = values.count("resume") != 0;
  if (values.count("init-from") != 0) options.init_from = values["init-from"].as<std::string>();
  if (values.count("arm") != 0) options.extra_meta["arm"] = values["arm"].as<std::string>();
  options.code_version = code_version();
  options.simd_target = std::string(cpu::name_of(cpu::active_target()));
  return options;
}

}  // namespace

int train(const std::vector<std::string>& arguments) {
  const Values values = parse_arguments("train", train_options(), arguments);
  if (values.count("help") != 0) return ExitCode::kSuccess;
  const RunConfig config = chosen_run(values, "train");
  choose_simd(values, config.backend);
  TrainerOptions options = trainer_options(values, config);
  const std::unique_ptr<Backend> backend = make_backend(config.backend, threads_of(values, "train"),
                                                        "own", values.count("no-graphs") == 0);
  PhaseLine phase;
  if (values.count("dry-run") != 0) {
    phase.begin("opening the data");
    check_run(values, options, config);
    phase.begin("");
    const std::string said = describe_options(options, config);
    const std::string plan =
        describe_plan(config, *backend, [&](const std::string& what) { phase.begin(what); });
    phase.begin("whether it fits");
    const std::string refusal = describe_refusal(config, *backend);
    phase.begin("");
    fmt::print("{}{}{}", plan, said, refusal);
    return ExitCode::kSuccess;
  }
  require_memory_of(config, *backend);
  options.phase = [&](const std::string& what) { phase.begin(what); };
  options.progress = ProgressPrinter(config.logging.print_every_seconds);
  options.stop = &stop_flag();
  // Until the run begins nothing is written, and Ctrl-C ends the program as it is.
  Trainer trainer(config, *backend, options);
  print_notes(trainer.notes());
  catch_stop_signals();
  const RunOutcome outcome = trainer.run();
  phase.begin("");
  if (outcome == RunOutcome::interrupted) {
    fmt::print("interrupted after a checkpoint; --resume continues {}\n",
               options.directory.string());
    return ExitCode::kInterrupted;
  }
  fmt::print("complete: {}\n", (options.directory / "run.h5").string());
  return ExitCode::kSuccess;
}

}  // namespace fp8lab::cli
