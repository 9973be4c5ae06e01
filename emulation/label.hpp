// What an operation is part of: the label that the model gives it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

namespace fp8lab {

enum class Phase : std::uint8_t {
  stress,   ///< a stress changes weights or gradients, or restores them
  load,     ///< tokens, targets and scalars are uploaded
  weights,  ///< weights are quantized for the step
  forward,  ///< with the loss and its gradient
  backward,
  update,  ///< gradient norm, optimizer, delayed scales, hash of the weights
};
std::string_view name_of(Phase phase);

/// The place of an operation in a training step. The model sets it (Backend::enter); observers,
/// traces, error reports and profilers read it. It changes no result.
struct Label {
  std::int64_t micro_batch = 0;  ///< of the step, from 0; in an update that of the last one
  Phase phase = Phase::load;
  /// The linear layer ("layers.0.mlp.down"), which includes the operation that computes the tensor
  /// it quantizes; else the parameter ("layers.0.attention.norm.weight") or the module
  /// ("layers.0.attention"). Empty: no layer.
  std::string layer{};
  std::string gemm{};    ///< of the product of a linear layer: "fprop", "dgrad" or "wgrad"
  std::string tensor{};  ///< of a linear layer: "x", "w" or "dy"; of an upload: its contents
  bool operator==(const Label&) const = default;

  /// The same micro-batch in another phase, in no layer.
  Label in_phase(Phase other) const { return {micro_batch, other}; }
  Label in_layer(std::string name) const { return {micro_batch, phase, std::move(name)}; }
  Label in_gemm(std::string role) const { return {micro_batch, phase, layer, std::move(role)}; }
  Label on_tensor(std::string name) const {
    return {micro_batch, phase, layer, {}, std::move(name)};
  }
};

}  // namespace fp8lab
