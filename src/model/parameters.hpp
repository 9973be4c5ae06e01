// The weights of a model and everything the optimizer keeps beside them.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "emulation/backend.hpp"
#include "src/config/config.hpp"

namespace fp8lab {

/// What a model is built for: `inference` has no memory for a backward pass.
enum class Purpose : std::uint8_t { training, inference };

/// Elements of a bf16, f32 or f64 tensor, rounded to FP32, in row-major order.
void download_floats(Backend& backend, const TensorView& view, std::span<float> values);

/// Element `index` of the step's scalars (StepScalar), or of another vector of the backend's real
/// type.
double read_scalar(Backend& backend, const TensorView& scalars, std::int64_t index);

/// What one weight tensor is, shape (rows, cols); vectors are (1, n).
struct ParameterShape {
  std::string name;  ///< Hugging Face style, for example "model.layers.0.mlp.down_proj.weight"
  std::int64_t rows = 0, cols = 0;
  bool weight_decay = true;  ///< matrices decay; norm weights and biases do not
};

/// One weight tensor in backend memory.
struct Parameter {
  std::string name;
  AdamWTensors tensors;
  bool weight_decay = true;

  const TensorView& master() const { return tensors.master; }
  /// What forward and backward read: the BF16 copy, or the master weights themselves.
  const TensorView& working() const {
    return tensors.working.empty() ? tensors.master : tensors.working;
  }
  const TensorView& gradient() const { return tensors.gradient; }
};

/// The parameters of one decoder layer, as indices into Parameters::all().
struct LayerParameters {
  static constexpr std::size_t kNone = SIZE_MAX;  ///< what the model does not have

  std::size_t attention_norm, qkv, o, mlp_norm, gate_up, down;
  std::size_t qkv_bias = kNone, o_bias = kNone, gate_up_bias = kNone, down_bias = kNone;
  std::size_t q_norm = kNone, k_norm = kNone;  ///< of head_dim weights
};

/// The parameters of a model in their fixed order: embedding, layers from first to last, final
/// norm, head.
struct ParameterLayout {
  explicit ParameterLayout(const ModelConfig& model);
  std::int64_t count() const;  ///< number of weights

  std::vector<ParameterShape> shapes;
  std::vector<LayerParameters> layers;
  std::size_t final_norm = 0;
  std::size_t head = 0;  ///< the embedding when the two are tied
};

/// All parameters in the order of ParameterLayout.
class Parameters {
 public:
  /// Allocates zeros. `working` is bf16 for BF16 activations; f32 keeps no second copy. For
  /// inference there are neither gradients nor moments.
  Parameters(Backend& backend, const ModelConfig& model, const OptimizerConfig& optimizer,
             DType working, Purpose purpose = Purpose::training);

  /// N(0, initializer_range) matrices from (seed, parameter index), norms 1, biases 0.
  void initialize(std::uint64_t seed);

  const std::vector<Parameter>& all() const { return parameters_; }
  const Parameter& operator[](std::size_t index) const { return parameters_[index]; }
  const Parameter& embedding() const { return parameters_[0]; }
  const LayerParameters& layer(std::int64_t index) const {
    return layout_.layers[static_cast<std::size_t>(index)];
  }
  const Parameter& final_norm() const { return parameters_[layout_.final_norm]; }
  /// The embedding itself when the two are tied.
  const Parameter& head() const { return parameters_[layout_.head]; }

  std::int64_t count() const { return layout_.count(); }  ///< number of weights
  /// numerics::hash_term over all master weights in order: the same on every backend.
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
  Backend& backend_;
  ModelConfig model_;
  ParameterLayout layout_;
  std::vector<Parameter> parameters_;
  TensorView hash_;
};

/// Multiplies `gain` onto the same `channels` of every norm weight in front of a linear layer and
/// divides the matching input columns of that layer: the function stays, outlier channels appear.
/// The channels are drawn from `seed`. Exact when gain is a power of two.
void plant_outliers(Parameters& parameters, const ModelConfig& model,
                    const PlantedOutliers& outliers, std::uint64_t seed);

}  // namespace fp8lab
