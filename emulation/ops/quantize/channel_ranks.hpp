// Finds the largest channels of a tensor and the median of all, exactly. Bits of FP32 magnitudes
// sort as the magnitudes do, so both are selections among unsigned integers. Neither result depends
// on how the channels are divided among threads.
#pragma once

#include <cstdint>
#include <limits>

#include "emulation/ops/quantize/operand_statistics.hpp"

namespace fp8lab {

struct Channel {
  std::uint32_t amax;  ///< FP32 bits
  std::int64_t index;
};

/// The order of top channels: descending amax, then ascending index.
FP8LAB_HD constexpr bool ranks_before(const Channel& a, const Channel& b) {
  return a.amax != b.amax ? a.amax > b.amax : a.index < b.index;
}

/// The first kCount of the inserted channels, which may come in any order. To merge the lists of
/// two parts of a tensor, insert the entries of one into the other.
struct TopChannels {
  static constexpr int kCount = OperandStatistics::kTopChannels;
  /// Index of an unused entry; it ranks after every channel.
  static constexpr std::int64_t kNone = std::numeric_limits<std::int64_t>::max();

  Channel entries[kCount];

  FP8LAB_HD constexpr void clear() {
    for (Channel& entry : entries) entry = {0, kNone};
  }
  FP8LAB_HD constexpr void insert(const Channel& channel) {
    if (!ranks_before(channel, entries[kCount - 1])) return;
    entries[kCount - 1] = channel;
    for (int i = kCount - 1; i > 0; --i) {
      if (!ranks_before(entries[i], entries[i - 1])) continue;
      const Channel moved = entries[i - 1];
      entries[i - 1] = entries[i];
      entries[i] = moved;
    }
  }
};

/// Radix selection of the key of one rank (0: the smallest) among n keys, from the most significant
/// digit down. A pass counts the next digit of all keys that contain the digits found so far;
/// descend() then keeps the bin that contains the rank.
struct RankSelection {
  static constexpr int kDigitBits = 8;
  static constexpr int kBins = 1 << kDigitBits;
  using Count = unsigned long long;  ///< the type that atomicAdd takes

  std::uint32_t prefix;  ///< the digits found; the result when done()
  int shift;             ///< position of the next digit; negative: no digit is left
  Count rank;            ///< among the keys that contain the digits

  FP8LAB_HD constexpr void start(std::int64_t rank_of_all) {
    prefix = 0;
    shift = 32 - kDigitBits;
    rank = static_cast<Count>(rank_of_all);
  }
  FP8LAB_HD constexpr bool done() const { return shift < 0; }
  FP8LAB_HD constexpr bool contains(std::uint32_t key) const {
    return std::uint64_t{key ^ prefix} >> (shift + kDigitBits) == 0;
  }
  FP8LAB_HD constexpr int digit(std::uint32_t key) const {
    return static_cast<int>(key >> shift & (kBins - 1));
  }
  /// Keeps the bin of the rank. counts[d]: number of selected keys with digit(key) = d.
  FP8LAB_HD constexpr void descend(const Count* counts) {
    std::uint32_t bin = 0;
    Count before = 0;
    while (rank >= before + counts[bin]) before += counts[bin++];
    keep(bin, before);
  }
  /// Keeps the keys of a bin; `before` keys are in lower bins.
  FP8LAB_HD constexpr void keep(std::uint32_t bin, Count before) {
    rank -= before;
    prefix |= bin << shift;
    shift -= kDigitBits;
  }
};

struct ChannelRanks {
  TopChannels top;
  /// Keys of the ranks (n - 1) / 2 and n / 2: the same channel if n is odd.
  std::uint32_t lower_median, upper_median;
};

/// Ranks n >= 1 channels; amax[i] holds the FP32 bits of channel i.
ChannelRanks rank_channels(const std::uint32_t* amax, std::int64_t n);

}  // namespace fp8lab
