#include <catch2/catch.hpp>

#include <algorithm>
#include <limits>
#include <vector>

#include "emulation/cpu/operations.hpp"
#include "tests/emulation/cpu/quantize/measure.hpp"
#include "tests/emulation/cpu/quantize/quantize_reference.hpp"

namespace fp8lab {
namespace {

using test::Matrix;
using test::Operand;

QuantSpec delayed_spec(int history_length = 4) {
  QuantSpec spec;
  spec.format = numerics::kE4M3;
  spec.scale_source = ScaleSource::delayed;
  spec.history_length = history_length;
  return spec;
}

/// A tensor under delayed scaling, step by step.
class Delayed {
 public:
  explicit Delayed(const QuantSpec& spec)
      : spec_(spec), values_(static_cast<std::size_t>(DelayedState::length(spec)), 0.0f) {}

  TensorView state() {
    const auto length = static_cast<std::int64_t>(values_.size());
    return {values_.data(), DType::f32, 1, length, length};
  }
  float value(std::int64_t index) const { return values_[static_cast<std::size_t>(index)]; }
  float history(std::int64_t age) const { return value(DelayedState::kHistory + age); }

  /// Quantizes (16, 64) values whose largest magnitude is `amax`; returns the share that saturates.
  double step(float amax) {
    Matrix source(DType::bf16, 16, 64);
    for (std::int64_t i = 0; i < 1024; ++i) {
      source.set(i / 64, i % 64, amax * static_cast<float>(i % 128 - 64) / 64.0f);
    }
    Operand operand(spec_, 16, 64);
    cpu::run(ops::Quantize{.source = source.view(), .state = state(), .operand = operand});
    scale_used = operand.scale(0, 0);
    return test::measure(source.view(), false, operand).saturation_fraction;
  }
  void update() { cpu::run(ops::UpdateDelayedScale{spec_, state()}); }

  float scale_used = 0;

