#include "src/replay/recorded_run.hpp"

#include <fmt/format.h>

#include "emulation/base/error.hpp"
#include "src/io/file_kind.hpp"
#include "src/train/identity.hpp"
#include "src/train/run_directory.hpp"

namespace fp8lab {

RecordedRun open_recorded_run(const std::filesystem::path& path) {
  RecordedRun run;
  run.file = is_folder(path) ? RunDirectory(path).run_file() : path;
  if (!is_file(run.file)) throw Error(fmt::format("{}: there is no run file", run.file.string()));
  run.data = read_run(run.file);
  require_continuable(run.data.meta, run.file);
  run.config = parse_run_config(run.data.meta.config_text, run.file.string(), {});
  return run;
}

ReplaySource replay_source(const RecordedRun& run, const std::string& backend,
                           const std::filesystem::path& init_from, const MakeNamedBackend& make) {
  const std::string name = backend.empty() ? run.data.meta.backend : backend;
  ReplaySource source;
  source.name = run.file.string();
  source.config = run.config;
  source.config.backend = name;
  source.init_from = init_from;
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
