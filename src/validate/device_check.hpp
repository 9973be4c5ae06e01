// Compares a device pack with the profiles of the specification, and names what differs.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "emulation/spec/tensor_core.hpp"
#include "src/validate/device_pack.hpp"

namespace fp8lab {

/// Returns the profile that the specification has for an instruction of a card; null if none.
const TensorCoreProfile* expected_profile(const DeviceFacts& facts, const DeviceProducts& products);

/// Returns the cards of a compute capability whose results are recorded: "H100, H200"; empty: none.
std::string_view recorded_cards(int major, int minor);

/// Returns D of `products` as an accumulator computes it: a chain of groups from C, or promoted
/// sums. NaN is canonical.
std::vector<std::uint32_t> emulated_products(const DeviceProducts& products,
                                             const Accumulator& accumulator);

/// Result of one comparison.
struct DeviceFinding {
  std::string what;           ///< label of the products or conversions
  std::string expected;       ///< "sm90_bf16 (measured)"; empty: the specification has none
  std::uint64_t results = 0;  ///< compared ones
  std::uint64_t different = 0;
  std::uint64_t unchecked = 0;  ///< results without a profile
  /// What the card does instead, or what is known without a profile: "fraction_bits 14 instead of
  /// 13", "the bits of sm89_mma_fp8". Empty if nothing differs.
  std::string deviation;
  std::string first;  ///< the first difference: place, expected and found bits
};

/// Compares all of a pack, in its order. Of results that differ, the search goes through the
/// profiles, then through changes of one and of two parameters (fraction bits, group, kept mantissa
/// bits, rounding, alignment, floor) and other intervals of promotion; a deviation that none of
/// them explains is said to be unknown, with the number of results that are equal.
std::vector<DeviceFinding> check_device_pack(const DevicePack& pack);

}  // namespace fp8lab
