// The operand that is to blame is found by executing a step once more, which changes no bit.
#include <fmt/format.h>

#include <catch2/catch.hpp>
#include <cmath>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "emulation/recording/observed_backend.hpp"
#include "src/train/step/training_step.hpp"
#include "src/train/watch/step_fault.hpp"
#include "tests/src/model/model_fixture.hpp"

using namespace fp8lab;

namespace {

/// A model between two updates, on a backend that can be observed.
struct StepToTake {
  explicit StepToTake(const Recipe& recipe)
      : cpu(make_backend("cpu", 2)),
        backend(*cpu),
        parameters(backend, fp8lab::test::small_model(), {}, recipe.activation_dtype),
        transformer(backend, parameters, fp8lab::test::small_model(), recipe,
                    BatchShape{2, 24, {}}),
        block(backend),
        step{backend, parameters, transformer, block, likelihood()} {
    parameters.initialize(7);
    Dataset dataset(make_corpus(fp8lab::test::sample_documents()), DataForm::running_text, 3, 0);
    for (int i = 0; i < 2; ++i) batches.push_back(dataset.next(2, 24));
    context.seed = 5;
    context.step = 1;
  }

  /// Up to the update.
  StepResults take() {
    const std::int64_t tokens = step.accumulate(context, batches, 1e-3);
    step.begin_update(spec, context.seed, tokens);
    return step.results(false, true);
  }

  std::optional<StepFault> look(FaultKind kind, const StepResults& results,
                                const std::vector<double>& usual) {
    FaultFinder finder(backend, transformer, kind, usual);
    backend.observe(&finder);
    StepContext measured = context;
    measured.log_statistics = true;
    step.accumulate_again(measured, batches, results);
    backend.observe(nullptr);
    return finder.take();
  }

  std::vector<double> unknown() const {
    return std::vector<double>(transformer.linears().size() * kSlots.size(),
                               std::numeric_limits<double>::quiet_NaN());
  }

  /// Sets element (row, col) of the weight of a linear layer.
  void plant(const std::string& layer, std::int64_t row, std::int64_t col, float value) {
    for (const Parameter& parameter : parameters.all()) {
      if (parameter.name() != layer + ".weight") continue;
      parameters.upload(parameter, row * parameter.declaration.cols + col, {&value, 1});
      return;
    }
    FAIL("no such layer");
  }

  std::vector<std::vector<float>> gradients() {
    std::vector<std::vector<float>> all;
    for (const Parameter& parameter : parameters.all()) {
      std::vector<float> values(static_cast<std::size_t>(parameter.gradient().size()));
      download_floats(backend, parameter.gradient(), values);
      all.push_back(values);
    }
    return all;
  }
  std::vector<std::vector<float>> delayed_states() {
    std::vector<std::vector<float>> all;
    for (const auto& linear : transformer.linears()) {
      for (const TensorView& state : linear->delayed_states()) {
        if (state.empty()) continue;
        all.emplace_back(static_cast<std::size_t>(state.size()));
        download_floats(backend, state, all.back());
      }
    }
    return all;
  }

  std::unique_ptr<Backend> cpu;
  ObservedBackend backend;
  Parameters parameters;
  Transformer transformer;
  StepBlock block;
  TrainingStep step;
  UpdateSpec spec;
  std::vector<Batch> batches;
  StepContext context;
};

bool contains(const std::string& text, const std::string& part) {
  INFO(text);
  CHECK(text.find(part) != std::string::npos);
  return text.find(part) != std::string::npos;
}

/// fprop.x and its like in the named format, without a scale.
Recipe unscaled(const char* base, numerics::FormatSpec format, numerics::Overflow overflow) {
  Recipe recipe = load_recipe(base);
  for (QuantSpec& spec : recipe.linear.slots) {
    spec.format = format;
    spec.scale_source = ScaleSource::none;
    spec.tile = {};
    spec.overflow = overflow;
  }
  return recipe;
}

}  // namespace

TEST_CASE("a step executed once more leaves every bit as it was") {
  for (const char* name : {"bf16", "infir2", "te_delayed", "halo2_fp8", "fp4_occ"}) {
    INFO(name);
    StepToTake work(load_recipe(name));
    const StepResults results = work.take();
    const auto gradients = work.gradients();
    const auto states = work.delayed_states();
    work.look(FaultKind::growth, results, work.unknown());
    CHECK(work.gradients() == gradients);
    CHECK(work.delayed_states() == states);
    CHECK(work.step.results().scalars == results.scalars);
  }
}

