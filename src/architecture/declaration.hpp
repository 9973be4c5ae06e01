// The parts of a model, each declared once, in a fixed order (parts.hpp). Initialization,
// optimizer, names in files and checkpoints, memory and recipes iterate over this record.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "src/architecture/live_range.hpp"
#include "src/architecture/model_config.hpp"

namespace fp8lab {

enum class ParameterId : std::size_t {};
enum class LinearId : std::size_t {};
enum class SavedId : std::size_t {};
enum class ScratchId : std::size_t {};

/// The block that a linear layer or a saved tensor belongs to.
enum class Block : std::uint8_t { attention, feed_forward, head };
PassPhase forward_of(Block block);
PassPhase backward_of(Block block);

/// Initial weights of a parameter: value + deviation * N(0, 1).
struct Initialization {
  double value = 0.0, deviation = 0.0;
};

/// Consecutive rows of a parameter with a name of their own, such as the query rows of a fused
/// query-key-value matrix.
struct OutputGroup {
  std::string name;
  std::int64_t rows = 0;
};

/// The rows of a fused SwiGLU weight: those of the gate and those of the up projection.
struct GateAndUp {
  std::int64_t gate = 0, up = 0;  ///< first rows
  std::int64_t count = 0;         ///< of each
};

/// One weight tensor, shape (rows, cols).
struct ParameterDeclaration {
  std::string name;  ///< "layers.0.mlp.down.weight"; weight or bias of the module before it
  std::int64_t rows = 0, cols = 0;
  bool is_vector = false;  ///< (1, n) here, one dimension in files
  bool weight_decay = true;
  Initialization initialization;
  /// Parts of a linear layer's outputs: rows of its weight, elements of its bias. Empty: no parts.
  std::vector<OutputGroup> groups;
  std::optional<GateAndUp> gate_and_up = std::nullopt;  ///< of a fused SwiGLU weight
  std::optional<std::int64_t> layer =
      std::nullopt;         ///< index of its layer, set by Declaration; empty: in no layer
  bool is_adapter = false;  ///< of a low-rank adapter
  bool is_frozen = false;   ///< never trained
  /// Weight of an RMSNorm of ModelConfig::zero_centered_norms: files hold it less 1.
  bool is_zero_centered = false;

  std::int64_t size() const { return rows * cols; }
};

/// A linear layer y = x W^T (+ bias), whose three GEMMs follow a recipe.
struct LinearDeclaration {
  std::string name;  ///< as recipes match it: "layers.0.mlp.down"
  std::int64_t in = 0, out = 0;
  ParameterId weight{};
  std::optional<ParameterId> bias;
  float alpha = 1.0f;       ///< factor of all three products: y = alpha x W^T (+ bias)
  bool is_adapter = false;  ///< one of the two products of a low-rank adapter (LoraSpec)
  bool is_tied = false;     ///< the weight belongs to another module, which adds to its gradient
  std::optional<SavedId> own_x;  ///< its x, if an ops::Producer computes it for this layer alone
  bool writes_residual = false;  ///< the output is what its block adds to the residual stream
  std::string module;            ///< its name within the layer: "mlp.down"
  Block block{};
  Recompute recomputed = Recompute::none;  ///< of its x, as SavedDeclaration::recomputed
  bool in_chunks = false;                  ///< processes MemoryConfig::loss_chunk tokens at a time
  bool x_is_remakeable = false;            ///< its x is SavedDeclaration::is_remakeable
};

/// A tensor that the forward pass computes for a micro-batch of T tokens and saves for the backward
/// pass. In inference, layers share one buffer for it. Tensors of the head live during the head's
/// phase.
struct SavedDeclaration {
  enum class Shape : std::uint8_t {
    activation,  ///< (T, extent) in the recipe's activation type
    row,         ///< (1, T * extent) f32: `extent` values for each token
    planes,      ///< (extent, T) f32
  };
  std::string name;  ///< the same in all layers
  Shape shape = Shape::activation;
  std::int64_t extent = 0;
  Block block{};
  /// The lowest level at which the backward pass recomputes it; none: it is always kept.
  Recompute recomputed = Recompute::none;
  bool in_chunks = false;  ///< holds MemoryConfig::loss_chunk tokens at a time
  std::optional<std::int64_t> layer = std::nullopt;  ///< index of its layer; empty: in no layer
  bool is_of_adapter = false;
  std::optional<Block> stream_of = std::nullopt;  ///< the block that reads this residual stream
  /// One operation computes it from another saved tensor of its block, and a linear layer reads it.
  bool is_remakeable = false;
  bool remakes_other = false;  ///< a remakeable tensor is computed from it

