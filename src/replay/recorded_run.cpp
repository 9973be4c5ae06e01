#include "src/replay/recorded_run.hpp"

#include <fmt/format.h>

#include "emulation/base/error.hpp"
#include "emulation/base/input_error.hpp"
#include "src/config/reading/document_kind.hpp"
#include "src/io/files/file_kind.hpp"
#include "src/train/checkpoint/identity.hpp"
#include "src/train/run_check.hpp"
#include "src/train/run_directory.hpp"

namespace fp8lab {
namespace {

/// Returns the initial weights of the run, identified by their hash if several files are
/// candidates; empty for random weights.
std::filesystem::path find_start(const RecordedRun& run, const std::string& backend,
                                 const MakeNamedBackend& make) {
  const std::filesystem::path& recorded = run.config.init_from;
  if (recorded.empty()) return {};
  const std::string& hash = run.data.meta.initial_weights_hash;
  const std::vector<std::filesystem::path> found = run.places.candidates(recorded);
  if (found.size() == 1) return found.front();
  RunCheck check(make);
  for (const std::filesystem::path& file : found) {
    RunConfig config = run.config;
    config.backend = backend;
    config.init_from = file;
    try {
      if (check.initial_state(config).front().second == hash) return file;
    } catch (const Error&) {
      // Weights of another model.
    }
  }
  throw run.places.missing(recorded, "initial weights", hash, "them with --init-from");
}

/// Opens the file of a run; its configuration is not read.
RecordedRun open_file(const std::filesystem::path& path) {
  RecordedRun run;
  run.file = is_folder(path) ? RunDirectory(path).run_file() : path;
  if (!is_file(run.file)) {
    throw InputError({.where = run.file.string(), .reason = "there is no run file"});
  }
  refuse_document(run.file, "a run");
  run.data = read_run(run.file);
  require_continuable(run.data.meta, run.file);
  return run;
}

}  // namespace

RecordedRun open_run_to_compare(const std::filesystem::path& path) {
  RecordedRun run = open_file(path);
  if (has_configuration(run.data.meta, run.file.string())) return open_recorded_run(path);
  run.config.text = run.data.meta.config_text;
  return run;
}

RecordedRun open_recorded_run(const std::filesystem::path& path,
                              const std::vector<std::filesystem::path>& look_in) {
  RecordedRun run = open_file(path);
  run.config = recorded_run(run.data.meta, run.file.string(), {});
  run.places = RunPlaces(run.data.meta, run.file, look_in);
  return run;
}

ReplaySource replay_source(const RecordedRun& run, const std::string& backend,
                           const std::filesystem::path& init_from, const MakeNamedBackend& make) {
  const std::string name = backend.empty() ? run.data.meta.backend : backend;
  ReplaySource source;
  source.name = run.file.string();
  source.config = run.config;
  source.config.backend = name;
  for (StageConfig& stage : source.config.stages) {
    stage.data = run.places.training_data(stage);
    stage.eval.reset();
  }
  source.config.init_from.clear();
  source.find_start = [=] { return init_from.empty() ? find_start(run, name, make) : init_from; };
  source.identity = run.data.meta.identity;
  source.make_backend = [make, name] { return make(name); };
  return source;
}

StartPoint latest_start(const RecordedRun& run, std::int64_t step) {
  const std::filesystem::path file = RunDirectory(run.file.parent_path()).checkpoint_file();
  if (!is_file(file)) return {};
  auto open = std::make_shared<const CheckpointFile>(file);
  const CheckpointSummary checkpoint = read_checkpoint(*open);
  if (checkpoint.identity != hash_of(run.data.meta.identity)) return {};
  check_position(checkpoint.position, run.config, file.string());
  if (checkpoint.position.step > step) return {};
  return {std::move(open), checkpoint.position};
}

}  // namespace fp8lab
