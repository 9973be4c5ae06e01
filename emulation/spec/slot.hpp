// The six operands of a linear layer: their tensors, orientations and GEMMs.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace fp8lab {

/// The tensors that the GEMMs of a layer y = x W^T multiply: x (tokens, in), w (out, in) and
/// dy (tokens, out).
enum class Tensor : std::uint8_t { x, w, dy };

/// The three GEMMs of a linear layer (specification.md, "Notation").
enum class GemmRole : std::uint8_t { fprop, dgrad, wgrad };

/// The six operands, GEMM by GEMM, A before B of each product A B^T.
enum class Slot : std::uint8_t { fprop_x, fprop_w, dgrad_dy, dgrad_w, wgrad_dy, wgrad_x };

inline constexpr std::array<Tensor, 3> kTensors = {Tensor::x, Tensor::w, Tensor::dy};
inline constexpr std::array<GemmRole, 3> kGemmRoles = {GemmRole::fprop, GemmRole::dgrad,
                                                       GemmRole::wgrad};
inline constexpr std::array<Slot, 6> kSlots = {Slot::fprop_x, Slot::fprop_w,  Slot::dgrad_dy,
                                               Slot::dgrad_w, Slot::wgrad_dy, Slot::wgrad_x};

/// A value for each tensor, GEMM or operand, indexed by that key.
template <class Key, class T, std::size_t kCount>
struct KeyedArray : std::array<T, kCount> {
  constexpr T& operator[](Key key) { return this->begin()[static_cast<std::size_t>(key)]; }
  constexpr const T& operator[](Key key) const {
    return this->begin()[static_cast<std::size_t>(key)];
  }
};
template <class T>
using PerTensor = KeyedArray<Tensor, T, kTensors.size()>;
template <class T>
using PerGemm = KeyedArray<GemmRole, T, kGemmRoles.size()>;
template <class T>
using PerSlot = KeyedArray<Slot, T, kSlots.size()>;

/// Return the two operands of a GEMM: A (M, K) and B (N, K).
constexpr Slot a_slot(GemmRole role) { return kSlots[2 * static_cast<std::size_t>(role)]; }
constexpr Slot b_slot(GemmRole role) { return kSlots[2 * static_cast<std::size_t>(role) + 1]; }

/// Returns the GEMM that the slot is an operand of.
constexpr GemmRole gemm_role(Slot slot) { return kGemmRoles[static_cast<std::size_t>(slot) / 2]; }
/// Returns whether the slot is operand B of its GEMM.
constexpr bool is_right(Slot slot) { return slot == b_slot(gemm_role(slot)); }
/// Returns the slot that this slot is multiplied with.
constexpr Slot other_operand(Slot slot) {
  return is_right(slot) ? a_slot(gemm_role(slot)) : b_slot(gemm_role(slot));
}

/// Returns true for the operands of fprop, x and w, whose gradients the other two GEMMs compute.
constexpr bool is_of_forward_pass(Slot slot) { return gemm_role(slot) == GemmRole::fprop; }
/// Returns the operand of fprop whose gradient the GEMM computes: x for dgrad, w for wgrad.
constexpr Slot slot_of_gradient(GemmRole role) {
  return role == GemmRole::dgrad ? Slot::fprop_x : Slot::fprop_w;
}
/// Returns the GEMM that computes the gradient of an operand of fprop.
constexpr GemmRole gradient_role(Slot slot) {
  return slot == Slot::fprop_x ? GemmRole::dgrad : GemmRole::wgrad;
}

/// Return the operand that is the tensor as stored, and the one that is its transpose.
constexpr Slot first_orientation(Tensor tensor) {
  constexpr PerTensor<Slot> kFirst = {Slot::fprop_x, Slot::fprop_w, Slot::dgrad_dy};
  return kFirst[tensor];
}
constexpr Slot second_orientation(Tensor tensor) {
  constexpr PerTensor<Slot> kSecond = {Slot::wgrad_x, Slot::dgrad_w, Slot::wgrad_dy};
  return kSecond[tensor];
}

constexpr Tensor tensor_of(Slot slot) {
  for (const Tensor tensor : {Tensor::x, Tensor::w}) {
    if (slot == first_orientation(tensor) || slot == second_orientation(tensor)) return tensor;
  }
  return Tensor::dy;
}
constexpr bool is_second_orientation(Slot slot) {
  return slot == second_orientation(tensor_of(slot));
}
constexpr bool is_weight(Slot slot) { return tensor_of(slot) == Tensor::w; }
/// Returns the slot of the same tensor in the other orientation.
constexpr Slot other_orientation(Slot slot) {
  return is_second_orientation(slot) ? first_orientation(tensor_of(slot))
                                     : second_orientation(tensor_of(slot));
}

/// Rows of an operand, and the elements of each row, over which its GEMM sums.
struct OperandShape {
  std::int64_t rows = 0;
  std::int64_t k = 0;
  constexpr bool operator==(const OperandShape&) const = default;
};

/// Returns the shape of an operand of a layer y (tokens, out) = x (tokens, in) W^T.
constexpr OperandShape operand_shape(Slot slot, std::int64_t tokens, std::int64_t in,
                                     std::int64_t out) {
  const Tensor tensor = tensor_of(slot);
  const std::int64_t rows = tensor == Tensor::w ? out : tokens;
  const std::int64_t cols = tensor == Tensor::dy ? out : in;
  return is_second_orientation(slot) ? OperandShape{cols, rows} : OperandShape{rows, cols};
}

/// Return "x", "fprop" and "fprop.x".
std::string tensor_name(Tensor tensor);
std::string gemm_role_name(GemmRole role);
std::string slot_name(Slot slot);
/// Inverse of tensor_name.
std::optional<Tensor> tensor_from_name(std::string_view name);

}  // namespace fp8lab
