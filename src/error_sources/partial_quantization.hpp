// A backend whose operands keep only some of the errors of quantization.
#pragma once

#include <map>
#include <vector>

#include "emulation/recording/stand_in.hpp"
#include "src/error_sources/switches.hpp"

namespace fp8lab {

/// Quantizes on `original` as the recipe requires. If an operand must not keep every error, its
/// elements with the other errors take their value before quantization, at the scale of the operand
/// and after the recipe's transform; call the result A' instead of A. No format represents such
/// values, so the GEMM of two operands becomes D = (emulated A B^T - exact A B^T) + exact A' B'^T:
/// the accumulator's error is that on the quantized operands. Exact products are those of
/// Accumulator::ideal_exact, each rounded once to FP32; the sum of the terms is computed in double
/// precision and rounded once to the type of D. With ideal_exact the first term is omitted. All
/// other operations are passed through, and so are operands without such elements. The bits do not
/// depend on threads, processor or backend. A device quantizes and multiplies, also exactly; the
/// host, with the backend `host`, mixes elements and adds the terms.
class PartialQuantization final : public PassThrough {
 public:
  /// Precondition: `original` and `host` outlive this, and `host`, which may be `original`,
  /// computes in host memory. The layers of `switches` are the linear layers, which random keys
  /// identify (Linear). Without storage errors, operands that only pass on stored values have no
  /// errors.
  PartialQuantization(Backend& original, Backend& host, Switches switches);

  /// Discards the partial values of all operands, since their memory is released together.
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
  /// Returns A' of an operand: the values recorded by pass(Quantize), or the operand's own values.
  std::vector<float> partial_values(const QuantizedOperand& operand);
  std::vector<float> values_on_host(const QuantizedOperand& operand);
  /// Returns A B^T of the recipe in FP32, without bias and without the former D.
  std::vector<float> emulated_product(const ops::Gemm& op);
  /// Writes values in host memory to a tensor of `original`, rounded to its type.
  void write(const TensorView& values, const TensorView& destination);
  /// Returns alpha * A (rows_a, k) B (rows_b, k)^T.
  std::vector<float> multiply_exactly(std::vector<float> a, std::int64_t rows_a,
                                      std::vector<float> b, std::int64_t rows_b, std::int64_t k,
                                      float alpha);

  Backend& host_;
  Switches switches_;
  std::map<const QuantizedOperand*, std::vector<float>> partial_;  ///< (rows, k)
};

}  // namespace fp8lab
