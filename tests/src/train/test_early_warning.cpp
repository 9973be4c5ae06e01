// Detectors fire on what is planted, name it, and are silent on a quiet run.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <limits>
#include <vector>

#include "src/train/run_ending.hpp"
#include "src/train/watch/early_warning.hpp"
#include "src/train/watch/loss_spikes.hpp"
#include "tests/src/model/model_fixture.hpp"

using namespace fp8lab;

namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

/// x with scales of its own, w with delayed ones, dy cast without, and x in bf16.
std::vector<WatchedOperand> operands() {
  return {{true, true, 0.0}, {false, true, 448.0}, {false, false, 57344.0}, {true, false, 0.0}};
}

/// What four operands look like when nothing happens, but for a little noise of `step`.
std::vector<OperandStatistics> quiet(int step) {
  std::vector<OperandStatistics> all(4);
  for (std::size_t i = 0; i < all.size(); ++i) {
    const double noise = 1.0 + 0.03 * static_cast<double>((step * 7 + static_cast<int>(i)) % 5);
    all[i].amax = 100.0 * noise;
    all[i].channel_outlier_ratio = 4.0 * noise;
    all[i].kurtosis = 5.0 * noise;
    all[i].scale_max = 0.25 * noise;
    all[i].top_channel[0] = 11.0 + static_cast<double>(i);
  }
  all[2].scale_max = 1.0;
  return all;
}

const std::vector<std::uint8_t> kKnown(4, 0);

/// After `rows` quiet rows of 20 steps each.
EarlyWarning quiet_run(int rows, const WarningsConfig& config = {}) {
  EarlyWarning warnings(config);
  warnings.begin_stage(operands());
  for (int row = 0; row < rows; ++row) {
    for (int step = 0; step < 20; ++step) warnings.add_gradient(1.0 + 0.1 * (step % 3));
    const auto scores = warnings.add_statistics(quiet(row), kKnown, {{1, 5, 0.3, 0}});
    for (const WarningScore& score : scores) {
      INFO(name_of(score.detector) << " " << score.value);
      CHECK_FALSE(score.warns());
      CHECK(score.count == 0);
    }
  }
  return warnings;
}

/// What `detector` says; a score of NaN when it says nothing.
WarningScore of(const std::vector<WarningScore>& scores, Detector detector) {
  for (const WarningScore& score : scores) {
    if (score.detector == detector) return score;
  }
  return {detector, kNan, kNan};
}

/// The scores of one more row in which operand `index` is changed by `plant`.
template <class Plant>
std::vector<WarningScore> with_planted(std::size_t index, Plant plant) {
  EarlyWarning warnings = quiet_run(8);
  std::vector<OperandStatistics> statistics = quiet(8);
  plant(statistics[index]);
  return warnings.add_statistics(statistics, kKnown, {});
}

/// `detector` alone warns, of `operand`.
void check_alone(const std::vector<WarningScore>& scores, Detector detector, int operand) {
  for (const WarningScore& score : scores) {
    INFO(name_of(score.detector) << " " << score.score);
    CHECK(score.warns() == (score.detector == detector));
  }
  CHECK(of(scores, detector).operand == operand);
  CHECK(of(scores, detector).count == 1);
}

}  // namespace

TEST_CASE("deviations are those of log2 from the median, by the median absolute deviation") {
  DriftWindow window(5);
  CHECK(std::isnan(window.median()));
  for (const double value : {1.0, 2.0, 8.0}) window.add(value);
  CHECK(std::isnan(window.deviations(4.0)));  // three values are too few
  window.add(16.0);
  // log2: 0 1 3 4, median 2, distances 2 1 1 2, MAD 1.5.
  CHECK(window.deviations(32.0) == Approx(3.0 / (1.4826 * 1.5)));
  CHECK(window.deviations(0.5) == Approx(-3.0 / (1.4826 * 1.5)));
  CHECK(window.median() == Approx(4.0));
  for (const double value : {0.0, -1.0, kNan, std::numeric_limits<double>::infinity()}) {
    window.add(value);
    CHECK(std::isnan(window.deviations(value)));
  }
  CHECK(window.median() == Approx(4.0));
  window.add(64.0);
  window.add(64.0);  // the first one, 1, has left the window of five
  CHECK(window.median() == Approx(16.0));
}