 private:
  QuantSpec spec_;
  std::vector<float> values_;
};

float scale_for(const QuantSpec& spec, float amax) {
  return numerics::tile_scale(spec.scale, spec.format, amax).decode;
}

}  // namespace

TEST_CASE("the scale of a step knows only the amaxes of earlier steps") {
  const QuantSpec spec = delayed_spec();
  Delayed tensor(spec);
  tensor.step(8.0f);
  CHECK(tensor.scale_used == 1.0f);
  CHECK(tensor.value(DelayedState::kAmax) == 8.0f);
  tensor.step(2.0f);  // a second micro-batch of the same step
  CHECK(tensor.scale_used == 1.0f);
  CHECK(tensor.value(DelayedState::kAmax) == 8.0f);
  tensor.update();
  CHECK(tensor.value(DelayedState::kAmax) == 0.0f);
  CHECK(tensor.history(0) == 8.0f);
  tensor.step(2.0f);
  CHECK(tensor.scale_used == scale_for(spec, 8.0f));
}

TEST_CASE("a spike of 64 saturates for exactly one step") {
  Delayed tensor(delayed_spec());
  for (int step = 0; step < 8; ++step) {
    const double saturated = tensor.step(step == 4 ? 64.0f : 1.0f);
    INFO("step " << step);
    if (step == 4) {
      CHECK(saturated > 0.9);  // all but the values below 1/64 of the new amax
    } else {
      CHECK(saturated == 0.0);
    }
    tensor.update();
  }
}

TEST_CASE("the largest amax counts until it leaves the history, or only the latest") {
  QuantSpec spec = delayed_spec(3);
  spec.amax_algorithm = GENERATE(AmaxAlgorithm::max, AmaxAlgorithm::most_recent);
  Delayed tensor(spec);
  const std::vector<float> amaxes = {1, 16, 2, 3, 4, 5, 1};
  for (std::size_t t = 0; t < amaxes.size(); ++t) {
    tensor.step(amaxes[t]);
    if (t > 0) {
      float expected = amaxes[t - 1];
      if (spec.amax_algorithm == AmaxAlgorithm::max) {
        const std::size_t first = t < 3 ? 0 : t - 3;
        expected = *std::max_element(amaxes.begin() + static_cast<std::ptrdiff_t>(first),
                                     amaxes.begin() + static_cast<std::ptrdiff_t>(t));
      }
      INFO("step " << t);
      CHECK(tensor.scale_used == scale_for(spec, expected));
    }
    tensor.update();
  }
  CHECK(tensor.history(0) == 1.0f);
  CHECK(tensor.history(1) == 5.0f);
  CHECK(tensor.history(2) == 4.0f);
}

TEST_CASE("the margin leaves room for growth by its power of two") {
  QuantSpec spec = delayed_spec();
  spec.scale.margin = 2;
  Delayed tensor(spec);
  tensor.step(1.0f);
  tensor.update();
  CHECK(tensor.step(4.0f) == 0.0);
  CHECK(tensor.scale_used == 4.0f * scale_for(delayed_spec(), 1.0f));
  Delayed tight(delayed_spec());
  tight.step(1.0f);
  tight.update();
  CHECK(tight.step(4.0f) > 0.5);
}

TEST_CASE("a zero or non-finite amax keeps the scale") {
  const QuantSpec spec = delayed_spec(2);
  Delayed tensor(spec);
  tensor.step(4.0f);
  tensor.update();
  tensor.step(0.0f);
  tensor.update();
  CHECK(tensor.history(0) == 4.0f);  // an unused tensor does not move its history
  tensor.step(std::numeric_limits<float>::quiet_NaN());
  tensor.update();
  CHECK(tensor.history(1) == 4.0f);
  for (int step = 0; step < 2; ++step) {
    tensor.step(1.0f);
    CHECK(tensor.scale_used == scale_for(spec, 4.0f));
    tensor.update();
  }
  tensor.step(1.0f);
  CHECK(tensor.scale_used == scale_for(spec, 1.0f));
}

TEST_CASE("a window gives one scale for all its steps, then forgets") {
  QuantSpec spec = delayed_spec(3);
  spec.amax_algorithm = AmaxAlgorithm::window;
  Delayed tensor(spec);
  const std::vector<float> amaxes = {1, 16, 2, 3, 4, 5, 1, 1, 1, 0, 0, 0, 7};
  const std::vector<float> in_force = {0, 0, 0, 16, 16, 16, 5, 5, 5, 1, 1, 1, 0};  // 0: scale 1
  for (std::size_t t = 0; t < amaxes.size(); ++t) {
    tensor.step(amaxes[t]);
    INFO("step " << t);
    CHECK(tensor.scale_used == (in_force[t] == 0.0f ? 1.0f : scale_for(spec, in_force[t])));
    tensor.update();
  }
}

TEST_CASE("a window with infinity keeps the scale for the next one") {
  QuantSpec spec = delayed_spec(1);  // Intel: the micro-batches of one step
  spec.amax_algorithm = AmaxAlgorithm::window;
  Delayed tensor(spec);
  tensor.step(4.0f);
  tensor.step(8.0f);
  tensor.update();
  tensor.step(std::numeric_limits<float>::infinity());
  CHECK(tensor.scale_used == scale_for(spec, 8.0f));
  tensor.update();
  tensor.step(2.0f);
  CHECK(tensor.scale_used == scale_for(spec, 8.0f));
  tensor.update();
  tensor.step(2.0f);
  CHECK(tensor.scale_used == scale_for(spec, 2.0f));
}

TEST_CASE("the state keeps RN(Qmax/amax), which is not the reciprocal of the stored scale") {
  const QuantSpec spec = delayed_spec();
  // An amax for which the two differ.
  float amax = 1.0f;
  numerics::TileScale scale = numerics::tile_scale(spec.scale, spec.format, amax);
  while (scale.multiplier == 1.0f / scale.decode) {
    amax += 0.0078125f;
    scale = numerics::tile_scale(spec.scale, spec.format, amax);
  }
  Delayed tensor(spec);
  tensor.step(amax);
  tensor.update();
  CHECK(tensor.value(DelayedState::kScale) == scale.decode);
  CHECK(tensor.value(DelayedState::kMultiplier) == scale.multiplier);
}

}  // namespace fp8lab
