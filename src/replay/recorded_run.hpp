// A run as its folder holds it, to be executed again.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "src/io/run_reader.hpp"
#include "src/replay/replay.hpp"
#include "src/train/run_record.hpp"

namespace fp8lab {

struct RecordedRun {
  std::filesystem::path file;  ///< run.h5
  RunData data;
  RunConfig config;
  RunPlaces places;

  std::int64_t last_step() const { return data.metrics.empty() ? 0 : data.metrics.back().step; }
};

/// `path` is the folder of a run or its run.h5. Throws Error when there is none, or one of a
/// version that does not say what it was made of. Its files are also looked for in `look_in`.
RecordedRun open_recorded_run(const std::filesystem::path& path,
                              const std::vector<std::filesystem::path>& look_in = {});

/// How commands make backends.
using MakeNamedBackend = std::function<std::unique_ptr<Backend>(const std::string& name)>;

/// The steps of the run on `backend`, that of its record where that is empty; evaluations are left
/// out. Data are where the run's places say, initial weights as well where `init_from` is empty.
/// Throws Error for data that are missing.
ReplaySource replay_source(const RecordedRun& run, const std::string& backend,
                           const std::filesystem::path& init_from, const MakeNamedBackend& make);

/// The checkpoint beside the run if it is the run's own and at most `step` steps are done in it,
/// else the beginning.
StartPoint latest_start(const RecordedRun& run, std::int64_t step);

}  // namespace fp8lab