TEST_CASE("a window without spread has the least one") {
  DriftWindow window(8);
  for (int i = 0; i < 4; ++i) window.add(3.0);
  CHECK(window.deviations(6.0) == Approx(1.0 / 0.25));
}

TEST_CASE("every detector of operands warns of what is planted, and of nothing else") {
  check_alone(with_planted(0, [](OperandStatistics& x) { x.channel_outlier_ratio *= 16.0; }),
              Detector::outlier_channels, 0);
  check_alone(with_planted(3, [](OperandStatistics& x) { x.kurtosis *= 16.0; }), Detector::kurtosis,
              3);
  check_alone(with_planted(0, [](OperandStatistics& x) { x.scale_max *= 16.0; }),
              Detector::scale_drift, 0);
  check_alone(with_planted(1, [](OperandStatistics& w) { w.scale_max /= 16.0, w.amax /= 16.0; }),
              Detector::scale_drift, 1);
  check_alone(with_planted(1, [](OperandStatistics& w) { w.amax = 4.01 * 448.0 * w.scale_max; }),
              Detector::amax_lag, 1);
  check_alone(with_planted(2, [](OperandStatistics& dy) { dy.nonfinite_count = 1.0; }),
              Detector::amax_lag, 2);
}

TEST_CASE("detectors look only where their quantity says something") {
  const auto is_quiet = [](const std::vector<WarningScore>& scores) {
    for (const WarningScore& score : scores) CHECK_FALSE(score.warns());
  };
  is_quiet(with_planted(1, [](OperandStatistics& w) {
    w.kurtosis *= 100.0;
    w.channel_outlier_ratio *= 100.0;
  }));
  is_quiet(with_planted(3, [](OperandStatistics& bf16) { bf16.scale_max *= 100.0; }));
  is_quiet(with_planted(0, [](OperandStatistics& current) { current.amax *= 100.0; }));
  // Growth is of one sign.
  is_quiet(with_planted(0, [](OperandStatistics& x) {
    x.kurtosis /= 100.0;
    x.channel_outlier_ratio /= 100.0;
  }));
}

TEST_CASE("a warning names the channel, and a lag is the ratio to the range") {
  const auto scores = with_planted(1, [](OperandStatistics& w) {
    w.amax = 6.0 * 448.0 * 0.25;
    w.scale_max = 0.25;
  });
  CHECK(of(scores, Detector::amax_lag).value == Approx(6.0));
  CHECK(of(scores, Detector::amax_lag).score == Approx(1.5));
  CHECK(of(scores, Detector::amax_lag).channel == 12);
}

TEST_CASE("of operands without history only the amax counts, and has no score") {
  EarlyWarning warnings = quiet_run(8);
  std::vector<OperandStatistics> statistics = quiet(8);
  statistics[1].amax = 1e9;
  statistics[1].scale_max = 1e9;
  const auto scores = warnings.add_statistics(statistics, {0, 1, 0, 0}, {});
  CHECK(of(scores, Detector::amax_lag).operand == 2);
  EarlyWarning new_scales = quiet_run(0);
  CHECK(std::isnan(new_scales.usual_amax(1)));
  new_scales.add_statistics(statistics, {0, 1, 0, 0}, {});
  CHECK(new_scales.usual_amax(1) == Approx(1e9));
}

TEST_CASE(
    "the largest gradient norm since the last logged step counts, and its spike begins once") {
  EarlyWarning warnings = quiet_run(4);
  CHECK_FALSE(warnings.is_gradient_spike(2.0));
  CHECK(warnings.is_gradient_spike(32.0));
  const auto first = warnings.add_gradient(32.0);
  REQUIRE(first);
  CHECK(first->warns());
  CHECK_FALSE(warnings.is_gradient_spike(33.0));  // neighbours are one
  warnings.add_gradient(33.0);
  warnings.add_gradient(1.0);
  CHECK(warnings.is_gradient_spike(33.0));
  CHECK_FALSE(of(warnings.scores(), Detector::gradient_norm).warns());  // the last one
  const WarningScore logged =
      of(warnings.add_statistics(quiet(4), kKnown, {}), Detector::gradient_norm);
  CHECK(logged.value > first->value);
  CHECK(logged.count == 2);
  CHECK(logged.operand == -1);
  CHECK(
      std::isnan(of(warnings.add_statistics(quiet(5), kKnown, {}), Detector::gradient_norm).score));
}

