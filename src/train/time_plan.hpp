// How long an optimizer step takes.
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

/// The operations of one whole step of the stage, which nothing computes.
WorkLog record_step(const RunConfig& config, const StageConfig& stage, const Recipe& recipe,
                    const Backend& backend);

/// Those of a step of one micro-batch, timed on `backend`: the least seconds of each kind in three
/// steps after a first one, because other processes only ever add to them. Weights and tokens are
/// random, documents as long as sequences. Memory is given back.
WorkLog time_step(const RunConfig& config, const StageConfig& stage, const Recipe& recipe,
                  Backend& backend);

/// The work of `step` at the rates of `timed`: those of the same kind, or of the operation's name
/// in its other kinds, or of its class.
TimePlan estimate(const WorkLog& step, const WorkLog& timed);

/// record_step at the rates of smaller steps, which grow until one takes some tenths of a second or
/// is a micro-batch of the stage's own. Statistics, evaluations, checkpoints and the first steps of
/// a delayed scale's history are not in it. Documents are taken to be as long as sequences:
/// attention to shorter ones takes less.
TimePlan plan_time(const RunConfig& config, const StageConfig& stage, const Recipe& recipe,
                   Backend& backend);

}  // namespace fp8lab
