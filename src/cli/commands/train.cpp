// fp8lab train: trains one run through all its stages.
#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <optional>
#include <system_error>

#include "emulation/base/error.hpp"
#include "emulation/base/input_error.hpp"
#include "emulation/cpu/simd/target.hpp"
#include "src/backend/factory.hpp"
#include "src/cli/analysis_package.hpp"
#include "src/cli/command.hpp"
#include "src/cli/kernel_plans.hpp"
#include "src/cli/live_log.hpp"
#include "src/cli/options/backend_option.hpp"
#include "src/cli/options/option_assignments.hpp"
#include "src/cli/options/output_path.hpp"
#include "src/cli/options/run_choice.hpp"
#include "src/cli/progress.hpp"
#include "src/cli/version.hpp"
#include "src/cli/ways_on.hpp"
#include "src/config/config.hpp"
#include "src/config/reading/experiments.hpp"
#include "src/io/files/file_kind.hpp"
#include "src/io/hdf5/run_reader.hpp"
#include "src/io/shell_word.hpp"
#include "src/study/step_slot.hpp"
#include "src/train/checkpoint/checkpoint.hpp"
#include "src/train/plan/memory_fit.hpp"
#include "src/train/plan/plan.hpp"
#include "src/train/run_check.hpp"
#include "src/train/run_directory.hpp"
#include "src/train/run_ending.hpp"
#include "src/train/run_record.hpp"
#include "src/train/stop_signal.hpp"
#include "src/train/trainer.hpp"

namespace fp8lab::cli {
namespace {

namespace fs = std::filesystem;

/// Returns the SIMD targets that this build contains and this processor supports.
std::vector<std::string> simd_names() {
  std::vector<std::string> names;
  for (const cpu::SimdTarget target : cpu::available_targets()) {
    names.emplace_back(cpu::name_of(target));
  }
  return names;
}

Options train_options() {
  Options options(
      "fp8lab train --config FILE | --preset NAME\n"
      "Status 0: complete. 5: complete, but diverged (a loss that is not finite, or a smoothed "
      "loss\n"
      "that ends more than 0.5 nats above its best of the first third of a stage). 1: stopped by "
      "a\n"
      "loss that is not finite (logging.nonfinite = \"stop\"), or by the machine. 4: interrupted\n"
      "after a checkpoint. With --dry-run, 0: the run would begin here; 2: it would be refused\n"
      "here, as the last line says, even if the plan could be printed");
  add_run_choice(options);
  add_scale(options);
  options.add("backend", one_of(all_backends()), "what computes (default: the run file's backend)");
  options.add("out", value<std::string>(), "run directory (default: runs/NAME)");
  options.add("init-from", value<std::string>(),
              "initial weights: a checkpoint, a Hugging Face folder or a safetensors file (key "
              "init_from of "
              "the run file)");
  options.add("arm", value<std::string>(), "name of the study arm, recorded in the run file");
  options.add("threads", value<int>(0), "number of CPU threads; 0: one for each processor");
  options.add("simd", one_of(simd_names()), "backend cpu: instruction set (default: the best)");
  options.add("no-graphs", "backend cuda: no CUDA graphs; the bits are the same");
  options.add("step-descriptor", value<int>(),
              "used by ablate: open file descriptor to which each step and its loss are written");
  options.add("log", one_of({"tensorboard", "trackio"}),
              "also write metrics for this program while training");
  options.add("log-dir", value<std::string>(), "where --log writes (default: a folder in --out)");
  add_python(options, "numpy, scipy and h5py, for --log");
  options.add(
      "resume",
      "continue the run in --out; without --config and --preset, with the configuration, the "
      "recipes and the data that it has recorded");
  options.add(
      "dry-run",
      "print the recipe, estimates of memory and time, and the state of --out; refuse what a run "
      "would refuse (status 2, after the plan if only memory is missing); write nothing");
  options.add("kernels",
              "with --dry-run: also print the CUDA kernels that a step chooses for quantizations "
              "and fused operations; needs no GPU");
  return options;
}

/// Prints steps: on a terminal, rewrites the last line; elsewhere prints a line at the set
/// interval. Other messages about the run are printed on lines of their own.
class RunPrinter {
 public:
  explicit RunPrinter(double every_seconds) : every_(every_seconds) {}

