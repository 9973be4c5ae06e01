// The weights of a model and everything the optimizer keeps beside them.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "emulation/api/backend.hpp"
#include "src/config/config.hpp"

namespace fp8lab {

/// One weight tensor, shape (rows, cols); vectors are (1, n).
struct Parameter {
  std::string name;  ///< Hugging Face style, for example "model.layers.0.mlp.down.weight"
  AdamWTensors tensors;
  bool weight_decay = true;  ///< matrices decay; norm weights and biases do not

  const TensorView& master() const { return tensors.master; }
  /// What forward and backward read: the BF16 copy, or the master weights themselves.
  const TensorView& working() const {
    return tensors.working.empty() ? tensors.master : tensors.working;
  }
  const TensorView& gradient() const { return tensors.gradient; }
};

/// The parameters of one decoder layer, as indices into Parameters::all().
struct LayerParameters {
  std::size_t attention_norm, qkv, o, mlp_norm, gate_up, down;
  std::size_t qkv_bias = SIZE_MAX;  ///< SIZE_MAX without a bias
};

/// All parameters in a fixed order: embedding, layers from first to last, final norm, head.
class Parameters {
 public:
  /// Allocates zeros. `working` is bf16 for BF16 activations; f32 keeps no second copy.
  Parameters(Backend& backend, const ModelConfig& model, const OptimizerConfig& optimizer,
             DType working);

  /// N(0, initializer_range) matrices from (seed, parameter index), norms 1, biases 0.
  void initialize(std::uint64_t seed);

  const std::vector<Parameter>& all() const { return parameters_; }
  const Parameter& operator[](std::size_t index) const { return parameters_[index]; }
  const Parameter& embedding() const { return parameters_[0]; }
  const LayerParameters& layer(std::int64_t index) const {
    return layers_[static_cast<std::size_t>(index)];
  }
  const Parameter& final_norm() const { return parameters_[final_norm_]; }
  /// The embedding itself when the two are tied.
  const Parameter& head() const { return parameters_[head_]; }

  std::int64_t count() const;  ///< number of weights
  /// XXH3-64 over all master weights in order.
  std::uint64_t hash() const;
  void zero_gradients();
  void reset_optimizer();

  const ModelConfig& model() const { return model_; }

  std::vector<float> download(const Parameter& parameter) const;
  /// The master weights from number `first` on, row-major.
  void download(const Parameter& parameter, std::int64_t first, std::span<float> values) const;
  /// Sets master weights and refreshes the working copy.
  void upload(const Parameter& parameter, const std::vector<float>& values);
  /// The same for the weights from number `first` on.
  void upload(const Parameter& parameter, std::int64_t first, std::span<const float> values);

 private:
  std::size_t add(const std::string& name, std::int64_t rows, std::int64_t cols, bool decay);

  Backend& backend_;
  ModelConfig model_;
  OptimizerConfig optimizer_;
  DType working_;
  std::vector<Parameter> parameters_;
  std::vector<LayerParameters> layers_;
  std::size_t final_norm_ = 0, head_ = 0;
};

/// Multiplies `gain` onto the same `channels` of every norm weight in front of a linear layer and
/// divides the matching input columns of that layer: the function stays, outlier channels appear.
/// The channels are drawn from `seed`. Exact when gain is a power of two.
void plant_outliers(Parameters& parameters, const ModelConfig& model,
                    const PlantedOutliers& outliers, std::uint64_t seed);

}  // namespace fp8lab