TEST_CASE("a stage begins with new windows, but for those of activations") {
  EarlyWarning warnings = quiet_run(8);
  warnings.begin_stage(operands());
  CHECK_FALSE(warnings.judge_gradient(100.0));
  CHECK(std::isnan(warnings.usual_amax(0)));
  std::vector<OperandStatistics> statistics = quiet(8);
  statistics[0].channel_outlier_ratio *= 64.0;
  statistics[0].kurtosis *= 64.0;
  statistics[0].scale_max *= 64.0;
  const auto scores = warnings.add_statistics(statistics, kKnown, {});
  CHECK(of(scores, Detector::outlier_channels).warns());
  CHECK(of(scores, Detector::kurtosis).warns());
  CHECK(std::isnan(of(scores, Detector::scale_drift).score));
}

TEST_CASE("each detector has its own threshold, and a score of one is at it") {
  for (const Detector detector : kDetectors) {
    INFO(name_of(detector));
    CHECK(detector_of(name_of(detector)) == detector);
    WarningsConfig config;
    const double usual = threshold(config, detector);
    double WarningsConfig::*const members[] = {
        &WarningsConfig::outlier_channels, &WarningsConfig::swiglu_alignment,
        &WarningsConfig::kurtosis,         &WarningsConfig::scale_drift,
        &WarningsConfig::amax_lag,         &WarningsConfig::gradient_norm};
    config.*members[static_cast<std::size_t>(detector)] *= 0.5;
    int changed = 0;
    for (const Detector other : kDetectors) {
      changed += threshold(config, other) != threshold(WarningsConfig{}, other) ? 1 : 0;
    }
    CHECK(changed == 1);
    CHECK(threshold(config, detector) == 0.5 * usual);
    EarlyWarning warnings(config);
    warnings.begin_stage(operands());
    for (int row = 0; row < 8; ++row) {
      warnings.add_gradient(1.0);
      warnings.add_statistics(quiet(0), kKnown, {});
    }
    warnings.add_gradient(1.2);
    std::vector<OperandStatistics> statistics = quiet(0);
    for (OperandStatistics& operand : statistics) {
      operand.kurtosis *= 1.2;
      operand.channel_outlier_ratio *= 1.2;
      operand.scale_max *= 1.2;
    }
    const auto scores = warnings.add_statistics(statistics, kKnown, {{1, 5, 0.3, 0}});
    for (const WarningScore& score : scores) {
      CHECK(score.score == Approx(score.value / threshold(config, score.detector)));
    }
    CHECK(scores.size() == kDetectors.size());
  }
  CHECK_FALSE(detector_of("loss"));
  const WarningScore at{Detector::kurtosis, 1.0, 12.0};
  CHECK(at.warns());
}

TEST_CASE("an operand is watched by what its recipe makes of it") {
  const Recipe current = load_recipe("te_current"), delayed = load_recipe("te_delayed"),
               plain = load_recipe("bf16");
  const auto x = [](const Recipe& recipe) {
    return watched_operand(Slot::fprop_x, recipe.linear.slot(Slot::fprop_x));
  };
  CHECK(x(current).is_activation);
  CHECK(x(current).has_scales);
  CHECK(x(current).fixed_range == 0.0);
  CHECK(x(delayed).has_scales);
  CHECK(x(delayed).fixed_range == 448.0);
  CHECK_FALSE(x(plain).has_scales);
  CHECK(x(plain).fixed_range == 0.0);
  const Slot dy = Slot::dgrad_dy;
  CHECK(watched_operand(dy, delayed.linear.slot(dy)).fixed_range == 57344.0);
  CHECK_FALSE(watched_operand(dy, delayed.linear.slot(dy)).is_activation);
  CHECK_FALSE(watched_operand(Slot::wgrad_x, plain.linear.slot(Slot::wgrad_x)).is_activation);
  QuantSpec unscaled = delayed.linear.slot(dy);
  unscaled.scale_source = ScaleSource::none;
  CHECK_FALSE(watched_operand(dy, unscaled).has_scales);
  CHECK(watched_operand(dy, unscaled).fixed_range == 57344.0);
}

