// Operand types of the wgmma instructions in use.
#pragma once

#include <cstdint>
#include <type_traits>

namespace fp8lab::cuda {

/// What the two operands hold; the first letter pair is A's.
enum class WgmmaTypes : std::uint8_t { e4m3_e4m3, e4m3_e5m2, e5m2_e4m3, e5m2_e5m2, bf16, s8 };

/// An element of D: s8 adds up in 32 bits, without rounding while they hold the sum.
template <WgmmaTypes kTypes>
using WgmmaSum = std::conditional_t<kTypes == WgmmaTypes::s8, int, float>;

/// Which extent of A and B is contiguous: K, or rows, which bf16 operands may have.
enum class WgmmaOrders : std::uint8_t { k_k, k_rows, rows_rows };

constexpr bool a_by_rows(WgmmaOrders orders) { return orders == WgmmaOrders::rows_rows; }
constexpr bool b_by_rows(WgmmaOrders orders) { return orders != WgmmaOrders::k_k; }

}  // namespace fp8lab::cuda
