// The selections and what is described from them, against sorting.
#include <catch2/catch.hpp>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

#include "emulation/ops/quantize/channel_ranks.hpp"
#include "emulation/ops/quantize/describe_statistics.hpp"

namespace fp8lab {
namespace {

using Keys = std::vector<std::uint32_t>;
using numerics::bits_float;
using numerics::float_bits;

constexpr std::uint32_t kInfinityBits = 0x7F800000u;
constexpr std::uint32_t kNanBits = 0x7FC00001u;
constexpr std::int64_t kCounts[] = {1, 2, 3, 7, 8, 9, 10, 64, 255, 256, 1001, 4096, 70001};

/// Indices by descending key, equal ones in ascending order.
std::vector<std::int64_t> sorted_channels(const Keys& keys) {
  std::vector<std::int64_t> order(keys.size());
  std::iota(order.begin(), order.end(), std::int64_t{0});
  std::stable_sort(order.begin(), order.end(), [&](std::int64_t a, std::int64_t b) {
    return keys[static_cast<std::size_t>(a)] > keys[static_cast<std::size_t>(b)];
  });
  return order;
}

void check_top(const TopChannels& top, const Keys& keys) {
  const std::vector<std::int64_t> order = sorted_channels(keys);
  for (std::size_t i = 0; i < TopChannels::kCount; ++i) {
    INFO("entry " << i << " of " << keys.size() << " channels");
    const bool taken = i < order.size();
    CHECK(top.entries[i].index == (taken ? order[i] : TopChannels::kNone));
    CHECK(top.entries[i].amax == (taken ? keys[static_cast<std::size_t>(order[i])] : 0u));
  }
}

void check_ranks(const Keys& keys) {
  const ChannelRanks ranks = rank_channels(keys.data(), static_cast<std::int64_t>(keys.size()));
  check_top(ranks.top, keys);
  Keys sorted = keys;
  std::sort(sorted.begin(), sorted.end());
  INFO(keys.size() << " channels");
  CHECK(ranks.lower_median == sorted[(sorted.size() - 1) / 2]);
  CHECK(ranks.upper_median == sorted[sorted.size() / 2]);
}

template <class Draw>
Keys draw_keys(std::int64_t n, const Draw& draw) {
  Keys keys(static_cast<std::size_t>(n));
  for (std::uint32_t& key : keys) key = draw();
  return keys;
}

/// Parts of a tensor without channels: 6 elements 3, -1, 2, 2, 0, NaN, of which the 2s were cast to
/// 2.5 and 1.5.
StatisticsParts six_elements() {
  StatisticsParts parts{};
  parts.elements = 6;
  parts.sums = {18, 114, 18.5, 0.5, 0, 8};
  parts.counts.nonfinite = 1;
  parts.counts.exponents[40] = 1;
  parts.counts.exponents[41] = 3;
  parts.tiles = 4;
  parts.zero_tiles = 1;
  parts.smallest_scale = 0.25f;
  parts.largest_scale = 8.0f;
  parts.hash = 0x123456789ABCDEF0u;
  return parts;
}

OperandStatistics describe(const Keys& keys) {
  StatisticsParts parts = six_elements();
  parts.channels = rank_channels(keys.data(), static_cast<std::int64_t>(keys.size()));
  return describe_statistics(parts);
}

}  // namespace

TEST_CASE("ranks of random channels are those of sorting") {
  std::mt19937 random(1);
  for (const std::int64_t n : kCounts) {
    check_ranks(draw_keys(n, [&] { return static_cast<std::uint32_t>(random()); }));
    check_ranks(draw_keys(n, [&] { return static_cast<std::uint32_t>(random()) & 0x7FFFFFFFu; }));
    // One exponent, as the columns of an activation have.
    check_ranks(
        draw_keys(n, [&] { return 0x3F800000u | static_cast<std::uint32_t>(random() % 4096); }));
  }
}

TEST_CASE("equal channels rank by index") {
  std::mt19937 random(2);
  for (const std::int64_t n : kCounts) {
    check_ranks(Keys(static_cast<std::size_t>(n), 0u));
    check_ranks(Keys(static_cast<std::size_t>(n), 0xFFFFFFFFu));
    check_ranks(Keys(static_cast<std::size_t>(n), float_bits(1.5f)));
    check_ranks(draw_keys(n, [&] { return float_bits(static_cast<float>(random() % 3)); }));
    // Digits that differ in one place only.
    check_ranks(draw_keys(n, [&] { return 0x40000000u ^ (1u << (8 * (random() % 4))); }));
  }
}

TEST_CASE("bits of infinity and NaN rank above every number") {
  std::mt19937 random(3);
  for (const std::int64_t n : kCounts) {
    Keys keys = draw_keys(n, [&] { return static_cast<std::uint32_t>(random()) & 0x7F7FFFFFu; });
    for (std::size_t i = 0; i < keys.size(); i += 3) keys[i] = i % 2 ? kInfinityBits : kNanBits;
    check_ranks(keys);
  }
}

TEST_CASE("sorted channels and a single one that differs") {
  for (const std::int64_t n : kCounts) {
    Keys keys(static_cast<std::size_t>(n));
    std::iota(keys.begin(), keys.end(), 0x3F800000u);
    check_ranks(keys);
    std::reverse(keys.begin(), keys.end());
    check_ranks(keys);
    Keys one(static_cast<std::size_t>(n), 7u);
    one.back() = 6u;
    check_ranks(one);
    one.back() = 8u;
    check_ranks(one);
  }
}

TEST_CASE("lists of parts merge into the list of all, however the channels are divided") {
  std::mt19937 random(4);
  for (const std::size_t threads : {2u, 32u, 512u}) {
    for (const std::int64_t n : kCounts) {
      const Keys keys = draw_keys(n, [&] { return static_cast<std::uint32_t>(random() % 50); });
      std::vector<TopChannels> lists(threads);
      for (TopChannels& list : lists) list.clear();
      std::vector<std::int64_t> order(keys.size());
      std::iota(order.begin(), order.end(), std::int64_t{0});
      std::shuffle(order.begin(), order.end(), random);
      for (const std::int64_t i : order) {
        lists[random() % threads].insert({keys[static_cast<std::size_t>(i)], i});
      }
      std::shuffle(lists.begin(), lists.end(), random);
      for (std::size_t list = 1; list < threads; ++list) {
        for (const Channel& channel : lists[list].entries) lists[0].insert(channel);
      }
      check_top(lists[0], keys);
    }
  }
}

TEST_CASE("the described channels are those of a sorted tensor") {
  std::mt19937 random(5);
  for (const std::int64_t n : kCounts) {
    Keys keys = draw_keys(n, [&] { return static_cast<std::uint32_t>(random()) % kInfinityBits; });
    if (n > 4) keys[4] = keys[2];
    const OperandStatistics s = describe(keys);
    const std::vector<std::int64_t> order = sorted_channels(keys);
    const auto amax = [&](std::size_t rank) {
      return static_cast<double>(bits_float(keys[static_cast<std::size_t>(order[rank])]));
    };
    for (std::size_t i = 0; i < OperandStatistics::kTopChannels; ++i) {
      const bool taken = i < order.size();
      CHECK(s.top_channel[i] == (taken ? static_cast<double>(order[i]) : -1.0));
      CHECK(s.top_channel_amax[i] == (taken ? amax(i) : 0.0));
    }
    CHECK(s.amax == amax(0));
    const double median = (amax(order.size() / 2) + amax((order.size() - 1) / 2)) / 2.0;
    CHECK(s.channel_outlier_ratio == amax(0) / median);
  }
}

TEST_CASE("outlier ratios without a median") {
  CHECK(std::isnan(describe({0, 0, 0}).channel_outlier_ratio));
  CHECK(describe({0, float_bits(2.0f), 0}).channel_outlier_ratio ==
        std::numeric_limits<double>::infinity());
  CHECK(describe({0, float_bits(2.0f)}).channel_outlier_ratio == 2.0);
  CHECK(describe({float_bits(3.0f)}).channel_outlier_ratio == 1.0);
}

TEST_CASE("a description worked out by hand") {
  const OperandStatistics s = describe({float_bits(3.0f), float_bits(2.0f)});
  CHECK(s.nonfinite_count == 1.0);
  CHECK(s.rms == std::sqrt(18.0 / 5.0));
  CHECK(s.mse == 0.1);
  CHECK(s.bias == 0.0);
  CHECK(s.kurtosis == (114.0 / 5.0) / ((18.0 / 5.0) * (18.0 / 5.0)));
  CHECK(s.crest_factor == 3.0 / std::sqrt(18.0 / 5.0));
  // log2 36 is accurate to 2 ulp, the constant and the product to 1.
  CHECK(std::abs(s.sqnr_db - 10.0 * std::log10(36.0)) < 16.0 * 5 * 0x1p-52);
  CHECK(s.cosine == 18.0 / (std::sqrt(18.0) * std::sqrt(18.5)));
  CHECK(s.zero_tile_fraction == 0.25);
  CHECK(s.scale_min == 0.25);
  CHECK(s.scale_max == 8.0);
  CHECK(s.scale_log2_spread == 5.0);  // exact: powers of two
  CHECK(s.exponent_histogram[39] == 0.0);
  CHECK(s.exponent_histogram[40] == 0.25);
  CHECK(s.exponent_histogram[41] == 0.75);
  CHECK(s.hash == 0x123456789ABCDEF0u);
}

/// The one NaN that every backend writes.
bool is_undefined(double value) {
  return std::bit_cast<std::uint64_t>(value) == std::uint64_t{0x7FF8000000000000};
}

TEST_CASE("errors without a signal, and operands without scales that count") {
  StatisticsParts parts = six_elements();
  const std::uint32_t zero = 0;
  parts.channels = rank_channels(&zero, 1);
  parts.sums = {0, 0, 1, 1, 1, 0};
  parts.smallest_scale = std::numeric_limits<float>::infinity();
  parts.largest_scale = 0.0f;
  OperandStatistics s = describe_statistics(parts);
  CHECK(s.sqnr_db == -std::numeric_limits<double>::infinity());
  CHECK(s.mse == 0.2);
  CHECK(s.rms == 0.0);
  CHECK(is_undefined(s.cosine));
  CHECK(is_undefined(s.bias));
  CHECK(is_undefined(s.kurtosis));
  CHECK(is_undefined(s.crest_factor));
  CHECK(is_undefined(s.scale_min));
  CHECK(is_undefined(s.scale_max));
  CHECK(is_undefined(s.scale_log2_spread));
  parts.sums = {1, 1, 1, 0x1p-100, 0, 1};
  s = describe_statistics(parts);
  CHECK(s.sqnr_db == Approx(1000.0 * std::log10(2.0)).epsilon(1e-14));  // 301 dB: not exact
  parts.sums = {1, 1, 1, 0, 0, 1};
  s = describe_statistics(parts);
  CHECK(s.sqnr_db == std::numeric_limits<double>::infinity());
  CHECK(s.cosine == 1.0);
  parts.counts.nonfinite = parts.elements;
  parts.sums = {};
  s = describe_statistics(parts);
  for (const double value : {s.sqnr_db, s.cosine, s.rms, s.mse, s.bias, s.kurtosis, s.crest_factor,
                             s.channel_outlier_ratio}) {
    CHECK(is_undefined(value));
  }
}

}  // namespace fp8lab