TEST_CASE("alignment counts from the start of the run, and not where it is there already") {
  CHECK(alignment_since(0.0, 0.9, 0.85) == Approx(0.9));
  CHECK(alignment_since(0.5, 0.9, 0.85) == Approx(0.8));
  CHECK(alignment_since(0.8, 0.9, 0.85) == Approx(0.5));  // 5 such channels in SmolLM2-135M
  CHECK(alignment_since(0.5, 0.25, 0.85) == Approx(-0.5));
  CHECK(alignment_since(0.85, 1.0, 0.85) == 0.0);
  CHECK(alignment_since(1.0, 1.0, 1.0) == 0.0);
}

TEST_CASE("alignment of gate and up is the most that a channel moved, by layer") {
  fp8lab::test::ModelAtWork work("cpu", fp8lab::test::small_model(), load_recipe("bf16"));
  const SwigluAlignment alignment(*work.backend, work.parameters);
  const std::vector<float> start = alignment.measure();
  const auto before = alignment.compare(start, 0.9);
  REQUIRE(before.size() == 2);
  CHECK(before[0].count + before[1].count == 0);
  CHECK(before[0].moved == 0.0);
  CHECK(*std::max_element(start.begin(), start.end()) < 0.6f);
  const auto& linears = work.parameters.declaration().linears();
  for (std::size_t i = 0; i < 2; ++i) {
    const auto layer = static_cast<std::size_t>(before[i].operand) / kSlots.size();
    CHECK(linears[layer].name == "layers." + std::to_string(i) + ".mlp.gate_up");
    CHECK(static_cast<std::size_t>(before[i].operand) % kSlots.size() == 1);  // fprop.w
  }
  // Rows 7 and 9 of up become multiples of those of gate in the second layer.
  const auto layer = static_cast<std::size_t>(before[1].operand) / kSlots.size();
  const Parameter& weight = work.parameters[linears[layer].weight];
  std::vector<float> values = work.parameters.download(weight);
  const auto width = static_cast<std::size_t>(weight.declaration.cols);
  const auto gates = static_cast<std::size_t>(fp8lab::test::small_model().intermediate_size);
  for (std::size_t i = 0; i < width; ++i) {
    values[(gates + 7) * width + i] = -2.0f * values[7 * width + i];
    values[(gates + 9) * width + i] = values[9 * width + i] + (i == 0 ? 0.05f : 0.0f);
  }
  work.parameters.upload(weight, values);
  const auto after = alignment.compare(start, 0.9);
  CHECK(after[0].moved == 0.0);
  CHECK(after[1].moved == Approx(1.0));
  CHECK(after[1].channel == 7);
  CHECK(after[1].count == 2);
  CHECK(alignment.compare(start, 0.9999)[1].count == 1);
  // Weights that are aligned when a run starts, as those of published models.
  CHECK(alignment.compare(alignment.measure(), 0.9)[1].count == 0);

  fp8lab::test::ModelAtWork gelu("cpu", fp8lab::test::gpt2_model(), load_recipe("bf16"));
  CHECK(SwigluAlignment(*gelu.backend, gelu.parameters).compare({}, 0.9).empty());
}

TEST_CASE("an aligned channel warns, with how many there are") {
  EarlyWarning warnings = quiet_run(1);
  const auto scores = warnings.add_statistics(quiet(1), kKnown, {{1, 5, 0.86, 2}, {2, 6, 0.9, 3}});
  const WarningScore score = of(scores, Detector::swiglu_alignment);
  CHECK(score.warns());
  CHECK(score.value == 0.9);
  CHECK(score.operand == 2);
  CHECK(score.channel == 6);
  CHECK(score.count == 5);
}

