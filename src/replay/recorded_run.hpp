// Opens a run's folder for execution.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "src/io/hdf5/run_reader.hpp"
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

/// Opens a run; `path` is its folder or its run.h5. Files of the run are also searched for in
/// `look_in`. Throws Error if there is no run, or if its version does not record its identity.
RecordedRun open_recorded_run(const std::filesystem::path& path,
                              const std::vector<std::filesystem::path>& look_in = {});

/// As open_recorded_run, and also for a run that another program wrote (has_configuration): then
/// without `places`, and with the text alone of `config`, to be compared and not executed.
RecordedRun open_run_to_compare(const std::filesystem::path& path);

/// Creates a backend by name.
using MakeNamedBackend = std::function<std::unique_ptr<Backend>(const std::string& name)>;

/// Returns the steps of the run, without evaluations, for execution on `backend`; if empty, on the
/// backend of its record. Data are found through the run's recorded paths, and so are the initial
/// weights if `init_from` is empty. Throws Error if data are missing.
ReplaySource replay_source(const RecordedRun& run, const std::string& backend,
                           const std::filesystem::path& init_from, const MakeNamedBackend& make);

/// Returns the checkpoint beside the run if it belongs to the run and is at most at step
/// `step`, else the beginning.
StartPoint latest_start(const RecordedRun& run, std::int64_t step);

}  // namespace fp8lab
