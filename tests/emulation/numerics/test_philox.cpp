#include <catch2/catch.hpp>

#include <cmath>
#include <cstdint>
#include <set>

#include "emulation/numerics/philox.hpp"

using namespace fp8lab::numerics;

namespace {

// Known answers published with Random123 (kat_vectors, philox4x32 10).
static_assert(philox4x32({}, {}) ==
              PhiloxCounter{{0x6627E8D5u, 0xE169C58Du, 0xBC57AC4Cu, 0x9B00DBD8u}});
static_assert(philox4x32({{0xFFFFFFFFu, 0xFFFFFFFFu, 0xFFFFFFFFu, 0xFFFFFFFFu}},
                         {{0xFFFFFFFFu, 0xFFFFFFFFu}}) ==
              PhiloxCounter{{0x408F276Du, 0x41C83B0Eu, 0xA20BC7C6u, 0x6D5451FDu}});
static_assert(philox4x32({{0x243F6A88u, 0x85A308D3u, 0x13198A2Eu, 0x03707344u}},
                         {{0xA4093822u, 0x299F31D0u}}) ==
              PhiloxCounter{{0xD16CFE09u, 0x94FDCCEBu, 0x5001E420u, 0x24126EA1u}});

}  // namespace

TEST_CASE("philox4x32 gives the published answers") {
  CHECK(philox4x32({}, {}).word[0] == 0x6627E8D5u);
  CHECK(philox4x32({{0x243F6A88u, 0x85A308D3u, 0x13198A2Eu, 0x03707344u}},
                   {{0xA4093822u, 0x299F31D0u}})
            .word[3] == 0x24126EA1u);
}

TEST_CASE("random_bits takes four elements from a block, in order") {
  for (std::uint64_t element = 0; element < 40; ++element) {
    const PhiloxCounter block = random_block(7, 8, 9, 1, element / 4);
    CHECK(random_bits(7, 8, 9, 1, element) == block.word[element % 4]);
  }
}

TEST_CASE("key and counter are filled as documented") {
  const std::uint64_t seed = 0x0123456789ABCDEFu;
  const std::uint64_t block = 0x00ABCDEF12345678u;
  CHECK(random_block(seed, 3, 4, 1, block) ==
        philox4x32({{0x12345678u, 3u, 4u, 0x01ABCDEFu}}, {{0x89ABCDEFu, 0x01234567u}}));
}

TEST_CASE("every argument of random_bits matters") {
  std::set<std::uint32_t> values;
  values.insert(random_bits(1, 2, 3, 0, 4));
  values.insert(random_bits(2, 2, 3, 0, 4));
  values.insert(random_bits(1ull << 32 | 1, 2, 3, 0, 4));
  values.insert(random_bits(1, 3, 3, 0, 4));
  values.insert(random_bits(1, 2, 4, 0, 4));
  values.insert(random_bits(1, 2, 3, 1, 4));
  values.insert(random_bits(1, 2, 3, 0, 5));
  values.insert(random_bits(1, 2, 3, 0, 8));
  values.insert(random_bits(1, 2, 3, 0, (1ull << 34) + 4));
  CHECK(values.size() == 9);
}

TEST_CASE("random bits are balanced") {
  // 2^16 draws: each bit is set 32768 times, standard deviation 128; six of them allowed.
  int set[32] = {};
  for (std::uint64_t element = 0; element < 65536; ++element) {
    const std::uint32_t bits = random_bits(42, 0, 0, 0, element);
    for (int bit = 0; bit < 32; ++bit) set[bit] += static_cast<int>(bits >> bit & 1u);
  }
  for (const int count : set) CHECK(std::abs(count - 32768) < 6 * 128);
}
