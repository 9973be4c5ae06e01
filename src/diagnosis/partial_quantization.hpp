// A backend on which operands keep only some of the errors that quantization makes.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "emulation/recording/stand_in.hpp"
#include "emulation/spec/slot.hpp"
#include "src/diagnosis/product_error.hpp"

namespace fp8lab {

/// The errors of one operand's elements, by kind: each element has at most one, as
/// ops::MeasureOperand counts them. True: it is kept.
struct ElementErrors {
  bool cast = true;  ///< rounding to the element format, of the elements that follow none below
  bool underflow = true;   ///< not zero before, zero after
  bool saturation = true;  ///< beyond the largest magnitude of its tile, or not finite after

  bool all() const { return cast && underflow && saturation; }
  bool operator==(const ElementErrors&) const = default;
};

/// Quantizes on `original` as a recipe says. Where an operand does not keep every error, the
/// elements with the others take their value before quantization, in their scale's place and with
/// the transform of the recipe, A' instead of A. No format holds such values, so the GEMM of two
/// operands becomes D = (emulated A B^T - exact A B^T) + exact A' B'^T: the accumulator's error is
/// that on the quantized operands, and the rest is summed in double precision and rounded once to
/// the type of D. With ideal_exact the first term is left out. Everything else passes as it is.
class PartialQuantization final : public PassThrough {
 public:
  /// `original`, whose memory is the host's, must outlive this. `kept` is by linear layer, which
  /// random keys identify (Linear), and slot.
  PartialQuantization(Backend& original, std::vector<PerSlot<ElementErrors>> kept, int threads);

#define FP8LAB_OPERATION(Name) \
  void run(const ops::Name& op) override { pass(op); }
  FP8LAB_FOR_EACH_OPERATION(FP8LAB_OPERATION)
  FP8LAB_FOR_EACH_COMPOSITE(FP8LAB_OPERATION)
#undef FP8LAB_OPERATION

 private:
  template <class Op>
  void pass(const Op& op) {
    original().run(op);
  }
  void pass(const ops::Quantize& op);
  void pass(const ops::Dequantize& op);
  void pass(const ops::Gemm& op);
  void pass(const ops::QuantizeBoth& op) { pass_parts(op); }
  void pass(const ops::ProduceQuantize& op) { pass_parts(op); }
  void pass(const ops::Product& op) { pass_parts(op); }
  template <class Op>
  void pass_parts(const Op& op) {
    op.for_each_part([&](const auto& part) { this->pass(part); });
  }
  /// A' of an operand: what pass(Quantize) left, or its own values.
  std::vector<double> partial_values(const QuantizedOperand& operand) const;

  std::vector<PerSlot<ElementErrors>> kept_;
  ExactProduct exact_;
  std::map<const QuantizedOperand*, std::vector<float>> partial_;  ///< (rows, k)
};

}  // namespace fp8lab
