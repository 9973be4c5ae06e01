// What a study would run, printed without running it.
#pragma once

#include <filesystem>

#include "src/study/study.hpp"

namespace fp8lab::cli {

/// The runs with the hashes of configuration and recipes, and their pairing.
void print_runs(const StudyPlan& plan);

/// Memory, checkpoint and time of every run that is not complete in `directory`, which may be empty
/// for none, from operations timed here with `threads`; and memory and time of all, `jobs` at once,
/// the shared runs before the arms. Warns of steps that take longer than the `stop_before` seconds
/// that a scheduler leaves a run to end. Throws Error as RunCheck::check
/// does for one of them.
void print_needs(const StudyPlan& plan, const std::filesystem::path& directory, int jobs,
                 int threads, int stop_before);

}  // namespace fp8lab::cli
