// Prints the runs of a study without running them.
#pragma once

#include <filesystem>

#include "src/study/study.hpp"

namespace fp8lab::cli {

/// Prints the runs with the hashes of configuration and recipes, and their pairing.
void print_runs(const StudyPlan& plan);

/// Prints memory, checkpoint size and time of every run that is not complete in `directory` (empty
/// path: every run), from operations timed on this machine with `threads`; then memory and time of
/// all runs, `jobs` in parallel, the shared runs before the arms. Warns about steps longer than
/// the `stop_before` seconds that a scheduler gives a run to end. Throws Error under the
/// conditions of RunCheck::check. Returns false if a run could not begin here: its device is
/// missing, or it does not fit into memory, which the last lines say.
bool print_needs(const StudyPlan& plan, const std::filesystem::path& directory, int jobs,
                 int threads, int stop_before);

}  // namespace fp8lab::cli
