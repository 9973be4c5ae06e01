#include "src/evaluation/rollout.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "emulation/base/error.hpp"
#include "emulation/base/error_context.hpp"
#include "emulation/base/input_error.hpp"

namespace fp8lab {
namespace {

bool are_same_bits(double a, double b) {
  return std::bit_cast<std::uint64_t>(a) == std::bit_cast<std::uint64_t>(b);
}

}  // namespace

std::int64_t first_difference(const RolloutTokens& completion) {
  for (std::size_t i = 0; i < completion.rollout.size(); ++i) {
    if (!are_same_bits(completion.training[i], completion.rollout[i])) {
      return static_cast<std::int64_t>(i);
    }
  }
  return -1;
}

RolloutGap measure_gap(const std::vector<RolloutTokens>& completions, double clip,
                       std::int64_t bucket) {
  RolloutGap result;
  for (const RolloutTokens& completion : completions) {
    FP8LAB_ASSERT(completion.rollout.size() == completion.training.size());
    for (std::size_t i = 0; i < completion.rollout.size(); ++i) {
      const double gap = completion.training[i] - completion.rollout[i];
      const double ratio = std::exp(gap), k3 = std::expm1(gap) - gap;
      const std::size_t index = i / static_cast<std::size_t>(bucket);
      if (index == result.buckets.size()) {
        result.buckets.push_back({static_cast<std::int64_t>(index) * bucket, 0, 0, 0, 0});
      }
      const bool differs = !are_same_bits(completion.training[i], completion.rollout[i]);
      ++result.tokens;
      result.different += differs ? 1 : 0;
      result.mean += gap;
      result.largest = std::max(result.largest, std::fabs(gap));
      result.k3 += k3;
      result.clipped_share += ratio > clip ? 1.0 : 0.0;
      result.clipped_mean += std::min(ratio, clip);
      RolloutGap::Bucket& part = result.buckets[index];
      ++part.tokens;
      part.different += differs ? 1 : 0;
      part.largest = std::max(part.largest, std::fabs(gap));
      part.k3 += k3;
    }
  }
  if (result.tokens == 0) return result;
  const auto tokens = static_cast<double>(result.tokens);
  for (double* sum : {&result.mean, &result.k3, &result.clipped_share, &result.clipped_mean}) {
    *sum /= tokens;
  }
  for (RolloutGap::Bucket& part : result.buckets) part.k3 /= static_cast<double>(part.tokens);
  return result;
}

GapSpread spread_of(const std::vector<RolloutTokens>& completions) {
  std::vector<double> gaps;
  GapSpread spread;
  for (const RolloutTokens& completion : completions) {
    for (std::size_t i = 0; i < completion.rollout.size(); ++i) {
      double gap = std::fabs(completion.training[i] - completion.rollout[i]);
      if (are_same_bits(completion.training[i], completion.rollout[i])) gap = 0.0;
      if (std::isnan(gap)) gap = std::numeric_limits<double>::infinity();
      gaps.push_back(gap);
      if (gap == 0.0) {
        ++spread.zero;
        continue;
      }
      const auto edge = std::upper_bound(GapSpread::kEdges.begin(), GapSpread::kEdges.end(), gap);
      ++spread.counts[static_cast<std::size_t>(edge - GapSpread::kEdges.begin())];
    }
  }
  if (gaps.empty()) return spread;
  std::sort(gaps.begin(), gaps.end());
  for (std::size_t i = 0; i < GapSpread::kShares.size(); ++i) {
    const double rank = std::ceil(GapSpread::kShares[i] * static_cast<double>(gaps.size()));
    spread.quantiles[i] = gaps[static_cast<std::size_t>(std::max(rank, 1.0)) - 1];
  }
  return spread;
}

std::unique_ptr<Transformer> make_rollout_model(Backend& backend, const Parameters& parameters,
                                                const Transformer& trained, const Recipe& recipe) {
  const DType own = backend.storage(recipe.activation_dtype);
  const DType of_training = parameters.working_dtype();
  if (own != of_training) {
    throw InputError({.where = fmt::format("rollout recipe {}", recipe.name),
                      .reason = fmt::format("its activations are {}, those of training {}",
                                            name_of(own), name_of(of_training))});
  }
  auto model = at_place(fmt::format("rollout recipe {}", recipe.name), [&] {
    return std::make_unique<Transformer>(backend, parameters, parameters.model(), recipe,
                                         trained.shape(), Purpose::inference);
  });
  if (model->has_delayed_scales()) {
    throw InputError({.where = fmt::format("rollout recipe {}", recipe.name),
                      .reason = "delayed scaling needs the amax history of a run"});
  }
  return model;
}

}  // namespace fp8lab
