#include "src/model/blocks/rope.hpp"

#include <algorithm>
#include <cmath>

#include "emulation/numerics/exact_math.hpp"

namespace fp8lab {
namespace {

constexpr double kPi = 0x1.921FB54442D18p+1;

/// Natural logarithm from a function of ours, so that every machine makes the same tables.
double natural_log(double x) { return numerics::log2_f64(x) * 0x1.62E42FEFA39EFp-1; }

/// Frequencies that turn less than low_freq_factor times over the pre-training length are divided
/// by `factor`, those that turn more than high_freq_factor times stay, and between the two the
/// share of each is linear in the number of turns.
double scale_llama3(double frequency, const RopeScaling& scaling) {
  const auto length = static_cast<double>(scaling.original_max_position_embeddings);
  const double turns = length * frequency / (2.0 * kPi);
  if (turns < scaling.low_freq_factor) return frequency / scaling.factor;
  if (turns > scaling.high_freq_factor) return frequency;
  const double kept =
      (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor);
  return (1.0 - kept) * frequency / scaling.factor + kept * frequency;
}

/// The pairs between which frequencies go over from kept to divided.
struct Ramp {
  double first, last;
};

/// Where a pair turns beta_fast and beta_slow times over the pre-training length.
Ramp yarn_ramp(const ModelConfig& model) {
  const RopeScaling& scaling = model.rope_scaling;
  const auto length = static_cast<double>(scaling.original_max_position_embeddings);
  const auto dim = static_cast<double>(model.head_dim);
  const auto pair_of = [&](double turns) {
    return dim * natural_log(length / (turns * 2.0 * kPi)) / (2.0 * natural_log(model.rope_theta));
  };
  Ramp ramp{pair_of(scaling.beta_fast), pair_of(scaling.beta_slow)};
  if (scaling.truncate) ramp = {std::floor(ramp.first), std::ceil(ramp.last)};
  ramp = {std::max(ramp.first, 0.0), std::min(ramp.last, dim - 1.0)};
  if (ramp.first == ramp.last) ramp.last += 0.001;
  return ramp;
}

double scale_yarn(double frequency, double pair, const Ramp& ramp, double factor) {
  const double divided = std::clamp((pair - ramp.first) / (ramp.last - ramp.first), 0.0, 1.0);
  return frequency / factor * divided + frequency * (1.0 - divided);
}

}  // namespace

std::vector<double> rope_frequencies(const ModelConfig& model) {
  const RopeScaling& scaling = model.rope_scaling;
  const Ramp ramp = scaling.type == RopeType::yarn ? yarn_ramp(model) : Ramp{};
  std::vector<double> frequencies;
  for (std::int64_t i = 0; i < model.head_dim / 2; ++i) {
    const auto pair = static_cast<double>(i);
    const double exponent = -2.0 * pair / static_cast<double>(model.head_dim);
    double frequency = numerics::pow_f64(model.rope_theta, exponent);
    switch (scaling.type) {
      case RopeType::unscaled:
      case RopeType::dynamic: break;
      case RopeType::linear: frequency /= scaling.factor; break;
      case RopeType::yarn: frequency = scale_yarn(frequency, pair, ramp, scaling.factor); break;
      case RopeType::llama3: frequency = scale_llama3(frequency, scaling); break;
    }
    frequencies.push_back(frequency);
  }
  return frequencies;
}

double rope_attention_factor(const RopeScaling& scaling) {
  if (scaling.type != RopeType::yarn) return 1.0;
  if (scaling.attention_factor > 0) return scaling.attention_factor;
  return 0.1 * natural_log(scaling.factor) + 1.0;
}

RopeTables rope_tables(const ModelConfig& model, std::int64_t positions) {
  const std::vector<double> frequencies = rope_frequencies(model);
  const double factor = rope_attention_factor(model.rope_scaling);
  RopeTables tables;
  for (std::int64_t p = 0; p < positions; ++p) {
    for (const double frequency : frequencies) {
      const auto value = numerics::sincos_f64(static_cast<double>(p) * frequency);
      tables.cosine.push_back(factor * value.cos);
      tables.sine.push_back(factor * value.sin);
    }
  }
  return tables;
}

RotaryTables make_rotary_tables(Backend& backend, const ModelConfig& model,
                                std::int64_t positions) {
  const auto [cosine, sine] = rope_tables(model, positions);
  const DType real = backend.storage(DType::f32);
  const auto upload = [&](const std::vector<double>& values) {
    const TensorView table = backend.allocate(real, positions, model.head_dim / 2);
    if (real == DType::f64) {
      backend.upload(table, values.data());
    } else {
      const std::vector<float> singles(values.begin(), values.end());
      backend.upload(table, singles.data());
    }
    return table;
  };
  return {upload(cosine), upload(sine)};
}

}  // namespace fp8lab
