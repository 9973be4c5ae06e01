#include "src/model/parameters.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>

#include "emulation/numerics/exact_math.hpp"
#include "src/data/random.hpp"
#include "src/io/hash.hpp"

namespace fp8lab {
namespace {

constexpr std::uint32_t kInitializationStream = 0x1217;
constexpr std::uint32_t kOutlierStream = 0x0071;

/// Standard normal numbers by Box and Muller in double precision, from functions of ours only, so
/// that every machine draws the same weights.
class NormalSequence {
 public:
  NormalSequence(std::uint64_t seed, std::uint32_t stream) : random_(seed, stream) {}

  double next() {
    if (has_spare_) {
      has_spare_ = false;
      return spare_;
    }
    const double radius =
        std::sqrt(-2.0 * (numerics::log2_f64(random_.open_unit()) * 0x1.62E42FEFA39EFp-1));
    const auto angle = numerics::sincos_f64(6.283185307179586 * random_.open_unit());
    spare_ = radius * angle.sin;
    has_spare_ = true;
    return radius * angle.cos;
  }

 private:
  RandomSequence random_;
  double spare_ = 0;
  bool has_spare_ = false;
};

/// Elements [first, first + count) of a contiguous matrix, as one row.
TensorView range(const TensorView& view, std::int64_t first, std::size_t count) {
  return view.flat().columns(first, static_cast<std::int64_t>(count));
}

}  // namespace

Parameters::Parameters(Backend& backend, const ModelConfig& model, const OptimizerConfig& optimizer,
                       DType working)
    : backend_(backend), model_(model), optimizer_(optimizer), working_(working) {
  const std::int64_t c = model.hidden_size;
  const std::int64_t qkv =
      (model.num_attention_heads + 2 * model.num_key_value_heads) * model.head_dim;
  const std::int64_t attention = model.num_attention_heads * model.head_dim;
  add("model.embed_tokens.weight", model.vocab_size, c, true);
  for (std::int64_t i = 0; i < model.num_hidden_layers; ++i) {
    const std::string prefix = fmt::format("model.layers.{}.", i);
    LayerParameters layer{};
    layer.attention_norm = add(prefix + "input_layernorm.weight", 1, c, false);
    layer.qkv = add(prefix + "self_attn.qkv_proj.weight", qkv, c, true);
    layer.qkv_bias =
        model.qkv_bias ? add(prefix + "self_attn.qkv_proj.bias", 1, qkv, false) : SIZE_MAX;
    layer.o = add(prefix + "self_attn.o_proj.weight", c, attention, true);
    layer.mlp_norm = add(prefix + "post_attention_layernorm.weight", 1, c, false);
    layer.gate_up = add(prefix + "mlp.gate_up_proj.weight", 2 * model.intermediate_size, c, true);
    layer.down = add(prefix + "mlp.down_proj.weight", c, model.intermediate_size, true);
    layers_.push_back(layer);
  }
  final_norm_ = add("model.norm.weight", 1, c, false);
  head_ = model.tie_word_embeddings ? 0 : add("lm_head.weight", model.vocab_size, c, true);
}

std::size_t Parameters::add(const std::string& name, std::int64_t rows, std::int64_t cols,
                            bool decay) {
  Parameter parameter;
  parameter.name = name;
  parameter.weight_decay = decay;
  AdamWTensors& tensors = parameter.tensors;
  const DType master = backend_.storage(DType::f32);
  tensors.master = backend_.allocate(master, rows, cols);
  const DType working = backend_.storage(working_);
  if (working != master) tensors.working = backend_.allocate(working, rows, cols);
  tensors.gradient = backend_.allocate(master, rows, cols);
  tensors.first_moment = backend_.allocate(backend_.storage(optimizer_.first_moment), rows, cols);
  tensors.second_moment = backend_.allocate(backend_.storage(optimizer_.second_moment), rows, cols);
  parameters_.push_back(parameter);
  return parameters_.size() - 1;
}

void Parameters::initialize(std::uint64_t seed) {
  for (std::size_t index = 0; index < parameters_.size(); ++index) {
    const Parameter& parameter = parameters_[index];
    std::vector<float> values(static_cast<std::size_t>(parameter.master().size()), 0.0f);
    if (parameter.weight_decay) {
      NormalSequence normal(seed, kInitializationStream + static_cast<std::uint32_t>(index));
      for (float& value : values) {
        value = static_cast<float>(model_.initializer_range * normal.next());
      }
    } else if (parameter.name.find("norm") != std::string::npos) {
      std::fill(values.begin(), values.end(), 1.0f);
    }
    upload(parameter, values);
  }
}

std::int64_t Parameters::count() const {
  std::int64_t total = 0;
  for (const Parameter& parameter : parameters_) total += parameter.master().size();
  return total;
}

std::uint64_t Parameters::hash() const {
  Xxh3Stream stream;
  for (const Parameter& parameter : parameters_) {
    const TensorView& master = parameter.master();
    std::vector<std::byte> bytes(static_cast<std::size_t>(master.size()) * size_of(master.dtype));
    backend_.download(bytes.data(), master);
    stream.update(bytes.data(), bytes.size());
  }
  return stream.digest();
}

void Parameters::zero_gradients() {
  for (const Parameter& parameter : parameters_) backend_.fill_zero(parameter.gradient());
}

void Parameters::reset_optimizer() {
  for (const Parameter& parameter : parameters_) {
    backend_.fill_zero(parameter.tensors.first_moment);
    backend_.fill_zero(parameter.tensors.second_moment);
  }
}

std::vector<float> Parameters::download(const Parameter& parameter) const {
  std::vector<float> values(static_cast<std::size_t>(parameter.master().size()));
  download(parameter, 0, values);
  return values;
}

void Parameters::download(const Parameter& parameter, std::int64_t first,
                          std::span<float> values) const {
  const TensorView master = range(parameter.master(), first, values.size());
  if (master.dtype != DType::f64) return backend_.download(values.data(), master);
  std::vector<double> wide(values.size());
  backend_.download(wide.data(), master);
  std::transform(wide.begin(), wide.end(), values.begin(),
                 [](double value) { return static_cast<float>(value); });
}

void Parameters::upload(const Parameter& parameter, const std::vector<float>& values) {
  FP8LAB_ASSERT(static_cast<std::int64_t>(values.size()) == parameter.master().size());
  upload(parameter, 0, values);
}

void Parameters::upload(const Parameter& parameter, std::int64_t first,
                        std::span<const float> values) {
  const TensorView master = range(parameter.master(), first, values.size());
  if (master.dtype == DType::f64) {
    const std::vector<double> wide(values.begin(), values.end());
    backend_.upload(master, wide.data());
  } else {
    backend_.upload(master, values.data());
  }
  const TensorView& working = parameter.tensors.working;
  if (!working.empty()) backend_.copy(master, range(working, first, values.size()));
}

void plant_outliers(Parameters& parameters, const ModelConfig& model,
                    const PlantedOutliers& outliers, std::uint64_t seed) {
  RandomSequence random(seed, kOutlierStream);
  std::vector<std::int64_t> channels;
  while (static_cast<std::int64_t>(channels.size()) < outliers.channels) {
    const std::int64_t channel = random.between(0, model.hidden_size - 1);
    if (std::find(channels.begin(), channels.end(), channel) == channels.end()) {
      channels.push_back(channel);
    }
  }
  const auto gain = static_cast<float>(outliers.gain);
  const auto plant = [&](const Parameter& norm, const Parameter& linear) {
    std::vector<float> norm_weight = parameters.download(norm);
    std::vector<float> weight = parameters.download(linear);
    for (const std::int64_t channel : channels) {
      norm_weight[static_cast<std::size_t>(channel)] *= gain;
      for (std::int64_t row = 0; row < linear.master().rows; ++row) {
        weight[static_cast<std::size_t>(row * linear.master().cols + channel)] /= gain;
      }
    }
    parameters.upload(norm, norm_weight);
    parameters.upload(linear, weight);
  };
  for (std::int64_t i = 0; i < model.num_hidden_layers; ++i) {
    const LayerParameters& layer = parameters.layer(i);
    plant(parameters[layer.attention_norm], parameters[layer.qkv]);
    plant(parameters[layer.mlp_norm], parameters[layer.gate_up]);
  }
}

}  // namespace fp8lab
