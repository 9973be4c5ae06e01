// A run as its folder holds it, to be executed again.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>

#include "src/io/run_reader.hpp"
#include "src/replay/replay.hpp"

namespace fp8lab {

struct RecordedRun {
  std::filesystem::path file;  ///< run.h5
  RunData data;
  RunConfig config;

  std::int64_t last_step() const { return data.metrics.empty() ? 0 : data.metrics.back().step; }
};

/// `path` is the folder of a run or its run.h5. Throws Error when there is none, or one of a
/// version that does not say what it was made of.
RecordedRun open_recorded_run(const std::filesystem::path& path);

/// How commands make backends.
using MakeNamedBackend = std::function<std::unique_ptr<Backend>(const std::string& name)>;

/// The run on `backend`, that of its record where that is empty.
ReplaySource replay_source(const RecordedRun& run, const std::string& backend,
                           const std::filesystem::path& init_from, const MakeNamedBackend& make);

/// The checkpoint beside the run if it is the run's own and at most `step` steps are done in it,
/// else the beginning.
StartPoint latest_start(const RecordedRun& run, std::int64_t step);

}  // namespace fp8lab
