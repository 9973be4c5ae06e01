// What a user can do after a run that broke or diverged.
#pragma once

#include <cstddef>
#include <filesystem>
#include <string>
#include <vector>

#include "src/config/config.hpp"
#include "src/io/hdf5/run_reader.hpp"

namespace fp8lab::cli {

/// A run of `train` that met a value that is not finite, or diverged.
struct BrokenRun {
  const RunConfig& config;
  std::filesystem::path directory;
  std::size_t stage = 0;             ///< index of the stage in which it broke
  std::int64_t step = 0;             ///< step that was not finite; 0: diverged
  std::vector<std::string> command;  ///< arguments of train
  bool had_update = true;            ///< false: it broke before the first update of the weights
};

/// Returns the command line of `train` with `arguments`, for a shell, without the options of a
/// single process, --resume and --step-descriptor.
std::string train_command(const std::vector<std::string>& arguments);

/// Returns false if step 1 was not finite and no fallback left it out: no update, and so no
/// learning rate, came before that.
bool had_update_before_break(const RunData& run);

/// Returns one line for the checkpoint, if there is one before the break, and one for each remedy
/// that the run does not have yet: "try: WHAT: COMMAND". Every command starts a new run.
std::vector<std::string> ways_on(const BrokenRun& run);

}  // namespace fp8lab::cli
