#include <catch2/catch.hpp>

#include "src/train/step/schedule.hpp"

using namespace fp8lab;

TEST_CASE("learning-rate schedules start, hold and end where they say") {
  LearningRateSchedule schedule{ScheduleKind::wsd, 1.0, 0.1, 10, 20};
  CHECK(learning_rate(schedule, 1, 100) == Approx(0.1));
  CHECK(learning_rate(schedule, 10, 100) == Approx(1.0));
  CHECK(learning_rate(schedule, 80, 100) == Approx(1.0));
  CHECK(learning_rate(schedule, 90, 100) == Approx(0.55));
  CHECK(learning_rate(schedule, 100, 100) == Approx(0.1));
  // A quarter of the decay done: a line has 3/4 of the way left, 1 - sqrt(1/4) is 1/2.
  schedule.decay = DecayShape::linear;
  CHECK(learning_rate(schedule, 80, 100) == 1.0);
  CHECK(learning_rate(schedule, 85, 100) == Approx(0.1 + 0.9 * 0.75));
  CHECK(learning_rate(schedule, 100, 100) == Approx(0.1));
  schedule.decay = DecayShape::one_minus_sqrt;
  CHECK(learning_rate(schedule, 80, 100) == 1.0);
  CHECK(learning_rate(schedule, 85, 100) == Approx(0.55));
  CHECK(learning_rate(schedule, 100, 100) == Approx(0.1));
  schedule.kind = ScheduleKind::cosine;
  CHECK(learning_rate(schedule, 55, 100) == Approx(0.55));
  CHECK(learning_rate(schedule, 100, 100) == Approx(0.1));
  schedule.kind = ScheduleKind::linear;
  CHECK(learning_rate(schedule, 55, 100) == Approx(0.55));
  CHECK(learning_rate(schedule, 28, 100) == Approx(0.82));
  CHECK(learning_rate(schedule, 100, 100) == Approx(0.1));
  schedule.kind = ScheduleKind::constant;
  CHECK(learning_rate(schedule, 100, 100) == 1.0);
  schedule.warmup_steps = 0;
  CHECK(learning_rate(schedule, 1, 100) == 1.0);
}
