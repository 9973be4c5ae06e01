// Where in a training step an operation stands.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "emulation/recording/observed_backend.hpp"
#include "src/model/parameters.hpp"
#include "src/model/transformer.hpp"

namespace fp8lab {

enum class Phase : std::uint8_t {
  stress,   ///< weights change before the passes, and what is for one step is undone after them
  load,     ///< tokens, targets and scalars go to the backend
  weights,  ///< weights are quantized for the step
  forward,  ///< with the loss and its gradient
  backward,
  update,  ///< gradient norm, AdamW, delayed scales, the hash of the weights
};
std::string_view name_of(Phase phase);

struct Place {
  std::int64_t micro_batch = 0;  ///< of the step, from 0; update: that of the last one
  Phase phase = Phase::load;
  std::string layer;  ///< "layers.0.mlp.down", "layers.0.attention.norm.weight"; empty: of no layer
  std::string gemm;   ///< of a linear layer's product: "fprop", "dgrad" or "wgrad"; else empty
  bool operator==(const Place&) const = default;
};

/// "gemm", "adamw", "upload", ...; of what is quantized as it is made with the name of the maker.
std::string kind_of(const AnyOperation& op);

/// Follows the operations of one step. It knows layers by the memory of their parameters and by the
/// random keys of their quantizers, and what has neither by the layer before it; columns of a batch
/// by the memory that they are uploaded to.
class PlaceTracker {
 public:
  PlaceTracker(const Parameters& parameters, const Transformer& transformer);

  /// The place of the next operation.
  Place next(const AnyOperation& op);
  /// Which operand of which GEMM an output is part of: "fprop.x"; the tensor of a delayed state,
  /// "x". Empty for others. After the operation.
  std::string part_of(const AnyOperation& op, const OperationOutput& output) const;
  /// What an upload brings: the name of a column (ColumnSpec), "step scalars" or "step number";
  /// empty for what is no upload.
  std::string_view uploaded(const AnyOperation& op) const;

 private:
  std::string layer_of(const AnyOperation& op) const;
  /// The weight or gradient that an upload or a copy changes; null for all else.
  const std::string* stressed(const AnyOperation& op) const;

  std::map<const void*, std::string> parameters_;    ///< by master, working copy and gradient
  std::map<const void*, std::size_t> weights_;       ///< linear layers by their weights
  std::map<const void*, std::size_t> gradients_;     ///< and by the gradients of these
  std::map<const void*, std::string> states_;        ///< delayed states, factors, statistics
  std::map<const void*, std::string_view> columns_;  ///< names of the batch's columns
  std::vector<std::string> linears_;
  Place place_;
  std::string last_;  ///< the name of the last operation that has one
};

}  // namespace fp8lab
