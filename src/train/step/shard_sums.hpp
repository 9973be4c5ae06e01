// Gradients and loss of a step as sums over the shards of its batch, in an order that depends on
// the number of shards alone (emulation/specification.md, "Sums over the shards of a step").
//
//   shard     0     1     2     3
//             |     |     |     |      a leaf: the sum over the shard's own passes, one after
//              \   /       \   /       another
//               (+)         (+)        FP32 additions of whole tensors; the left operand is that
//                 \         /          of the earlier shards
//                    (+)
//
// A rank holds consecutive shards, and so a whole subtree. It computes them in order. The gradient
// sets of the parameters are a stack of pending sums, at most one for each level of the tree: shard
// s is computed in set popcount(s), the first free one, and then added to the sums below it that it
// completes.
#pragma once

#include <cstdint>
#include <vector>

#include "src/model/weights/parameters.hpp"
#include "src/train/step/ranks.hpp"

namespace fp8lab {

class ShardSums {
 public:
  /// `shards`: number of shards of a step, a power of two and a multiple of the number of ranks.
  /// `scalars`: StepScalar of the step. Adds log2(shards of a rank) gradient sets to `parameters`.
  /// All arguments outlive this object.
  ShardSums(Backend& backend, Parameters& parameters, const TensorView& scalars,
            std::int64_t shards, Ranks& ranks);

  std::int64_t shards() const { return shards_; }
  std::int64_t shards_of_rank() const { return shards_ / ranks_.size(); }
  /// Index of this rank's first shard.
  std::int64_t first_shard() const { return ranks_.rank() * shards_of_rank(); }
  Ranks& ranks() const { return ranks_; }

  /// Makes the parameters use the node in which `shard`, counted from 0 within the rank, is
  /// computed. Enqueues nothing.
  void select(std::int64_t shard);
  /// Enqueues the additions that become possible with `shard`, whose gradients and
  /// scalars[kLossSum] are computed. Afterwards that scalar is zero, or for the rank's last shard
  /// the sum over its shards.
  void add(std::int64_t shard);
  /// Adds gradients and loss over ranks.
  void add_over_ranks();

 private:
  /// Adds node `left` + 1 to node `left`.
  void add_nodes(std::size_t left);

  Backend& backend_;
  Parameters& parameters_;
  TensorView loss_;
  std::int64_t shards_;
  Ranks& ranks_;
  TensorView losses_;  ///< of the nodes, (1, nodes); empty for one
};

}  // namespace fp8lab
