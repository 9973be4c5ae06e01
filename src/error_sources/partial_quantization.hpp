// A backend on which operands keep only some of the errors that quantization makes.
#pragma once

#include <map>
#include <vector>

#include "emulation/recording/stand_in.hpp"
#include "src/error_sources/switches.hpp"

namespace fp8lab {

/// Quantizes on `original` as a recipe says. Where an operand does not keep every error, the
/// elements with the others take their value before quantization, in their scale's place and with
/// the transform of the recipe, A' instead of A. No format holds such values, so the GEMM of two
/// operands becomes D = (emulated A B^T - exact A B^T) + exact A' B'^T: the accumulator's error is
/// that on the quantized operands. Exact products are those of Accumulator::ideal_exact, each
/// rounded once to FP32; the rest is summed in double precision and rounded once to the type of D.
/// With ideal_exact the first term is left out. Everything else passes as it is, operands without
/// such an element among it. The bits depend on neither threads nor processor.
class PartialQuantization final : public PassThrough {
 public:
  /// `original`, whose memory is the host's, must outlive this. Layers of `switches` are the linear
  /// ones, which random keys identify (Linear). Without storage, operands that only pass on what is
  /// stored have no errors.
  PartialQuantization(Backend& original, Switches switches);

  /// Operands are in memory that is given back together: what they left is forgotten.
  void release_to(std::size_t mark) override;

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
  void pass(const ops::Compensate& op);
  void pass(const ops::QuantizeBoth& op) { pass_parts(op); }
  void pass(const ops::ProduceQuantize& op) { pass_parts(op); }
  void pass(const ops::Product& op) { pass_parts(op); }
  template <class Op>
  void pass_parts(const Op& op) {
    op.for_each_part([&](const auto& part) { this->pass(part); });
  }
  ElementErrors kept(const ops::Quantize& op) const;
  /// A' of an operand: what pass(Quantize) left, or its own values.
  std::vector<float> partial_values(const QuantizedOperand& operand) const;
  /// A (rows_a, k) B (rows_b, k)^T.
  std::vector<float> multiply_exactly(std::vector<float> a, std::int64_t rows_a,
                                      std::vector<float> b, std::int64_t rows_b, std::int64_t k);

  Switches switches_;
  std::map<const QuantizedOperand*, std::vector<float>> partial_;  ///< (rows, k)
};

}  // namespace fp8lab
