// The values of an operand with only some of the errors of its elements.
#pragma once

#include <cmath>
#include <cstdint>

#include "emulation/numerics/host_device.hpp"
#include "emulation/ops/cost.hpp"
#include "emulation/ops/quantize/operand.hpp"
#include "emulation/ops/tensors.hpp"

namespace fp8lab {

/// The errors of one operand's elements by kind. Each element has at most one, as counted by
/// ops::MeasureOperand. True: the error is kept.
struct ElementErrors {
  bool cast = true;        ///< rounding to the element format, for elements without an error below
  bool underflow = true;   ///< nonzero before, zero after
  bool saturation = true;  ///< above the largest magnitude of its tile, or not finite after

  bool all() const { return cast && underflow && saturation; }
  bool operator==(const ElementErrors&) const = default;
};

/// Index of the kind of an element's error in PartialValues::found.
struct ElementErrorKind {
  static constexpr int kCast = 0;
  static constexpr int kUnderflow = 1;
  static constexpr int kSaturation = 2;
  static constexpr int kCount = 3;
};

/// Returns the kind of error of an element with value `before` quantization and `after` it;
/// `limit` is the largest magnitude in its tile that does not saturate.
FP8LAB_HD inline int element_error_kind(float before, float after, float limit) {
  if (std::fabs(before) > limit || !(std::fabs(after) <= numerics::bits_float(0x7F7FFFFFu))) {
    return ElementErrorKind::kSaturation;
  }
  return before != 0.0f && after == 0.0f ? ElementErrorKind::kUnderflow : ElementErrorKind::kCast;
}

namespace ops {

/// After Quantize of the same source and operand: values (rows, k) f32. An element whose kind of
/// error is in `kept` has the value of the operand, as Dequantize with keeps_space computes it; any
/// other has its value before quantization: that of the source after the operand's transform, if
/// that is linear or a clamp. NaN is canonical. The kinds are those of ElementErrors, with
/// saturation_limit of the element's scale, or the largest FP32 magnitude if tiles have codebooks.
/// found (1, 3) i32, by ElementErrorKind: 1 if an element with this kind of error, kept or not,
/// differs before and after quantization (a NaN differs from every value), else 0. Without `values`
/// only `found` is written.
struct PartialValues {
  static constexpr std::string_view kName = "partial_values";
  static constexpr WorkClass kClass = WorkClass::quantization;

  TensorView source;  ///< (rows, k) or, with `transpose`, (k, rows)
  bool transpose = false;
  const QuantizedOperand& operand;
  ElementErrors kept;
  TensorView values{};
  TensorView found;

  /// Returns true if the values before quantization are not the source's own.
  bool has_transform() const {
    return operand.spec.transform.is_linear() || operand.spec.transform.is<Clamp>();
  }

  template <class Visit>
  void for_each_tensor(const Visit& visit) const {
    visit(reads("source", source));
    visit_read_operand(visit, operand);
    if (!values.empty()) visit(writes("values", values));
    visit(writes("found", found));
  }
  /// Throws Error for shapes and types that do not fit.
  void check() const;
  /// Elements read and written.
  double work() const { return 3.0 * elements(source); }
};

}  // namespace ops
}  // namespace fp8lab
