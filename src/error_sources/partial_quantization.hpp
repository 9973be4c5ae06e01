// A backend whose operands keep only some of the errors of quantization.
#pragma once

#include <array>
#include <map>
#include <vector>

#include "emulation/recording/stand_in.hpp"
#include "src/error_sources/switches.hpp"

namespace fp8lab {

/// Whether an element with this kind of error (ElementErrorKind) occurred.
using FoundErrors = std::array<bool, ElementErrorKind::kCount>;

/// Quantizes on `original` as the recipe requires. If an operand must not keep every error, its
/// elements with the other errors take their value before quantization, at the scale of the operand
/// and after the recipe's transform; call the result A' instead of A (ops::PartialValues). No
/// format represents such values, so the GEMM of two operands becomes D = (emulated A B^T - exact A
/// B^T) + exact A' B'^T: the accumulator's error is that on the quantized operands. Exact products
/// are those of Accumulator::ideal_exact, each rounded once to FP32; the sum of the terms is
/// computed in double precision and rounded once to the type of D (ops::JoinProducts). With
/// ideal_exact the first term is omitted. All other operations are passed through, and so are
/// operands without such elements. The bits do not depend on threads, processor or backend.
///
/// Everything is computed on `original`. After each quantization of an operand that must not keep
/// every error, the host waits for three numbers.
class PartialQuantization final : public PassThrough {
 public:
  /// Precondition: `original` outlives this. The layers of `switches` are the linear layers, which
  /// random keys identify (Linear). Without storage errors, operands that only pass on stored
  /// values have no errors. `records_all`: errors of operands that keep them all are recorded too.
  PartialQuantization(Backend& original, Switches switches, bool records_all = false);

  /// The kinds of errors that occurred in the operands of linear layers, in the order of
  /// Switches::layers: of operands that must not keep every error, or with `records_all` of all.
  const std::vector<PerSlot<FoundErrors>>& found() const { return found_; }

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

  /// Temporary tensors of a GEMM, which the next one overwrites.
  enum class Temporary : std::uint8_t { left, right, partial, exact, emulated };
  static constexpr std::size_t kTemporaries = 5;

  bool is_of_linear_layer(const QuantizedOperand& operand) const;
  ElementErrors kept(const QuantizedOperand& operand) const;
  /// Measures an operand that was just quantized, and computes its values to `values`, which may be
  /// empty. Returns whether they differ from the operand's own.
  bool measure(const ops::Quantize& op, const ElementErrors& kept, const TensorView& values);
  /// Returns memory for the partial values of an operand.
  TensorView memory_for(const QuantizedOperand& operand);
  TensorView temporary(Temporary which, std::int64_t rows, std::int64_t cols);
  /// Returns A' of an operand as an FP32 operand: the values of pass(Quantize), or its own values.
  QuantizedOperand partial_operand(const QuantizedOperand& operand, Temporary memory);
  /// Returns the operand's own values as an FP32 operand.
  QuantizedOperand own_values(const QuantizedOperand& operand, Temporary memory);
  /// Computes alpha * A B^T with exact sums, of FP32 operands.
  TensorView multiply_exactly(const QuantizedOperand& a, const QuantizedOperand& b, float alpha,
                              Temporary memory);

  Switches switches_;
  bool records_all_;
  std::vector<PerSlot<FoundErrors>> found_;
  std::map<const QuantizedOperand*, TensorView> partial_;  ///< (rows, k) f32
  std::vector<TensorView> spare_;                          ///< memory of no operand at present
  std::array<TensorView, kTemporaries> temporaries_{};     ///< one row each
  TensorView flags_{};                                     ///< PartialValues::found
};

}  // namespace fp8lab