  void tell(const std::string& line) const {
    fmt::print("{}{}\n", terminal_ ? "\r\033[K" : "", line);
    std::fflush(stdout);
  }

  void show(const Progress& progress) {
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
    throw InputError({.where = "train",
                      .key = "--simd",
                      .reason = fmt::format("is for backend cpu, this run is on {}", backend)});
  }
  for (const cpu::SimdTarget target : cpu::available_targets()) {
    if (cpu::name_of(target) == values["simd"].as<std::string>()) cpu::set_active_target(target);
  }
}

/// Returns an open descriptor other than those of input, output and errors.
int step_descriptor(const Values& values) {
  const int descriptor = values["step-descriptor"].as<int>();
  if (descriptor > STDERR_FILENO && ::fcntl(descriptor, F_GETFD) != -1) return descriptor;
  throw InputError({.where = "train",
                    .key = "--step-descriptor",
                    .found = fmt::to_string(descriptor),
                    .reason = "is none that is open beyond 2"});
}

/// Describes, for --dry-run, the options that do not affect the plan.
std::string describe_options(const TrainerOptions& options, const RunConfig& config) {
  std::string text;
  if (!config.init_from.empty()) {
    text += fmt::format("initial weights of {}, which fit the model\n", config.init_from.string());
  }
  for (const auto& [key, value] : options.extra_meta) text += fmt::format("{} {}\n", key, value);
  const char* found = options.resume ? "holds a run, which is continued" : "new";
  return text + fmt::format("output {}: {}\n", options.directory.string(), found);
}

/// Returns the last lines of a plan if this machine or device would refuse the run; empty if it
/// fits.
std::string describe_refusal(const RunConfig& config, const Backend& backend) {
  try {
    require_memory_of(config, backend);
  } catch (const Error& error) {
    return fmt::format(
        "\nthis plan is for a {} with more memory than this one\n"
        "train would be refused here (status {}, as of this --dry-run): {}\n",
        backend.is_on_host() ? "machine" : "device", ExitCode::kBadInput, error.what());
  }
  return {};
}

/// Returns true for --resume without --config and --preset: the run file has the configuration.
bool resumes_recorded(const Values& values) {
  return values.count("resume") != 0 && values.count("config") + values.count("preset") == 0;
}

/// Returns the run to continue, of the run file in --out: its configuration and its recipes as
/// they were recorded, with the other options applied, and its files where they are now. A change
/// that would make it another run is refused later, as with --config (RunDirectory::status_of).
RunConfig recorded_choice(const Values& values) {
  refuse_given(values, "train --resume", {"scale"}, "is for --config and --preset");
  if (values.count("out") == 0) {
    throw InputError({.where = "train",
                      .key = "--resume",
                      .reason = "needs the folder of the run",
                      .accepted = "--out FOLDER"});
  }
  const fs::path file = fs::path(values["out"].as<std::string>()) / "run.h5";
  if (!is_present(file)) {
    throw InputError({.where = file.string(),
                      .reason = "no run to resume",
                      .remedy = "start it with --config or --preset, without --resume"});
  }
  const RunMeta meta = read_run_status(file).meta;
  require_continuable(meta, file);
  OptionAssignments assignments(values, "train");
  assignments.add_set();
  assignments.add("recipe", "recipe");
  assignments.add("backend", "backend");
  assignments.add("init-from", "init_from");
  RunConfig config =
      assignments.reading([&] { return recorded_run(meta, file.string(), assignments.all()); });
  const RunPlaces places(meta, file, {});
  for (StageConfig& stage : config.stages) {
    stage.data = places.training_data(stage);
    if (!stage.eval) continue;
    stage.eval->data = places.evaluation_data(stage);
    stage.eval->multiple_choice = places.questions(stage);
  }
  if (const auto found = places.candidates(config.init_from); !found.empty()) {
    config.init_from = found.front();
  }
  return config;
}

/// Returns the arguments of the command that began the run, without --resume if these are
/// `arguments`; those of the run file for a run that is resumed by its folder alone. Empty if they
/// are not recorded, or would mean other files here than where the run was started.
std::vector<std::string> first_arguments(const Values& values,
                                         const std::vector<std::string>& arguments) {
  if (!resumes_recorded(values)) return arguments;
  const RunMeta meta = read_run_status(fs::path(values["out"].as<std::string>()) / "run.h5").meta;
  const auto command = meta.extra.find(kCommandKey);
  const auto folder = meta.extra.find(kStartedInKey);
  if (command == meta.extra.end() || folder == meta.extra.end()) return {};
  if (folder->second != fs::current_path().string()) return {};
  std::vector<std::string> words = shell_words(command->second);
  constexpr std::size_t kProgramAndCommand = 2;
  if (words.size() <= kProgramAndCommand) return {};
  words.erase(words.begin(), words.begin() + kProgramAndCommand);
  return words;
}

/// Returns the time at which the run file was last written; nothing without a run file.
std::optional<fs::file_time_type> written_at(const fs::path& directory) {
  std::error_code error;
  const fs::file_time_type time = fs::last_write_time(directory / "run.h5", error);
  return error ? std::nullopt : std::optional(time);
}

/// Returns the commands that show what stopped a run.
std::string failure_commands(const fs::path& directory) {
  const std::string run = shell_path(directory.string());
  return fmt::format("fp8lab report {0}/run.h5 | fp8lab doctor {0}", run);
}

/// Returns what to do about a run that a value stopped which is not finite; nothing after another
/// failure.
std::vector<std::string> ways_after_failure(const RunConfig& config, const fs::path& directory,
                                            const std::vector<std::string>& arguments) {
  if (arguments.empty()) return {};
  try {
    const RunData run = read_run(directory / "run.h5");
    if (run.metrics.empty() || run.events.empty()) return {};
    const StepRecord& last = run.metrics.back();
    const EventRecord& event = run.events.back();
    if (event.kind != "nan" || event.step != last.step) return {};
    return ways_on({config, directory, static_cast<std::size_t>(last.stage), last.step, arguments,
                    had_update_before_break(run)});
  } catch (const Error&) {
    return {};  // doctor examines the file; the failure itself is reported
  }
}

/// Prints the closing lines of a complete run and returns the exit status.
int tell_ending(const RunConfig& config, const fs::path& directory,
                const std::vector<std::string>& arguments) {
  const fs::path file = directory / "run.h5";
  const RunData run_data = read_run(file);
  const RunEnding ending = describe_ending(run_data);
  fmt::print("{}: {}\n", ending.diverged ? "complete, but diverged" : "complete", file.string());
  for (const std::string& line : ending.lines) fmt::print("{}\n", line);
  if (ending.diverged && !arguments.empty()) {
    for (const std::string& line : ways_on(
             {config, directory, ending.stage, 0, arguments, had_update_before_break(run_data)})) {
      fmt::print("{}\n", line);
    }
  }
  const std::string run = shell_path(directory.string());
  fmt::print("next: fp8lab report {0}/run.h5 | fp8lab eval {0} | fp8lab compare {0} OTHER_RUN\n",
             run);
  return ending.diverged ? ExitCode::kDiverged : ExitCode::kSuccess;
}

/// Creates the log of --log; null if it is not given.
std::unique_ptr<LiveLog> live_log(const Values& values, const fs::path& directory) {
  if (values.count("log") == 0) {
    refuse_given(values, "train", {"log-dir", "python"}, "is for --log");
    return nullptr;
  }
  const auto kind = values["log"].as<std::string>();
  const fs::path out = values.count("log-dir") != 0 ? fs::path(values["log-dir"].as<std::string>())
                                                    : directory / kind;
  return std::make_unique<LiveLog>(kind, values["python"].as<std::string>(),
                                   output_folder(out.string(), "train: --log-dir"));
}

TrainerOptions trainer_options(const Values& values, const RunConfig& config) {
  TrainerOptions options;
  options.directory = output_folder(text_of(values, "out", "runs/" + config.name), "train: --out");
  options.resume = values.count("resume") != 0;
  if (values.count("arm") != 0) options.extra_meta["arm"] = values["arm"].as<std::string>();
  options.code_version = code_version();
  options.simd_target = std::string(cpu::name_of(cpu::active_target()));
  return options;
}

/// "train quickstart" and "train run.toml" lack the name of an option.
void refuse_bare_word(const std::vector<std::string>& arguments) {
  if (arguments.empty() || arguments.front().starts_with('-')) return;
  const std::string& word = arguments.front();
  const std::vector<std::string> presets = experiment_names("presets");
  const bool is_preset = std::find(presets.begin(), presets.end(), word) != presets.end();
  throw InputError({.where = "train",
                    .found = quoted_word(word),
                    .reason = "comes without an option",
                    .accepted = fmt::format("{} {}", is_preset ? "--preset" : "--config", word)});
}

}  // namespace

int train(const std::vector<std::string>& arguments) {
  refuse_bare_word(arguments);
  const Values values = parse_arguments("train", train_options(), arguments);
  if (values.count("help") != 0) return ExitCode::kSuccess;
  const RunConfig config =
      resumes_recorded(values) ? recorded_choice(values) : chosen_run(values, "train");
  choose_simd(values, config.backend);
  if (values.count("dry-run") != 0) {
    refuse_given(values, "train --dry-run", {"step-descriptor"}, "is for a run");
  } else {
    refuse_given(values, "train", {"kernels"}, "is for --dry-run");
  }
  TrainerOptions options = trainer_options(values, config);
  const std::unique_ptr<Backend> backend = make_backend(config.backend, threads_of(values, "train"),
                                                        "own", values.count("no-graphs") == 0);
  PhaseLine phase;
  if (values.count("dry-run") != 0) {
    phase.begin("opening the data");
    RunCheck check(
        [&](const std::string& name) { return make_backend(name, threads_of(values, "train")); });
    check.check(config, RunDirectory(options.directory), options.resume);
    live_log(values, options.directory);
    phase.begin("");
    const std::string said = describe_options(options, config);
    const std::string plan =
        describe_plan(config, *backend, [&](const std::string& what) { phase.begin(what); });
    phase.begin("whether it fits");
    const std::string refusal = describe_refusal(config, *backend);
    phase.begin("");
    print_notes(check.notes());
    const bool kernels = values.count("kernels") != 0;
    fmt::print("{}{}{}{}", plan, said, kernels ? describe_kernels(config, *backend) : "", refusal);
    return refusal.empty() ? ExitCode::kSuccess : ExitCode::kBadInput;
  }
  options.extra_meta[kCommandKey] = train_command(arguments);
  const std::vector<std::string> first = first_arguments(values, arguments);
  require_memory_of(config, *backend);
  const std::unique_ptr<LiveLog> live = live_log(values, options.directory);
  if (live) {
    options.opened = [&](double seconds, std::int64_t step) {
      live->start(options.directory / "run.h5", seconds, step);
    };
  }
  options.phase = [&](const std::string& what) { phase.begin(what); };
  RunPrinter printer(config.logging.print_every_seconds);
  options.progress = [&](const Progress& progress) { printer.show(progress); };
  options.tell = [&](const std::string& line) { printer.tell(line); };
  if (values.count("step-descriptor") != 0) {
    options.progress = [print = options.progress, descriptor = step_descriptor(values),
                        first = std::int64_t{0}](const Progress& at) mutable {
      print(at);
      if (first == 0) first = at.step;
      write_step(descriptor, {at.step, at.total_steps, first, at.loss, at.stage});
    };
  }
  options.stop = &stop_flag();
  // Nothing is written before the run begins, and until then Ctrl-C simply ends the program.
  Trainer trainer(config, *backend, options);
  print_notes(trainer.notes());
  catch_stop_signals();
  RunOutcome outcome = RunOutcome::complete;
  const auto before = written_at(options.directory);
  try {
    outcome = trainer.run();
  } catch (const std::exception&) {
    phase.begin("");
    // A run that is refused writes nothing.
    if (written_at(options.directory) != before) {
      for (const std::string& line : ways_after_failure(config, options.directory, first)) {
        printer.tell(line);
      }
      printer.tell("next: " + failure_commands(options.directory));
    }
    throw;
  }
  phase.begin("");
  if (outcome == RunOutcome::interrupted) {
    printer.tell(
        fmt::format("interrupted after a checkpoint; the same command with --resume continues {}",
                    options.directory.string()));
    if (values.count("step-descriptor") == 0) {
      printer.tell("next: " + train_command(arguments) + " --resume");
    }
    return ExitCode::kInterrupted;
  }
  return tell_ending(config, options.directory, first);
}

}  // namespace fp8lab::cli
