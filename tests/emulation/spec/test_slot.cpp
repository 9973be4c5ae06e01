#include <catch2/catch.hpp>

#include "emulation/spec/slot.hpp"

namespace fp8lab {
namespace {

/// What emulation/specification.md, "Notation" says of an operand.
struct Row {
  Slot slot;
  const char* name;
  Tensor tensor;
  bool is_second;
  GemmRole role;
  bool is_right;
  Slot other_orientation;
  Slot other_operand;
  OperandShape shape;  ///< with 5 tokens, 7 in and 11 out
};

constexpr PerSlot<Row> kRows = {
    Row{Slot::fprop_x,
        "fprop.x",
        Tensor::x,
        false,
        GemmRole::fprop,
        false,
        Slot::wgrad_x,
        Slot::fprop_w,
        {5, 7}},
    Row{Slot::fprop_w,
        "fprop.w",
        Tensor::w,
        false,
        GemmRole::fprop,
        true,
        Slot::dgrad_w,
        Slot::fprop_x,
        {11, 7}},
    Row{Slot::dgrad_dy,
        "dgrad.dy",
        Tensor::dy,
        false,
        GemmRole::dgrad,
        false,
        Slot::wgrad_dy,
        Slot::dgrad_w,
        {5, 11}},
    Row{Slot::dgrad_w,
        "dgrad.w",
        Tensor::w,
        true,
        GemmRole::dgrad,
        true,
        Slot::fprop_w,
        Slot::dgrad_dy,
        {7, 11}},
    Row{Slot::wgrad_dy,
        "wgrad.dy",
        Tensor::dy,
        true,
        GemmRole::wgrad,
        false,
        Slot::dgrad_dy,
        Slot::wgrad_x,
        {11, 5}},
    Row{Slot::wgrad_x,
        "wgrad.x",
        Tensor::x,
        true,
        GemmRole::wgrad,
        true,
        Slot::fprop_x,
        Slot::wgrad_dy,
        {7, 5}},
};

constexpr bool is_of_row(const Row& row) {
  const Slot slot = row.slot;
  const Slot first = row.is_second ? row.other_orientation : slot;
  const Slot second = row.is_second ? slot : row.other_orientation;
  return kRows[slot].slot == slot && tensor_of(slot) == row.tensor &&
         is_weight(slot) == (row.tensor == Tensor::w) &&
         is_second_orientation(slot) == row.is_second && first_orientation(row.tensor) == first &&
         second_orientation(row.tensor) == second &&
         other_orientation(slot) == row.other_orientation && gemm_role(slot) == row.role &&
         is_right(slot) == row.is_right && other_operand(slot) == row.other_operand &&
         (row.is_right ? b_slot(row.role) : a_slot(row.role)) == slot &&
         operand_shape(slot, 5, 7, 11) == row.shape;
}

constexpr bool all_are_of_their_rows() {
  for (const Slot slot : kSlots) {
    if (!is_of_row(kRows[slot])) return false;
  }
  return true;
}
static_assert(all_are_of_their_rows());

}  // namespace

TEST_CASE("operands are named by GEMM and tensor") {
  for (const Slot slot : kSlots) {
    CHECK(slot_name(slot) == kRows[slot].name);
    CHECK(slot_name(slot) ==
          gemm_role_name(kRows[slot].role) + "." + tensor_name(kRows[slot].tensor));
  }
}

TEST_CASE("the operands of a GEMM agree in K, and the two orientations are transposes") {
  for (const Slot slot : kSlots) {
    const OperandShape shape = operand_shape(slot, 5, 7, 11);
    CHECK(operand_shape(other_operand(slot), 5, 7, 11).k == shape.k);
    CHECK(operand_shape(other_orientation(slot), 5, 7, 11) == OperandShape{shape.k, shape.rows});
  }
}

}  // namespace fp8lab
