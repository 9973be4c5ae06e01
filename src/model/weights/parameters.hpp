// The weights of a model with their gradients and optimizer states.
#pragma once

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <span>
#include <string>
#include <vector>

#include "emulation/backend.hpp"
#include "emulation/ops/optimizer/orthogonalize.hpp"
#include "emulation/ops/optimizer/stored_state.hpp"
#include "src/architecture/declaration.hpp"
#include "src/config/config.hpp"

namespace fp8lab {

/// What a model is built for. `inference` allocates no memory for a backward pass.
enum class Purpose : std::uint8_t { training, inference };

/// Elements of a bf16, f32 or f64 tensor, rounded to FP32, in row-major order.
void download_floats(Backend& backend, const TensorView& view, std::span<float> values);

/// Element `index` of the step's scalars (StepScalar), or of another vector of the backend's real
/// type.
double read_scalar(Backend& backend, const TensorView& scalars, std::int64_t index);

/// What is kept of a parameter.
struct ParameterTensors {
  TensorView master;    ///< the weights that are updated: f32 or bf16 (f64 on the truth path)
  TensorView working;   ///< bf16 copy of an f32 master, or empty; empty for zero-centered norms
  TensorView gradient;  ///< empty if frozen, but see Parameters::add_discarded_gradients
  StoredState first_moment, second_moment;  ///< empty where the rule has none, and if frozen
  TensorView weight_bound;  ///< (1, 1): largest magnitude of a weight (madam); else empty
};

/// The state that a rounding works on; part of its random key.
enum class StateRole : std::uint32_t { gradient, first_moment, second_moment, weights };

/// One weight tensor in backend memory.
struct Parameter {
  ParameterDeclaration declaration;
  ParameterTensors tensors;
  std::uint32_t index = 0;  ///< in the order of declaration
  OptimizerGroup group{};   ///< the first group that matches its name, else a neutral one
  UpdateRule rule = UpdateRule::adamw;  ///< the optimizer's; beside muon adamw, see GroupRule

  const std::string& name() const { return declaration.name; }
  const TensorView& master() const { return tensors.master; }
  /// The weights that forward and backward read: the BF16 copy, or the master weights.
  const TensorView& working() const {
    return tensors.working.empty() ? tensors.master : tensors.working;
  }
  const TensorView& gradient() const { return tensors.gradient; }
  /// Factor of the stage's learning rate.
  float rate_factor() const;
  /// False if its group or the model freezes it: nothing computes its gradient or updates it.
  bool is_trained() const { return !group.frozen; }
};

/// The initial weights of parameter number `index`, from element `first` on, a multiple of 4: drawn
/// by `seed`, as its declaration says.
void draw_initial_values(const ParameterDeclaration& parameter, std::size_t index,
                         std::uint64_t seed, std::int64_t first, std::span<float> values);

/// All parameters in the order of their declaration.
class Parameters {
 public:
  /// Allocates zeros. `working` is the type that forward and backward read: bf16 for BF16
  /// activations; master weights of another type get a working copy. A gradient that a single GEMM
  /// writes has the optimizer's gradient type, any other is f32. Inference has no gradients and no
  /// moments. Weights and gradients with a storage format are kept as the f32 values of that
  /// format, moments as codes. The truth path stores everything in f64. Throws Error for a BF16
  /// master whose working copy would be FP32, for weights of zero-centered norms in another type
  /// than FP32 or with decay, for a group that matches no parameter, and if all parameters are
  /// frozen.
  Parameters(Backend& backend, const ModelConfig& model, const OptimizerConfig& optimizer,
             DType working, Purpose purpose = Purpose::training);

  /// Draws the declared initial weights; the random numbers depend on (seed, parameter index).
  void initialize(std::uint64_t seed);

  const std::vector<Parameter>& all() const { return parameters_; }
  const Parameter& operator[](ParameterId id) const {
    return parameters_[static_cast<std::size_t>(id)];
  }
  const Declaration& declaration() const { return declaration_; }
  DType working_dtype() const { return working_; }  ///< what forward and backward read

