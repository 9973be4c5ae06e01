#include "emulation/ops/quantize/channel_ranks.hpp"

namespace fp8lab {
namespace {

std::uint32_t select_rank(const std::uint32_t* keys, std::int64_t n, std::int64_t rank) {
  RankSelection selection;
  selection.start(rank);
  while (!selection.done()) {
    RankSelection::Count counts[RankSelection::kBins] = {};
    for (std::int64_t i = 0; i < n; ++i) {
      if (selection.contains(keys[i])) ++counts[selection.digit(keys[i])];
    }
    selection.descend(counts);
  }
  return selection.prefix;
}

}  // namespace

ChannelRanks rank_channels(const std::uint32_t* amax, std::int64_t n) {
  ChannelRanks ranks;
  ranks.top.clear();
  for (std::int64_t i = 0; i < n; ++i) ranks.top.insert({amax[i], i});
  ranks.lower_median = select_rank(amax, n, (n - 1) / 2);
  ranks.upper_median = n % 2 != 0 ? ranks.lower_median : select_rank(amax, n, n / 2);
  return ranks;
}

}  // namespace fp8lab
