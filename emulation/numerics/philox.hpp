// Counter-based random bits: the same on every backend and for every number of threads.
#pragma once

#include <cstdint>

#include "emulation/numerics/host_device.hpp"

FP8LAB_NUMERICS_BEGIN

/// Four 32-bit words. A plain struct, because the members of std::array are host functions to nvcc.
struct PhiloxCounter {
  std::uint32_t word[4] = {0, 0, 0, 0};
  constexpr bool operator==(const PhiloxCounter&) const = default;
};

struct PhiloxKey {
  std::uint32_t word[2] = {0, 0};
  constexpr bool operator==(const PhiloxKey&) const = default;
};

/// Philox4x32-10: ten rounds of Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as
/// 1, 2, 3" (SC 2011), section 3.3, on one counter block. Integer arithmetic, no state.
FP8LAB_HD constexpr PhiloxCounter philox4x32(PhiloxCounter counter, PhiloxKey key) {
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t product0 = std::uint64_t{0xD2511F53u} * counter.word[0];
    const std::uint64_t product1 = std::uint64_t{0xCD9E8D57u} * counter.word[2];
    const PhiloxCounter next{
        {static_cast<std::uint32_t>(product1 >> 32) ^ counter.word[1] ^ key.word[0],
         static_cast<std::uint32_t>(product1),
         static_cast<std::uint32_t>(product0 >> 32) ^ counter.word[3] ^ key.word[1],
         static_cast<std::uint32_t>(product0)}};
    counter = next;
    key.word[0] += 0x9E3779B9u;
    key.word[1] += 0xBB67AE85u;
  }
  return counter;
}

/// Returns the random bits of elements 4 * block .. 4 * block + 3 of one tensor at one step.
///
/// Key: the low and high halves of `seed`. Counter: word 0 the low half of `block`; word 1 `step`;
/// word 2 `tensor`; word 3 `orientation` (8 bits, 0 or 1) in the top byte, and below it the next 24
/// bits of `block`. Distinct arguments give distinct counters for tensors of up to 2^58 elements.
FP8LAB_HD constexpr PhiloxCounter random_block(std::uint64_t seed, std::uint32_t step,
                                               std::uint32_t tensor, std::uint32_t orientation,
                                               std::uint64_t block) {
  const PhiloxCounter counter{
      {static_cast<std::uint32_t>(block), step, tensor,
       (orientation << 24) | (static_cast<std::uint32_t>(block >> 32) & 0xFFFFFFu)}};
  const PhiloxKey key{{static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32)}};
  return philox4x32(counter, key);
}

/// Returns the 32 random bits of one element: word `element_index` mod 4 of block
/// `element_index` / 4. The index is logical (row * columns + column of the source tensor), so the
/// bits do not depend on threads, tiles or storage order.
FP8LAB_HD constexpr std::uint32_t random_bits(std::uint64_t seed, std::uint32_t step,
                                              std::uint32_t tensor, std::uint32_t orientation,
                                              std::uint64_t element_index) {
  const PhiloxCounter block = random_block(seed, step, tensor, orientation, element_index / 4);
  return block.word[element_index % 4];
}

FP8LAB_NUMERICS_END
