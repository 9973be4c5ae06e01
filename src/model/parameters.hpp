// The weights of a model and everything the optimizer keeps beside them.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "emulation/backend.hpp"
#include "src/config/config.hpp"
#include "src/model/declaration.hpp"

namespace fp8lab {

/// What a model is built for: `inference` has no memory for a backward pass.
enum class Purpose : std::uint8_t { training, inference };

/// Elements of a bf16, f32 or f64 tensor, rounded to FP32, in row-major order.
void download_floats(Backend& backend, const TensorView& view, std::span<float> values);

/// Element `index` of the step's scalars (StepScalar), or of another vector of the backend's real
/// type.
double read_scalar(Backend& backend, const TensorView& scalars, std::int64_t index);

/// One weight tensor in backend memory.
struct Parameter {
  ParameterDeclaration declaration;
  AdamWTensors tensors;

  const std::string& name() const { return declaration.name; }
  const TensorView& master() const { return tensors.master; }
  /// What forward and backward read: the BF16 copy, or the master weights themselves.
  const TensorView& working() const {
    return tensors.working.empty() ? tensors.master : tensors.working;
  }
  const TensorView& gradient() const { return tensors.gradient; }
};

/// All parameters in the order of their declaration.
class Parameters {
 public:
  /// Allocates zeros. `working` is bf16 for BF16 activations; a working copy of the master weights
  /// is kept where they are of another type. Gradients are of the type that the optimizer wants
  /// where one GEMM writes them, else f32. For inference there are neither gradients nor moments.
  /// Throws Error for a BF16 master whose working copy would be FP32.
  Parameters(Backend& backend, const ModelConfig& model, const OptimizerConfig& optimizer,
             DType working, Purpose purpose = Purpose::training);

  /// As they are declared, with numbers from (seed, parameter index).
  void initialize(std::uint64_t seed);

  const std::vector<Parameter>& all() const { return parameters_; }
  const Parameter& operator[](ParameterId id) const {
    return parameters_[static_cast<std::size_t>(id)];
  }
  const Declaration& declaration() const { return declaration_; }
  DType working_dtype() const { return working_; }  ///< what forward and backward read

  /// numerics::hash_term over all master weights in order: the same on every backend.
  std::uint64_t hash() const;
  /// The same in backend memory, u8 (1, 8), until the next one.
  const TensorView& enqueue_hash() const;
  /// Those that a backward pass adds to; it writes those of the weights of linear layers.
  void zero_gradients();
  void reset_optimizer();

  const ModelConfig& model() const { return model_; }

  std::vector<float> download(const Parameter& parameter) const;
  /// The master weights from number `first` on, row-major.
  void download(const Parameter& parameter, std::int64_t first, std::span<float> values) const;
  /// Sets master weights, rounded to their type, and refreshes the working copy.
  void upload(const Parameter& parameter, const std::vector<float>& values);
  /// The same for the weights from number `first` on.
  void upload(const Parameter& parameter, std::int64_t first, std::span<const float> values);

 private:
  Backend& backend_;
  ModelConfig model_;
  Declaration declaration_;
  DType working_;
  std::vector<Parameter> parameters_;
  TensorView hash_;
};

}  // namespace fp8lab
