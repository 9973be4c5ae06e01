// A linear layer on tensors of the caller, who also provides the memory of its operands.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "src/interface/device.hpp"
#include "src/model/linear/linear_function.hpp"

namespace fp8lab::interface {

/// What identifies and shapes a layer.
struct LayerDescription {
  std::string name;         ///< in errors
  std::uint32_t index = 0;  ///< in random keys
  LinearRecipe recipe;
  std::int64_t tokens = 0;  ///< the largest number of rows of x
  std::int64_t in = 0, out = 0;
  DType activation = DType::bf16;  ///< of x, y, dy and dx: bf16 or f32
  DType weight = DType::f32;       ///< of w, bias and their gradients: bf16 or f32
  bool has_backward = true;        ///< false: forward passes only, and no operands of the others
};

/// When a pass runs.
struct Moment {
  std::uint64_t seed = 0;
  std::uint32_t step = 0, micro_batch = 0;
  bool is_measured = false;  ///< statistics of the operands are computed
  /// The pass belongs to training. Otherwise it leaves amax histories and statistics as they are.
  bool is_training = true;
};

/// Tensors of a pass, row-major without gaps, aligned to 16 bytes.
struct ForwardTensors {
  const void* x;     ///< (rows, in)
  const void* w;     ///< (out, in)
  const void* bias;  ///< (out), or null
  void* y;           ///< (rows, out)
};
struct BackwardTensors {
  const void* x;   ///< (rows, in)
  const void* w;   ///< (out, in)
  const void* dy;  ///< (rows, out)
  void* dx;        ///< (rows, in), or null if it is not wanted
  void* dw;        ///< (out, in), or null
  void* dbias;     ///< (out), or null
};

/// A number of values that a layer carries from step to step.
struct LayerState {
  std::string name;  ///< "x", "w", "dy", "wgrad.x": amax history; "fprop.factors": smoothing
  TensorView values;
  std::optional<OperandId> history;  ///< the row of its history
};

/// The three GEMMs of a layer. A backward pass depends on its arguments alone: any passes may run
/// between a forward pass and its backward pass, and a forward pass may be run again.
///
/// If activations are BF16 and weights are FP32, the weights are the recipe's master weights, and
/// the working weights are those rounded to BF16, to nearest even. Products have the type that the
/// recipe names and are then converted to the caller's: widened exactly, or rounded once more. A
/// BF16 weight gets its gradient from a wgrad that rounds to BF16.
class LinearLayer {
 public:
  /// Made during a turn of `device`, which must outlive the layer. Throws RecipeError or Error that
  /// names the layer, if the recipe or the shape is impossible, or the backend refuses an operand
  /// or a GEMM.
  LinearLayer(Device& device, const Device::Turn& turn, const LayerDescription& description);

  /// Bytes of `workspace`, of a pass of any number of rows: memory aligned to 256 bytes that
  /// nothing else uses until the pass has run.
  std::int64_t workspace_bytes() const { return workspace_bytes_; }

  void forward(const Moment& moment, std::int64_t rows, const ForwardTensors& tensors,
               void* workspace, void* stream);
  void backward(const Moment& moment, std::int64_t rows, const BackwardTensors& tensors,
                void* workspace, void* stream);

  /// Ends a step: amaxes enter the histories, and delayed scales are those of the next step.
  void end_step(void* stream);

  /// What the layer carries from step to step; empty for a recipe without delayed scales and static
  /// smoothing factors.
  const std::vector<LayerState>& states() const { return states_; }
  /// Copies the values of a state to the host; returns the number of steps in a history, else 0.
  std::int64_t read_state(std::size_t index, float* values, void* stream);
  void write_state(std::size_t index, const float* values, std::int64_t steps, void* stream);
  /// Number of amax histories: the first of states().
  std::size_t history_count() const { return history_count_; }
  /// Copy the running amax of each history from and to the host.
  void read_amaxes(float* amaxes, void* stream);
  void write_amaxes(const float* amaxes, void* stream);

  /// The statistics of the six operands, in the order of kSlots, of the last measured passes.
  void read_statistics(OperandStatistics* statistics, void* stream);

  const std::string& name() const { return description_.name; }
  /// The six operands, in the order of kSlots: their declarations and histories.
  const OperandSet& operands() const { return operands_; }

 private:
  void find_states();
  /// Reserves the buffers of a pass besides those of operands.
  void reserve_buffers();
  TensorView buffer(const char* name, DType dtype, std::int64_t rows, std::int64_t cols) const;
  /// Begins a pass in `workspace`; returns its context.
  StepContext begin(const Moment& moment, std::int64_t rows, void* workspace);
  void end(const Moment& moment);
  /// Copies the running amaxes of the histories to kept_amaxes_, or back.
  void keep_amaxes(bool back);
  LinearWeight weights_of(const void* w);
  /// Returns the caller's `data` as a product of type `made`, or a buffer if its type is another.
  TensorView product(const char* name, DType made, const TensorView& data) const;
  /// Copies a product to the caller's tensor if it is not that already.
  void deliver(const TensorView& product, const TensorView& data);

  Device& device_;
  LayerDescription description_;
  SmallMemory memory_;
  LinearFunction function_;
  Workspace workspace_;
  OperandSet operands_;
  std::int64_t workspace_bytes_ = 0;
  std::vector<LayerState> states_;
  std::size_t history_count_ = 0;
  TensorView kept_amaxes_;  ///< (1, histories): those of a step, while an evaluation runs
};

}  // namespace fp8lab::interface
