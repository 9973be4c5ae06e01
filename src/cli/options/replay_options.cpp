#include "src/cli/options/replay_options.hpp"

#include <filesystem>
#include <memory>

#include "src/backend/factory.hpp"
#include "src/cli/command.hpp"
#include "src/cli/inputs/model_source.hpp"
#include "src/config/reading/hub_cache.hpp"
#include "src/train/plan/memory_fit.hpp"

namespace fp8lab::cli {

void add_replay_options(Options& options) {
  options.add("init-from", value<std::string>(), "initial weights of the run, if they have moved");
  add_look_in(options);
  options.add("threads", value<int>(0), "number of CPU threads; 0: one for each processor");
  options.add("no-graphs", "backend cuda: no CUDA graphs; the bits are the same");
  options.add("json", value<std::string>(), "also write the result to this file");
}

ReplaySource chosen_source(const RecordedRun& run, const Values& values, const std::string& option,
                           const std::string& command) {
  const int threads = threads_of(values, command);
  const bool graphs = values.count("no-graphs") == 0;
  const std::string backend = text_of(values, option);
  const std::filesystem::path init_from = start_path(text_of(values, "init-from"));
  return replay_source(run, backend, init_from, [=, config = run.config](const std::string& name) {
    std::unique_ptr<Backend> made = make_backend(name, threads, "own", graphs);
    require_memory_of(config, *made);
    return made;
  });
}

}  // namespace fp8lab::cli
