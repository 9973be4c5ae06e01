#include "src/study/comparison.hpp"
#include "src/io/file_kind.hpp"

#include <algorithm>
#include <cmath>
#include <map>

#include "src/io/study_log.hpp"

namespace fp8lab {
namespace {

struct Series {
  std::vector<double> loss, smoothed, grad_norm;
  std::vector<std::int64_t> step;
};

Series series_of(const RunData& run) {
  Series series;
  for (const StepRecord& record : run.metrics) {
    series.step.push_back(record.step);
    series.loss.push_back(record.loss);
    series.grad_norm.push_back(record.grad_norm);
  }
  series.smoothed = smooth(series.loss);
  return series;
}

/// Standard deviation of the smoothed loss over runs at each step they all have; empty for one run.
std::vector<double> noise_band(const std::vector<Series>& runs) {
  if (runs.size() < 2) return {};
  std::size_t length = runs[0].smoothed.size();
  for (const Series& run : runs) length = std::min(length, run.smoothed.size());
  std::vector<double> band(length);
  for (std::size_t i = 0; i < length; ++i) {
    double mean = 0, squares = 0;
    for (const Series& run : runs) mean += run.smoothed[i];
    mean /= static_cast<double>(runs.size());
    for (const Series& run : runs) squares += (run.smoothed[i] - mean) * (run.smoothed[i] - mean);
    band[i] = std::sqrt(squares / static_cast<double>(runs.size() - 1));
  }
  return band;
}

void compare(const Series& arm, const Series& baseline, const std::vector<double>& band,
             ArmResult& result) {
  const std::size_t length = std::min(arm.smoothed.size(), baseline.smoothed.size());
  if (length == 0) return;
  result.max_gap = 0;
  result.gap_area = 0;
  double ratio = 0;
  for (std::size_t i = 0; i < length; ++i) {
    const double gap = arm.smoothed[i] - baseline.smoothed[i];
    const auto interval = static_cast<double>(i > 0 ? arm.step[i] - arm.step[i - 1] : 1);
    if (std::abs(gap) > std::abs(result.max_gap)) result.max_gap = gap;
    result.gap_area += gap * interval;
    ratio += arm.grad_norm[i] / baseline.grad_norm[i];
    if (result.first_step_beyond_noise < 0 && i < band.size() && std::abs(gap) > 2 * band[i]) {
      result.first_step_beyond_noise = arm.step[i];
    }
    result.final_gap = gap;
  }
  result.grad_norm_ratio = ratio / static_cast<double>(length);
}

StageResult stage_result(const RunData& run, const Series& series, const std::string& name) {
  StageResult result;
  const auto found = std::find(run.meta.stage_names.begin(), run.meta.stage_names.end(), name);
  const auto index = static_cast<std::int32_t>(found - run.meta.stage_names.begin());
  for (std::size_t i = 0; i < run.metrics.size(); ++i) {
    if (run.metrics[i].stage == index) result.train_loss = series.smoothed[i];
  }
  for (const EvalRecord& record : run.eval) {
    if (record.stage != index) continue;
    result.eval_loss = record.loss;
    if (record.exact_match_count > 0) {
      result.exact_match = record.exact_match;
      result.exact_match_count = record.exact_match_count;
    }
  }
  return result;
}

/// Arms that differ in the seed alone share this text.
std::string axes_without_seed(const PlannedArm& arm) {
  std::string text;
  for (const Assignment& axis : arm.axes) {
    if (axis.key != "seed") text += axis.key + "=" + axis.value + "\n";
  }
  return text;
}

ArmResult describe_arm(const PlannedArm& arm) {
  ArmResult result;
  result.name = arm.name;
  result.run_file = std::filesystem::path(arm.name) / "run.h5";
  result.recipe = arm.config.recipe;
  result.seed = arm.config.seed;
  result.baseline_arm = arm.baseline_arm;
  for (const Assignment& axis : arm.axes) result.axes[axis.key] = axis.value;
  return result;
}

}  // namespace

std::vector<double> smooth(const std::vector<double>& values) {
  std::vector<double> smoothed;
  for (const double value : values) {
    smoothed.push_back(smoothed.empty() ? value
                                        : smoothed.back() + kSmoothing * (value - smoothed.back()));
  }
  return smoothed;
}

std::int64_t count_spikes(const std::vector<double>& loss) {
  constexpr std::size_t kShortest = 10;
  std::int64_t spikes = 0;
  for (std::size_t i = kShortest; i < loss.size(); ++i) {
    const std::size_t first = i > kSpikeWindow ? i - kSpikeWindow : 0;
    const auto count = static_cast<double>(i - first);
    double mean = 0, squares = 0;
    for (std::size_t j = first; j < i; ++j) mean += loss[j];
    mean /= count;
    for (std::size_t j = first; j < i; ++j) squares += (loss[j] - mean) * (loss[j] - mean);
    if (loss[i] > mean + kSpikeDeviations * std::sqrt(squares / (count - 1))) ++spikes;
  }
  return spikes;
}

bool has_diverged(const std::vector<double>& loss) {
  if (loss.empty()) return false;
  const std::vector<double> smoothed = smooth(loss);
  for (const double value : loss) {
    if (!std::isfinite(value)) return true;
  }
  const std::size_t third = std::max<std::size_t>(1, loss.size() / 3);
  const double best =
      *std::min_element(smoothed.begin(), smoothed.begin() + static_cast<std::ptrdiff_t>(third));
  return smoothed.back() > best + kDivergedNats;
}

void write_comparison(const StudyConfig& study, const std::vector<PlannedArm>& arms,
                      const std::filesystem::path& directory) {
  StudyTable table{study.name, study.title, study.text, study.hash, study.baseline, {}, {}};
  std::map<std::string, RunData> runs;
  std::map<std::string, Series> series;
  std::map<std::string, std::vector<Series>> seeds;  // baselines by everything but their seed
  for (const PlannedArm& arm : arms) {
    for (const StageConfig& stage : arm.config.stages) {
      if (std::find(table.stage_names.begin(), table.stage_names.end(), stage.name) ==
          table.stage_names.end()) {
        table.stage_names.push_back(stage.name);
      }
    }
    const auto file = directory / arm.name / "run.h5";
    if (!is_present(file)) continue;
    runs[arm.name] = read_run(file);
    series[arm.name] = series_of(runs[arm.name]);
    if (arm.config.recipe == study.baseline) {
      seeds[axes_without_seed(arm)].push_back(series[arm.name]);
    }
  }
  const auto find_arm = [&](const std::string& name) {
    return std::find_if(arms.begin(), arms.end(),
                        [&](const PlannedArm& arm) { return arm.name == name; });
  };
  for (const PlannedArm& arm : arms) {
    ArmResult result = describe_arm(arm);
    result.stages.resize(table.stage_names.size());
    if (const auto found = runs.find(arm.name); found != runs.end()) {
      const RunData& run = found->second;
      const Series& own = series[arm.name];
      result.complete = run.complete;
      result.final_weight_hash = run.final_weight_hash;
      result.last_step = own.step.empty() ? 0 : own.step.back();
      result.diverged = has_diverged(own.loss);
      result.spikes = count_spikes(own.loss);
      for (std::size_t i = 0; i < table.stage_names.size(); ++i) {
        result.stages[i] = stage_result(run, own, table.stage_names[i]);
      }
      if (runs.count(arm.baseline_arm) > 0) {
        const PlannedArm& baseline = *find_arm(arm.baseline_arm);
        compare(own, series[arm.baseline_arm], noise_band(seeds[axes_without_seed(baseline)]),
                result);
        for (std::size_t i = 0; i < table.stage_names.size(); ++i) {
          result.stages[i].gap =
              result.stages[i].eval_loss -
              stage_result(runs[arm.baseline_arm], series[arm.baseline_arm], table.stage_names[i])
                  .eval_loss;
        }
      }
    }
    table.arms.push_back(std::move(result));
  }
  write_study(directory / "study.h5", table);
}

}  // namespace fp8lab