  /// numerics::hash_term over all master weights in order: the same on every backend.
  std::uint64_t hash() const;
  /// The same in backend memory, u8 (1, 8); valid until the next call.
  const TensorView& enqueue_hash() const;
  /// Zeroes the gradients that a backward pass adds to. It overwrites those of linear weights.
  void zero_gradients();
  /// Gradients of all parameters, empty for frozen ones; the constructor allocates the first set,
  /// and uses it.
  using GradientSet = std::vector<TensorView>;
  const std::vector<GradientSet>& gradient_sets() const { return gradient_sets_; }
  /// Allocates one more set, with the types of the first.
  void add_gradient_set();
  /// Makes the tensors of set `index` the gradients that Parameter::gradient() returns.
  void use_gradient_set(std::size_t index);
  /// Sets moments to zero, and recomputes the bounds of weights (madam).
  void reset_optimizer();

  /// Storage formats of weights and gradients; plain if they are not rounded.
  const QuantSpec& weight_storage() const { return optimizer_.weights; }
  const QuantSpec& gradient_storage() const { return optimizer_.gradients; }
  /// Rounds an f32 tensor of `parameter` to the values of `storage`.
  void round(const Parameter& parameter, StateRole role, const TensorView& tensor,
             const QuantSpec& storage, const RandomKey& key) const;
  /// Rounds all master weights to their storage, as before the first step of a run.
  void round_weights(std::uint64_t seed);
  /// The moment in the backend's real type, as one row: the stored tensor itself if it has that
  /// type, else a decoded copy in shared memory, valid until the next parameter. Empty without a
  /// state.
  TensorView load(StateRole role, const StoredState& state) const;
  /// True if ops::AdamW updates the parameter: it reads and rounds plain moments itself.
  bool is_updated_at_once(const Parameter& parameter) const;
  /// Stores the row that load() returned, with its changes.
  void store(const Parameter& parameter, StateRole role, const StoredState& state,
             const RandomKey& key) const;

  /// Calls visit(op, weights, copy) for each part of a matrix whose rule is muon, one after
  /// another: the parts of a fused matrix, as `declaration.groups` has them, or the whole. The
  /// operation orthogonalizes the part's momentum, out of the row `momentum`, into memory that all
  /// parts share; weights and working copy are those of the part.
  using VisitPart = std::function<void(const ops::Orthogonalize& op, const TensorView& weights,
                                       const TensorView& working)>;
  void for_each_muon_part(const Parameter& parameter, const UpdateSpec& spec,
                          const TensorView& scalars, const TensorView& momentum,
                          const VisitPart& visit) const;

  const ModelConfig& model() const { return model_; }

  std::vector<float> download(const Parameter& parameter) const;
  /// Master weights from flat index `first` on, row-major.
  void download(const Parameter& parameter, std::int64_t first, std::span<float> values) const;
  /// Sets master weights, rounded to their type, and refreshes the working copy.
  void upload(const Parameter& parameter, const std::vector<float>& values);
  /// The same for the weights from flat index `first` on.
  void upload(const Parameter& parameter, std::int64_t first, std::span<const float> values);

 private:
  /// `key` for this tensor.
  static RandomKey key_of(const Parameter& parameter, StateRole role, RandomKey key);
  void allocate_moments(Parameter& parameter);
  void assign_groups();
  void freeze_all_but_adapters();
  void assign_rules();
  void allocate_muon();
  /// Gives frozen norm vectors one gradient to share, which is discarded: the operation that
  /// computes dx of a norm writes it.
  void add_discarded_gradients();
  /// Memory that all parameters share: for decoded moments, and for rounding to one of `storages`.
  void allocate_loaded_moments();
  void allocate_rounding(std::initializer_list<const QuantSpec*> storages);
  bool is_in_place(const StoredState& state) const;
  void set_weight_bound(const Parameter& parameter) const;

  Backend& backend_;
  ModelConfig model_;
  OptimizerConfig optimizer_;
  Declaration declaration_;
  DType working_;
  std::vector<Parameter> parameters_;
  std::vector<GradientSet> gradient_sets_;
  TensorView hash_;
  TensorView discarded_gradient_;  ///< of frozen norm vectors; empty without any
  /// Decoded moments, and codes and scales of tensors that are rounded in place.
  TensorView loaded_first_, loaded_second_, rounded_codes_, rounded_scales_;
  /// Of ops::Orthogonalize, for the largest part: update, x and gram, as one row each.
  TensorView muon_update_, muon_x_, muon_gram_, muon_squares_;
};

}  // namespace fp8lab