TEST_CASE("what is not finite is named where it comes from") {
  StepToTake work(load_recipe("infir2"));
  work.plant("layers.1.mlp.down", 3, 70, std::numeric_limits<float>::quiet_NaN());
  const StepResults results = work.take();
  CHECK_FALSE(std::isfinite(results.mean_loss()));
  const auto fault = work.look(FaultKind::nonfinite, results, work.unknown());
  REQUIRE(fault);
  contains(fault->message, "layers.1.mlp.down/fprop.w");
  contains(fault->message, "row 3, k 70");
  contains(fault->message, "tile (0, 0)");
  CHECK(fault->message.size() <= 256);
  CHECK(fault->sample_name == "layers.1.mlp.down/fprop.w");
  REQUIRE(fault->sample.size() > 3 * 96 + 70);
  CHECK(std::isnan(fault->sample[3 * 96 + 70]));
}

TEST_CASE("what becomes infinite in the cast is named as the operand it is cast into") {
  StepToTake work(unscaled("te_current", numerics::kE5M2, numerics::Overflow::special));
  work.plant("layers.0.attention.o", 5, 9, 0x1p17f);
  const StepResults results = work.take();
  const auto fault = work.look(FaultKind::nonfinite, results, work.unknown());
  REQUIRE(fault);
  CHECK(fault->message.find("layers.0.attention.o/fprop.w") == 0);
  contains(fault->message, "1 not finite after the cast");
  contains(fault->message, "row 5, k 9: without a scale in e5m2");
}

TEST_CASE("of a finite step the operand is named whose amax has grown most") {
  StepToTake work(load_recipe("infir2"));
  StepResults results = work.take();
  std::vector<double> usual;
  // As logged steps show it: operand after operand.
  StepContext logged = work.context;
  logged.log_statistics = true;
  work.step.accumulate(logged, work.batches, 1e-3);
  for (const OperandStatistics& statistics : work.step.results(false, true).statistics) {
    usual.push_back(statistics.amax);
  }
  work.step.accumulate(work.context, work.batches, 1e-3);
  work.plant("layers.1.attention.qkv", 2, 40, 64.0f);
  work.step.begin_update(work.spec, work.context.seed, 1);
  results = work.take();
  const auto fault = work.look(FaultKind::growth, results, usual);
  REQUIRE(fault);
  CHECK(fault->message.find("layers.1.attention.qkv/fprop.w (weights, micro-batch 0): amax 64") ==
        0);
  contains(fault->message, "times its usual one");
  contains(fault->message, "row 2, k 40: tile (0, 0)");
  CHECK(fault->sample[2 * 64 + 40] == 64.0f);
  // The growth of others counts by ratio, not by size.
  for (std::size_t i = 0; i < usual.size(); ++i) usual[i] = i == 0 ? 1e-6 : 1e6;
  const auto other = work.look(FaultKind::growth, results, usual);
  REQUIRE(other);
  CHECK(other->message.find("layers.0.attention.qkv/fprop.x") == 0);
  // Of a transposed operand rows are channels, and k is the token.
  usual[0] = 1e6;
  usual[static_cast<std::size_t>(Slot::wgrad_x)] = 1e-6;
  const auto transposed = work.look(FaultKind::growth, results, usual);
  REQUIRE(transposed);
  CHECK(transposed->message.find("layers.0.attention.qkv/wgrad.x (") == 0);
  StepContext measured = work.context;
  measured.log_statistics = true;
  work.step.accumulate(measured, work.batches, 1e-3);
  const StepResults again = work.step.results(false, true);
  const double channel = again.statistics[static_cast<std::size_t>(Slot::wgrad_x)].top_channel[0];
  contains(transposed->message, fmt::format("row {:.0f}, k ", channel));
}

TEST_CASE("without usual amaxes the operand that saturates most is named, or none") {
  StepToTake quiet(load_recipe("infir2"));
  const StepResults results = quiet.take();
  CHECK_FALSE(quiet.look(FaultKind::growth, results, quiet.unknown()));
  CHECK_FALSE(quiet.look(FaultKind::nonfinite, results, quiet.unknown()));

  StepToTake work(unscaled("te_current", numerics::kE4M3, numerics::Overflow::saturate));
  work.plant("layers.0.mlp.gate_up", 1, 2, 1e5f);
  const StepResults saturated = work.take();
  const auto fault = work.look(FaultKind::growth, saturated, work.unknown());
  REQUIRE(fault);
  contains(fault->message, "% saturated");
  // Nor where another one has grown a little.
  StepContext logged = work.context;
  logged.log_statistics = true;
  work.step.accumulate(logged, work.batches, 1e-3);
  std::vector<double> usual = work.unknown();
  usual[0] = 0.6 * work.step.results(false, true).statistics[0].amax;
  const auto same = work.look(FaultKind::growth, saturated, usual);
  REQUIRE(same);
  CHECK(same->message == fault->message);
  usual[0] *= 0.5;
  const auto grown = work.look(FaultKind::growth, saturated, usual);
  REQUIRE(grown);
  contains(grown->message, "3.33 times its usual one");
}