TEST_CASE("a loss diverges where reports say so") {
  // The curves of tests/python/test_stats.py.
  CHECK_FALSE(divergence_row({}));
  CHECK_FALSE(divergence_row(std::vector<double>(9, 1.0)));
  CHECK(divergence_row({1.0, 1.0, kNan, 1.0, INFINITY}) == 2);
  std::vector<double> loss(20, 1.0);
  loss.insert(loss.end(), 10, 2.0);
  CHECK(divergence_row(loss) == 22);
  std::vector<double> back(20, 1.0);
  back.insert(back.end(), 3, 3.0);
  back.insert(back.end(), 6, 1.0);
  back.insert(back.end(), 7, 3.0);
  CHECK(divergence_row(back) == 29);
  CHECK_FALSE(divergence_row({5.6, 4.0, 3.0, 2.5, 2.4, 2.6}));
  CHECK_FALSE(divergence_row({3.0635, 4.0182}));
  CHECK(divergence_row({5.6, 5.6, 7488.0}) == 2);
  CHECK_FALSE(divergence_row({4.81, 3.39, 3.99, 3.68, 3.78, 4.87, 5.17, 4.16, 4.57, 4.31,
                              4.54, 4.21, 4.53, 3.82, 3.41, 4.2,  4.59, 4.21, 4.99, 4.27}));
}

TEST_CASE("the end of a run is told from its file") {
  RunData run;
  run.meta.stage_names = {"cpt", "sft"};
  for (int step = 1; step <= 6; ++step) {
    StepRecord row;
    row.step = step;
    row.stage = step > 3 ? 1 : 0;
    row.loss = step < 6 ? 5.6 : 7488.0;
    run.metrics.push_back(row);
  }
  run.metrics[0].loss = kNan;  // no token was trained on
  run.events = {{1, "no_targets", ""}, {5, "early_warning", ""}, {6, "early_warning", ""}};
  run.eval = {{3, 0, 5.5}, {6, 1, 7000.0}};
  const RunEnding ending = describe_ending(run);
  CHECK(ending.diverged);
  REQUIRE(ending.lines.size() == 3);
  CHECK(ending.lines[0] == "held-out loss: cpt 5.5 at step 3; sft 7000 at step 6");
  CHECK_THAT(ending.lines[1], Catch::StartsWith("diverged: sft: the smoothed loss ends at ") &&
                                  Catch::EndsWith("; from step 6 on"));
  CHECK(ending.lines[2] == "warnings: 2 early_warning, the first at step 5");
  run.metrics.back().loss = 5.0;
  CHECK_FALSE(describe_ending(run).diverged);
  run.metrics[4].loss = kNan;
  CHECK(describe_ending(run).diverged);
  run.events.push_back({5, "fallback", ""});  // the weights stayed
  CHECK_FALSE(describe_ending(run).diverged);
  run.eval.back().loss = kNan;
  CHECK(describe_ending(run).diverged);
}

TEST_CASE("a gradient norm that another program did not measure is no divergence") {
  RunData run;
  run.meta.stage_names = {"s"};
  for (int step = 1; step <= 6; ++step) {
    StepRecord row;
    row.step = step;
    row.loss = 5.0;
    row.grad_norm = step % 3 == 0 ? 1.0 : kNan;
    run.metrics.push_back(row);
  }
  CHECK_FALSE(describe_ending(run).diverged);
  run.metrics.back().grad_norm = INFINITY;
  CHECK(describe_ending(run).diverged);
  run.metrics.back().grad_norm = 1.0;
  run.meta.identity = {{"recipe", "0123456789abcdef"}};  // a file of this program has measured all
  CHECK(describe_ending(run).diverged);
}

TEST_CASE("a loss spikes above its average and five deviations, once for neighbours") {
  LossSpikes losses;
  CHECK(std::isinf(losses.limit()));
  for (int row = 0; row < 10; ++row) {
    CHECK_FALSE(losses.is_start(1e9));
    losses.add(2.0 + 0.1 * (row % 2));
  }
  // Ten values, five each of 2.0 and 2.1: sample deviation 0.0527, average 2.05 and a little.
  CHECK(losses.limit() == Approx(2.05 + 5.0 * 0.052705).epsilon(1e-3));
  CHECK_FALSE(losses.is_start(2.3));
  CHECK(losses.is_start(2.33));
  CHECK_FALSE(losses.is_start(kNan));
  losses.add(9.0);
  CHECK_FALSE(losses.is_start(1e9));
  losses.add(2.0);
  CHECK(losses.is_start(1e9));
}
