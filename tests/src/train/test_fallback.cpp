// What makes a stage fall back, and what it remembers for that.
#include <catch2/catch.hpp>
#include <limits>
#include <vector>

#include "src/train/step/fallback.hpp"

using namespace fp8lab;

namespace {

StepSigns signs(double loss, double norm) {
  StepSigns step;
  step.loss = loss;
  step.gradient_norm = norm;
  step.operand = [](std::size_t i) { return "operand " + std::to_string(i); };
  step.gradient = [] { return std::string("the gradient"); };
  return step;
}

bool says(const std::optional<std::string>& reason, const std::string& word) {
  return reason && reason->find(word) != std::string::npos;
}

}  // namespace

TEST_CASE("a spike is judged against the mean of the steps before, once the window is full") {
  FallbackCriteria when;
  when.window = 2;
  when.loss_spike = GENERATE(0.0, 1.5);
  when.gradient_norm = when.loss_spike == 0.0 ? 1.5 : 0.0;
  const auto step = [&](double value) {
    return when.loss_spike > 0 ? signs(value, 1e9) : signs(1e9, value);
  };
  FallbackState state;
  CHECK_FALSE(reason_to_fall_back(when, state, step(1e6)));
  remember(when, step(2.0), state);
  CHECK_FALSE(reason_to_fall_back(when, state, step(1e6)));
  remember(when, step(4.0), state);  // mean 3
  CHECK_FALSE(reason_to_fall_back(when, state, step(4.5)));
  const auto reason = reason_to_fall_back(when, state, step(4.6));
  CHECK(says(reason, when.loss_spike > 0 ? "loss 4.6" : "gradient norm 4.6"));
  CHECK(says(reason, "the gradient") == (when.gradient_norm > 0));
  remember(when, step(5.0), state);  // mean 4
  CHECK_FALSE(reason_to_fall_back(when, state, step(6.0)));
  CHECK(reason_to_fall_back(when, state, step(6.1)));
}

TEST_CASE("values that are not finite are a reason of their own and in no mean") {
  FallbackCriteria when;
  when.window = 1;
  when.loss_spike = 2.0;
  FallbackState state;
  remember(when, signs(1.0, 1.0), state);
  const FallbackState before = state;
  const double infinity = std::numeric_limits<double>::infinity();
  const double nan = std::numeric_limits<double>::quiet_NaN();
  for (const StepSigns& step : {signs(nan, 1.0), signs(1.0, infinity)}) {
    when.nonfinite = false;
    CHECK_FALSE(reason_to_fall_back(when, state, step));
    when.nonfinite = true;
    CHECK(says(reason_to_fall_back(when, state, step), "the gradient"));
    remember(when, step, state);
    CHECK(state == before);
  }
}

TEST_CASE("saturation names the operand that has most of it") {
  FallbackCriteria when;
  when.saturation = 0.01;
  std::vector<OperandStatistics> statistics(3);
  StepSigns step = signs(1.0, 1.0);
  step.statistics = statistics;
  statistics[0].saturation_fraction = statistics[2].saturation_fraction = 0.01;
  CHECK_FALSE(reason_to_fall_back(when, {}, step));
  statistics[2].saturation_fraction = 0.03;
  statistics[1].saturation_fraction = 0.02;
  CHECK(says(reason_to_fall_back(when, {}, step), "operand 2"));
  statistics[0] = OperandStatistics::absent();
  CHECK(says(reason_to_fall_back(when, {}, step), "operand 2"));
  when.saturation = 0.0;
  CHECK_FALSE(reason_to_fall_back(when, {}, step));
}

TEST_CASE("what is remembered is text and back, to the bit") {
  FallbackState state{true, 17, 0.1, 1e-300};
  CHECK(fallback_text(state) == "1:17:3fb999999999999a:01a56e1fc2f8f359");
  CHECK(parse_fallback(fallback_text(state)) == state);
  for (const char* text :
       {"", "1", "2:0:0000000000000000:0000000000000000", "0:-1:0000000000000000:0000000000000000",
        "0:1:0:0", "0:1:0000000000000000", "0:1:0000000000000000:0000000000000000:"}) {
    INFO(text);
    CHECK_FALSE(parse_fallback(text));
  }
}
