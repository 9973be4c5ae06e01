#include "src/train/step/schedule.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "emulation/numerics/exact_math.hpp"
#include "src/config/config_names.hpp"

namespace fp8lab {
namespace {

/// Returns `peak` at progress 0 and `final` at progress 1, along half a cosine.
double cosine_between(double peak, double final, double progress) {
  const double cosine = numerics::sincos_f64(3.141592653589793 * progress).cos;
  return final + (peak - final) * 0.5 * (1.0 + cosine);
}

double progress_of(std::int64_t step, std::int64_t first, std::int64_t last) {
  return last > first ? static_cast<double>(step - first) / static_cast<double>(last - first) : 1.0;
}

double decayed(const LearningRateSchedule& schedule, double progress) {
  const double way = schedule.peak - schedule.final;
  switch (schedule.decay) {
    case DecayShape::cosine: return cosine_between(schedule.peak, schedule.final, progress);
    case DecayShape::linear: return schedule.final + way * (1.0 - progress);
    case DecayShape::one_minus_sqrt: return schedule.final + way * (1.0 - std::sqrt(progress));
  }
  return schedule.final;
}

}  // namespace

double learning_rate(const LearningRateSchedule& schedule, std::int64_t step, std::int64_t steps) {
  if (step <= schedule.warmup_steps) {
    return schedule.peak * static_cast<double>(step) / static_cast<double>(schedule.warmup_steps);
  }
  switch (schedule.kind) {
    case ScheduleKind::constant: return schedule.peak;
    case ScheduleKind::linear:
      return schedule.peak +
             (schedule.final - schedule.peak) * progress_of(step, schedule.warmup_steps, steps);
    case ScheduleKind::cosine:
      return cosine_between(schedule.peak, schedule.final,
                            progress_of(step, schedule.warmup_steps, steps));
    case ScheduleKind::wsd: {
      const std::int64_t decay_from = std::max(schedule.warmup_steps, steps - schedule.decay_steps);
      if (step <= decay_from) return schedule.peak;
      return decayed(schedule, progress_of(step, decay_from, steps));
    }
  }
  return schedule.peak;
}

std::string describe(const LearningRateSchedule& schedule, std::int64_t steps) {
  const std::int64_t warmup = schedule.warmup_steps;
  if (warmup >= steps) return fmt::format("warm-up over all {} steps to {}", steps, schedule.peak);
  std::string text = warmup > 0 ? fmt::format("warm-up over {} steps, ", warmup) : std::string();
  if (schedule.kind == ScheduleKind::linear || schedule.kind == ScheduleKind::cosine) {
    return text + fmt::format("{} from {} to {}", word_for(kScheduleKindNames, schedule.kind),
                              schedule.peak, schedule.final);
  }
  text += fmt::format("constant {}", schedule.peak);
  if (schedule.kind == ScheduleKind::constant || schedule.decay_steps == 0) return text;
  return text + fmt::format(", {} decay to {} over the last {}",
                            word_for(kDecayShapeNames, schedule.decay), schedule.final,
                            schedule.decay_steps);
}

}  // namespace fp8lab
