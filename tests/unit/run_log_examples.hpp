// Rows with a different value in every field, so that a swapped or lost one shows.
#pragma once

#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "src/io/run_log.hpp"

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
