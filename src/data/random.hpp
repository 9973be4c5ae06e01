// A sequence of random numbers that depends only on its key: the same bits on every machine.
#pragma once

#include <cstdint>

#include "emulation/base/error.hpp"
#include "emulation/numerics/philox.hpp"

namespace fp8lab {

/// Philox4x32-10 in counter order. Streams with different (seed, stream) are independent.
class RandomSequence {
 public:
  /// Starts at number `first`.
  RandomSequence(std::uint64_t seed, std::uint32_t stream, std::uint64_t first = 0)
      : seed_(seed), stream_(stream), index_(first) {}

  /// Returns numbers 4 * block to 4 * block + 3 of the sequence.
  static numerics::PhiloxCounter block(std::uint64_t seed, std::uint32_t stream,
                                       std::uint64_t block) {
    return numerics::random_block(seed, stream, kDomain, 0, block);
  }

  std::uint32_t next() { return numerics::random_bits(seed_, stream_, kDomain, 0, index_++); }

  /// Returns a uniform integer in [0, n), without modulo bias.
  std::uint32_t below(std::uint32_t n) {
    FP8LAB_ASSERT(n > 0);
    const std::uint32_t limit = n * (UINT32_MAX / n);
    std::uint32_t bits = next();
    while (bits >= limit) bits = next();
    return bits % n;
  }

  /// Returns a uniform integer in [first, last].
  std::int64_t between(std::int64_t first, std::int64_t last) {
    return first + static_cast<std::int64_t>(below(static_cast<std::uint32_t>(last - first + 1)));
  }

  /// Returns a uniform number in (0, 1), at least 2^-33 away from both ends.
  double open_unit() { return open_unit(next()); }
  static constexpr double open_unit(std::uint32_t bits) {
    return (static_cast<double>(bits) + 0.5) * 0x1p-32;
  }

 private:
  static constexpr std::uint32_t kDomain = 0xda7a0000u;  ///< disjoint from quantizers' tensor ids
  std::uint64_t seed_;
  std::uint32_t stream_;
  std::uint64_t index_;
};

}  // namespace fp8lab
