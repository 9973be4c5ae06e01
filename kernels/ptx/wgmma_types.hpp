// Operand types of the wgmma instructions in use.
#pragma once

#include <cstdint>
#include <type_traits>

namespace fp8lab::cuda {

/// Formats of the two operands, A's first.
enum class WgmmaTypes : std::uint8_t { e4m3_e4m3, e4m3_e5m2, e5m2_e4m3, e5m2_e5m2, bf16, s8 };

/// Type of an element of D. s8 accumulates in 32 bits, exactly as long as they can hold the sum.
template <WgmmaTypes kTypes>
using WgmmaSum = std::conditional_t<kTypes == WgmmaTypes::s8, int, float>;

/// The contiguous extent of A and of B: K, or rows, which only bf16 operands support.
enum class WgmmaOrders : std::uint8_t { k_k, k_rows, rows_rows };

constexpr bool a_by_rows(WgmmaOrders orders) { return orders == WgmmaOrders::rows_rows; }
constexpr bool b_by_rows(WgmmaOrders orders) { return orders != WgmmaOrders::k_k; }

}  // namespace fp8lab::cuda
