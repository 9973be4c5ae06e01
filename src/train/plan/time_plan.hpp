// How long the parts of a run take.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "emulation/backend.hpp"
#include "emulation/recording/work_log.hpp"
#include "src/config/config.hpp"

namespace fp8lab {

/// Seconds of one optimizer step.
struct TimePlan {
  std::array<double, kWorkClasses.size()> seconds{};  ///< by WorkClass

  double of(WorkClass work_class) const { return seconds[static_cast<std::size_t>(work_class)]; }
  double total() const;
};

/// "GEMMs 1.2, attention 0.03, ...", without classes that take no time.
std::string describe(const TimePlan& plan);

/// A step of the stage at a smaller size: at most three layers, so that the first, one between and
/// the last are there, and no other extent (tokens, widths, vocabulary) above `size`, but for whole
/// heads. One micro-batch.
RunConfig scaled_run(const RunConfig& config, const StageConfig& stage, std::int64_t size);

/// The operations of one whole step of the stage, which nothing computes; `statistics`: of one that
/// logs them.
WorkLog record_step(const RunConfig& config, const StageConfig& stage, const Recipe& recipe,
                    const Backend& backend, bool statistics = false);

/// The operations of one held-out loss of the stage.
WorkLog record_held_out(const RunConfig& config, const StageConfig& stage, const Recipe& recipe,
                        const Backend& backend);

/// The operations of a step of one micro-batch, timed on `backend`: the mean of each kind over the
/// steps of some tenths of a second, at least three, after a first one. A mean, because whatever
/// else runs on the machine slows the run down as well. Weights and tokens are random, documents as
/// long as sequences. Memory is given back.
WorkLog time_step(const RunConfig& config, const StageConfig& stage, const Recipe& recipe,
                  Backend& backend, bool statistics = false);

/// The work of `step` at the rates of `timed`: those of the same kind, or of the operation's name
/// in its other kinds, or of its class.
TimePlan estimate(const WorkLog& step, const WorkLog& timed);

/// What a stage does under one recipe.
struct StageTime {
  TimePlan step;               ///< one that logs no statistics
  double with_statistics = 0;  ///< seconds of one that logs them; 0 where none does
  double held_out = 0;         ///< seconds of one held-out loss; 0 without evaluations
  double in_bf16 = 0;          ///< seconds of the one in bf16 after the stage; 0 without it
};

/// What is recorded, at the rates of smaller steps, which grow until one takes some tenths of a
/// second or is a micro-batch of the stage's own. What evaluations generate or choose, and the
/// first steps of a delayed scale's history are not in it. Documents are taken to be as long as
/// sequences: attention to shorter ones takes less.
StageTime plan_time(const RunConfig& config, const StageConfig& stage, const Recipe& recipe,
                    Backend& backend);

/// Seconds from the start of the program to the first step: memory, initial weights, their hash.
/// Measured with a smaller model on `backend`. Reading a file with weights takes as long as the
/// disk does, which is not in it.
double plan_start(const RunConfig& config, Backend& backend);

/// Seconds that a checkpoint of `bytes` takes from the host: it is copied, hashed and written, and
/// the disk is taken to be as fast as memory.
double plan_checkpoint(std::int64_t bytes);

}  // namespace fp8lab
