#include "src/replay/verify_run.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "emulation/base/input_error.hpp"

namespace fp8lab {

Verification verify_run(const RecordedRun& run, const ReplaySource& source,
                        std::optional<std::int64_t> from, std::optional<std::int64_t> steps,
                        const Execution::Say& say) {
  const std::string file = run.file.string();
  const std::int64_t recorded = run.last_step();
  if (recorded == 0) throw InputError({.where = file, .reason = "holds no step"});
  if (from && *from >= recorded) {
    throw InputError({.where = file,
                      .reason = fmt::format("ends after step {}", recorded),
                      .accepted = "a step before it"});
  }
  Verification found;
  found.start = latest_start(run, from.value_or(recorded - 1));
  const std::int64_t first = from.value_or(found.start.position.step);
  found.last = first + steps.value_or(std::min(kVerifiedSteps, recorded - first));
  if (found.last > recorded) {
    throw InputError(
        {.where = file,
         .reason = fmt::format("ends after step {}; {} steps after step {} are more than it has",
                               recorded, found.last - first, first)});
  }
  Replay replay(source, found.start, say);
  if (say) say(fmt::format("executing {} again up to step {}", file, found.last));
  for (std::int64_t step = found.start.position.step + 1; step <= found.last; ++step) {
    replay.prepare();
    found.actual = replay.step().record;
    ++found.executed;
    const StepRecord* const expected = find_step(run.data.metrics, step);
    if (expected == nullptr) continue;
    found.expected = *expected;
    ++found.compared;
    found.hashed += expected->weight_hash != 0 ? 1 : 0;
    const std::string what = difference(*expected, found.actual);
    if (what.empty()) continue;
    found.difference = {step, what};
    break;
  }
  if (say) say("");
  if (found.compared == 0) {
    throw InputError(
        {.where = file,
         .reason = fmt::format("records no step between {} and {}", found.start.position.step,
                               found.last),
         .accepted = fmt::format("--steps {} or more", run.config.logging.every_steps)});
  }
  return found;
}

}  // namespace fp8lab
