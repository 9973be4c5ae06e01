#include "src/train/step/shard_sums.hpp"

#include <bit>

#include "emulation/base/error.hpp"

namespace fp8lab {
namespace {

/// Returns the node that holds the gradients of a shard.
std::size_t node_of(std::int64_t shard) {
  return static_cast<std::size_t>(std::popcount(static_cast<std::uint64_t>(shard)));
}

}  // namespace

ShardSums::ShardSums(Backend& backend, Parameters& parameters, const TensorView& scalars,
                     std::int64_t shards, Ranks& ranks)
    : backend_(backend),
      parameters_(parameters),
      loss_(scalars.columns(StepScalar::kLossSum, 1)),
      shards_(shards),
      ranks_(ranks) {
  FP8LAB_ASSERT(std::has_single_bit(static_cast<std::uint64_t>(shards)) &&
                shards % ranks.size() == 0);
  const std::size_t nodes = node_of(shards_of_rank() - 1) + 1;
  for (std::size_t i = 1; i < nodes; ++i) parameters_.add_gradient_set();
  if (nodes > 1) losses_ = backend_.allocate(loss_.dtype, 1, static_cast<std::int64_t>(nodes));
}

void ShardSums::select(std::int64_t shard) { parameters_.use_gradient_set(node_of(shard)); }

void ShardSums::add_nodes(std::size_t left) {
  const Parameters::GradientSet& sums = parameters_.gradient_sets()[left];
  const Parameters::GradientSet& others = parameters_.gradient_sets()[left + 1];
  for (std::size_t i = 0; i < sums.size(); ++i) {
    if (sums[i].empty()) continue;
    const LabelScope scope(backend_, backend_.label().in_layer(parameters_.all()[i].name()));
    backend_.run(ops::Add{.a = sums[i], .b = others[i], .sum = sums[i]});
  }
  const auto column = static_cast<std::int64_t>(left);
  const TensorView loss = losses_.columns(column, 1);
  backend_.run(ops::Add{.a = loss, .b = losses_.columns(column + 1, 1), .sum = loss});
}

void ShardSums::add(std::int64_t shard) {
  if (losses_.empty()) return;
  const std::size_t own = node_of(shard);
  backend_.run(ops::Copy{loss_, losses_.columns(static_cast<std::int64_t>(own), 1)});
  const int finished = std::countr_one(static_cast<std::uint64_t>(shard));
  for (std::size_t i = 1; i <= static_cast<std::size_t>(finished); ++i) add_nodes(own - i);
  if (shard + 1 == shards_of_rank()) {
    backend_.run(ops::Copy{losses_.columns(0, 1), loss_});
  } else {
    backend_.fill_zero(loss_);
  }
}

void ShardSums::add_over_ranks() {
  if (ranks_.size() == 1) return;
  std::vector<TensorView> tensors;
  for (const TensorView& gradient : parameters_.gradient_sets().front()) {
    if (!gradient.empty()) tensors.push_back(gradient);
  }
  tensors.push_back(loss_);
  ranks_.sum(backend_, tensors);
}

}  // namespace fp8lab
