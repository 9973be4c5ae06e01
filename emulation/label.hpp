// Where an operation belongs in a training step.
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

/// The place of an operation in a training step. Model and training step set it (Backend::enter);
/// observers, traces, error reports and profilers read it. It changes no result.
struct Label {
  std::int64_t micro_batch = 0;  ///< index in the step; during the update, the last one's
  Phase phase = Phase::load;
  /// A linear layer ("layers.0.mlp.down"), a parameter ("layers.0.attention.norm.weight") or a
  /// module ("layers.0.attention"); empty: none of them. An operation that computes the x of one
  /// linear layer alone (ops::ProduceQuantize) has that layer's name.
  std::string layer{};
  std::string gemm{};    ///< "fprop", "dgrad" or "wgrad" in a GEMM of a linear layer, else empty
  std::string tensor{};  ///< the quantized tensor, "x", "w" or "dy"; of an upload: its contents
  bool operator==(const Label&) const = default;

  /// The label of another phase of the same micro-batch, without a layer.
  Label in_phase(Phase other) const { return {micro_batch, other}; }
  Label in_layer(std::string name) const { return {micro_batch, phase, std::move(name)}; }
  Label in_gemm(std::string role) const { return {micro_batch, phase, layer, std::move(role)}; }
  Label on_tensor(std::string name) const {
    return {micro_batch, phase, layer, {}, std::move(name)};
  }
};

}  // namespace fp8lab
