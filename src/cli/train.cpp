// fp8lab train: one run through all its stages.
#include <fmt/core.h>
#include <unistd.h>

#include <boost/program_options.hpp>
#include <chrono>
#include <cstdio>
#include <iostream>

#include "emulation/api/error.hpp"
#include "emulation/cpu/simd/target.hpp"
#include "src/backend/factory.hpp"
#include "src/cli/command.hpp"
#include "src/cli/version.hpp"
#include "src/config/config.hpp"
#include "src/train/plan.hpp"
#include "src/train/stop_signal.hpp"
#include "src/train/trainer.hpp"

namespace fp8lab::cli {
namespace {

namespace po = boost::program_options;

po::options_description train_options() {
  po::options_description options("fp8lab train --config FILE | --preset NAME");
  auto add = options.add_options();
  add("config", po::value<std::string>(), "run configuration (TOML)");
  add("preset", po::value<std::string>(), "built-in configuration by name");
  add("recipe", po::value<std::string>(), "recipe of the run, by name or file");
  add("backend", po::value<std::string>(), "cpu, truth or cuda");
  add("math", po::value<std::string>(), "exact or fast");
  add("set", po::value<std::vector<std::string>>()->composing(), "KEY=VALUE, repeatable");
  add("out", po::value<std::string>(), "run directory (default: runs/NAME)");
  add("init-from", po::value<std::string>(), "checkpoint, Hugging Face folder or safetensors file whose weights start the run");
  add("arm", po::value<std::string>(), "name of the study arm, recorded in the run file");
  add("threads", po::value<int>()->default_value(0), "0: all processors");
  add("simd", po::value<std::string>(), "portable, avx2, avx512, avx512_fp16 or avx512_amx");
  add("resume", "continue the run in --out");
  add("dry-run", "print recipe, memory and time estimate; write nothing");
  add("help", "this text");
  return options;
}

/// The last line of a terminal is rewritten; elsewhere one line a second is enough.
class ProgressPrinter {
 public:
  void operator()(const Progress& progress) {
    const auto now = std::chrono::steady_clock::now();
    const bool last = progress.step == progress.total_steps;
    if (!terminal_ && !last && progress.step > 2 && now - printed_ < std::chrono::seconds(1))
      return;
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
  bool terminal_ = isatty(STDOUT_FILENO) == 1;
  std::chrono::steady_clock::time_point printed_;
};

RunConfig read_config(const po::variables_map& values) {
  if (values.count("config") + values.count("preset") != 1) {
    throw Error("train: give either --config FILE or --preset NAME");
  }
  std::vector<Assignment> assignments;
  if (values.count("set") != 0) {
    for (const std::string& text : values["set"].as<std::vector<std::string>>()) {
      assignments.push_back(parse_assignment(text));
    }
  }
  for (const char* key : {"recipe", "backend", "math"}) {
    if (values.count(key) != 0) assignments.push_back({key, values[key].as<std::string>()});
  }
  return values.count("config") != 0
             ? load_run_config(values["config"].as<std::string>(), assignments)
             : load_preset(values["preset"].as<std::string>(), assignments);
}

}  // namespace

int train(const std::vector<std::string>& arguments) {
  const po::variables_map values = parse_arguments("train", train_options(), arguments);
  if (values.count("help") != 0) return 0;
  const RunConfig config = read_config(values);
  if (values.count("simd") != 0) {
    cpu::set_active_target(cpu::parse_target(values["simd"].as<std::string>()));
  }
  const int threads = values["threads"].as<int>();
  const std::unique_ptr<Backend> backend = make_backend(config.backend, threads);
  if (values.count("dry-run") != 0) {
    fmt::print("{}", describe_plan(config, *backend));
    return 0;
  }
  TrainerOptions options;
  options.directory =
      values.count("out") != 0 ? values["out"].as<std::string>() : "runs/" + config.name;
  options.resume = values.count("resume") != 0;
  if (values.count("init-from") != 0) options.init_from = values["init-from"].as<std::string>();
  if (values.count("arm") != 0) options.extra_meta["arm"] = values["arm"].as<std::string>();
  options.code_version = code_version();
  options.simd_target = std::string(cpu::name_of(cpu::active_target()));
  options.stop = &stop_requested();
  options.progress = ProgressPrinter();
  Trainer trainer(config, *backend, options);
  if (trainer.run() == RunOutcome::interrupted) {
    fmt::print("interrupted after a checkpoint; --resume continues {}\n",
               options.directory.string());
    return 4;
  }
  fmt::print("complete: {}\n", (options.directory / "run.h5").string());
  return 0;
}

}  // namespace fp8lab::cli
