// Rows with a different value in every field, so that a swapped or lost one shows.
#pragma once

#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "src/io/hdf5/run_log.hpp"

inline fp8lab::RunMeta example_meta() {
  fp8lab::RunMeta meta;
  meta.run_name = "run näme";
  meta.recipe_name = "infir2";
  meta.recipe_text = "name = \"infir2\"\n" + std::string(100'000, '#');
  meta.recipe_resolved = "table\n\n";
  meta.recipe_hash = "0123456789abcdef";
  meta.config_text = "seed = 7\n";
  meta.config_hash = "fedcba9876543210";
  meta.data_hash = "00000000000000aa";
  meta.initial_weights_hash = "00000000000000bb";
  meta.code_version = "0.1.0";
  meta.backend = "cpu";
  meta.device = "some processor";
  meta.math_profile = "exact";
  meta.simd_target = "";
  meta.seed = 0xffffffffffffffffull;
  meta.parameter_count = 123456789012;
  meta.optimizer_states = "m=f32 v=f32 master=f32";
  meta.stage_names = {"pretrain", "cpt", "sft"};
  meta.extra = {{"hdf5", "1.10.8"}, {"a.b", "c"}};
  meta.identity = {{"configuration", "fedcba9876543210"},
                   {"recipe of stage cpt", "0123456789abcdef"},
                   {"initial weights", "00000000000000bb"}};
  return meta;
}

inline std::vector<fp8lab::TensorName> example_tensors() {
  return {{"layers.0.attention.qkv", "fprop.x", "e4m3fn 1x128 pow2", 0.25},
          {"lm_head", "wgrad.dy", "bf16", 0.0},
          {"layers.10.mlp.gate_up", "dgrad.w", "e5m2 128x128 fp32", 0.001953125}};
}

inline fp8lab::StepRecord example_step(std::int64_t step) {
  const auto x = static_cast<double>(step);
  return {step,        static_cast<std::int32_t>(step % 3),
          step * 1000, 1.0 / x,
          x + 0.5,     x * 1e-4,
          x * 0.1,     0xf000000000000000ull + static_cast<std::uint64_t>(step)};
}

/// Each member of the statistics of (step, tensor) is distinct; top_channel holds indices.
inline fp8lab::OperandStatistics example_statistics(std::int64_t step, std::size_t tensor) {
  fp8lab::OperandStatistics statistics;
  std::vector<double> values(sizeof statistics / sizeof(double));
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = static_cast<double>(step) * 1000.0 + static_cast<double>(tensor) * 200.0 +
                static_cast<double>(i) + 0.125;
  }
  std::memcpy(&statistics, values.data(), sizeof statistics);
  for (int i = 0; i < fp8lab::OperandStatistics::kTopChannels; ++i) {
    statistics.top_channel[i] = static_cast<double>(step * 100 + i);
  }
  return statistics;
}

inline void append_steps(fp8lab::RunLog& log, std::int64_t first, std::int64_t last) {
  for (std::int64_t step = first; step <= last; ++step) log.append(example_step(step));
}

inline void append_tensors(fp8lab::RunLog& log, std::int64_t step) {
  std::vector<fp8lab::OperandStatistics> statistics;
  for (std::size_t i = 0; i < example_tensors().size(); ++i) {
    statistics.push_back(example_statistics(step, i));
  }
  log.append_tensors(step, statistics, {0, 1, static_cast<std::uint8_t>(step == 10)});
}

/// Something of every kind, up to step 20.
inline void write_example(fp8lab::RunLog& log) {
  append_steps(log, 1, 10);
  log.append(fp8lab::EvalRecord{10, 0, 3.25, -1.0, 0});
  append_tensors(log, 10);
  log.append(fp8lab::EventRecord{5, "stress", "outlier_channels: 4 channels, gain 64"});
  log.append_sample(7, "layers.0.attention.qkv/fprop.x", {1.0f, -0.0f, 3.5f});
  log.append(fp8lab::CheckpointRecord{10, 0x1111111111111111ull});
  log.flush();
  append_steps(log, 11, 20);
  log.append(fp8lab::EvalRecord{20, 1, 2.25, 0.625, 64});
  log.append(fp8lab::ScoreRecord{10, 0, "loss/a.jsonl", 3.5, 1000});
  log.append(fp8lab::ScoreRecord{20, 1, "pass@4", 0.75, 64});
  log.append(fp8lab::DocumentRecord{10, 0, false, 0x3333333333333333ull, 2, 0, 7, 30, 97.5});
  log.append(fp8lab::DocumentRecord{10, 0, false, 0x3333333333333333ull, 2, 1, 5, 20, 65.25});
  log.append(fp8lab::DocumentRecord{20, 1, true, 0x4444444444444444ull, 1, 2, 6, 10, 22.5});
  log.append(fp8lab::WarningRecord{10, "gradient_norm", 0.5, 6.0});
  log.append(fp8lab::WarningRecord{20, "amax_lag", 1.25, 5.0, 2, 117, 3});
  append_tensors(log, 20);
  log.append(fp8lab::EventRecord{15, "nan", std::string(255, 'm') + "é tail"});
  log.append_sample(15, "b", {});
  log.append(fp8lab::CheckpointRecord{20, 0x2222222222222222ull});
  log.append_sample(20, "c", {std::numeric_limits<float>::infinity(), 2.0f});
  log.flush();
}