  /// Returns true if recipes name it: Recipe::saved_activations.
  bool is_activation_of_layer() const {
    return layer && shape == Shape::activation && !is_of_adapter;
  }
};

/// Scratch memory (T, cols), in the activation type unless it says otherwise; its contents last
/// until the next use of the name.
struct ScratchDeclaration {
  std::string name;
  std::int64_t cols = 0;
  LiveRange live;  ///< the same for all of one name
  bool in_training_only = true;
  bool is_f32 = false;  ///< whatever the activation type is
};

/// A norm, and the only linear layer that reads its output.
struct NormedLinear {
  std::vector<ParameterId> norm;  ///< its weight and bias: element c scales or shifts channel c
  LinearId linear{};
};

class Declaration {
 public:
  /// Later declarations belong to layer `index`: parameters and linear layers get the prefix
  /// "layers.INDEX.". Empty: to no layer.
  void enter_layer(std::optional<std::int64_t> index);
  /// Later declarations belong to `block`.
  Declaration& in_block(Block block);
  /// The backward pass recomputes later declarations from this level on; none: never.
  Declaration& recomputed_from(Recompute level);

  ParameterId parameter(ParameterDeclaration declaration);
  /// Weights from N(0, deviation^2), a bias of zeros; `module` is the layer's name.
  LinearId linear(const std::string& module, std::int64_t in, std::vector<OutputGroup> outputs,
                  bool bias, double deviation);
  /// A linear layer with the weight of another module and no bias.
  LinearId tied_linear(const std::string& module, ParameterId weight);
  SavedId saved(const std::string& name, SavedDeclaration::Shape shape, std::int64_t extent);
  ScratchId scratch(const std::string& name, std::int64_t cols, LiveRange live,
                    bool in_training_only = true);
  /// FP32 scratch memory of the training step.
  ScratchId f32_scratch(const std::string& name, std::int64_t cols, LiveRange live);
  void normed_linear(std::vector<ParameterId> norm, LinearId linear);
  /// Multiplies the products of `linear` by `factor` of its inputs.
  void multiply_products(LinearId linear, ProductFactor factor);
  /// `linear` is a product of a low-rank adapter, multiplied by `alpha`.
  void adapts(LinearId linear, float alpha);
  /// An ops::Producer computes `x` for `linear`, and nothing else reads it.
  void own_x(LinearId linear, SavedId x);
  /// `saved` is the residual stream that `block` reads.
  void stream_of(Block block, SavedId saved);
  /// An adapter saves it.
  void of_adapter(SavedId saved);
  /// `linear` reads `x`, which one operation computes from the saved tensor `from`.
  void remakeable(LinearId linear, SavedId x, SavedId from);
  /// The block of `linear` adds its output to the residual stream.
  void writes_residual(LinearId linear);
  /// Names the two halves of the outputs of `linear`.
  void gate_and_up(LinearId linear, GateAndUp rows);
  /// `linear` and its output `y` process the tokens of a micro-batch in chunks.
  void in_chunks(LinearId linear, SavedId y);

  const std::vector<ParameterDeclaration>& parameters() const { return parameters_; }
  const std::vector<LinearDeclaration>& linears() const { return linears_; }
  const std::vector<SavedDeclaration>& saved() const { return saved_; }
  const std::vector<ScratchDeclaration>& scratch() const { return scratch_; }
  const std::vector<NormedLinear>& normed_linears() const { return normed_linears_; }
  std::int64_t weights() const;  ///< number of weights
  const ParameterDeclaration& parameter(ParameterId id) const {
    return parameters_[static_cast<std::size_t>(id)];
  }
  const LinearDeclaration& linear(LinearId id) const {
    return linears_[static_cast<std::size_t>(id)];
  }

 private:
  std::optional<std::int64_t> layer_;
  std::string prefix_;
  Block block_{};
  Recompute recomputed_ = Recompute::none;
  std::vector<ParameterDeclaration> parameters_;
  std::vector<LinearDeclaration> linears_;
  std::vector<SavedDeclaration> saved_;
  std::vector<ScratchDeclaration> scratch_;
  std::vector<NormedLinear> normed_linears_;
};

}  // namespace fp8lab
