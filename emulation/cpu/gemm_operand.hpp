// Operands of the fast GEMM: codes in the plan's carrier format, ready to be packed.
#pragma once

#include <cstdint>
#include <vector>

#include "emulation/cpu/gemm_plan.hpp"
#include "emulation/cpu/simd/gemm_kernels.hpp"

namespace fp8lab::cpu {

/// The form in which element codes enter the multiplier of the fast GEMM.
enum class Carrier : std::uint8_t {
  fp8,   ///< e4m3fn or e5m2 codes, one byte (narrower formats are carried exactly into e4m3fn)
  bf16,  ///< bf16 codes (every format of at most 8 bits is carried exactly)
  f32,   ///< decoded FP32 values: the ideal accumulators
};

/// The codes of one operand carried into the plan's format: the operand's own memory where it
/// already has that format, else a copy. Every carried value is exact.
class CarriedCodes {
 public:
  CarriedCodes(Carrier carrier, const QuantizedOperand& operand,
               const numerics::FormatSpec& format);

  Carrier carrier() const { return carrier_; }
  Fp8Format fp8_format() const { return fp8_format_; }

  /// Packs `length` elements of `row` from k = `begin` on as a left operand, groups `group_bytes`
  /// apart.
  void pack_row(const GemmKernels& kernels, std::int64_t row, std::int64_t begin,
                std::int64_t length, std::byte* out, std::int64_t group_bytes) const;
  /// Packs all of K for the columns (rows of the operand) of one panel from `first` on.
  void pack_panel(const GemmKernels& kernels, std::int64_t first, std::byte* out) const;

 private:
  Carrier carrier_;
  Fp8Format fp8_format_ = Fp8Format::e4m3;
  const void* data_ = nullptr;
  std::int64_t row_stride_ = 0;
  std::int64_t rows_ = 0;
  std::int64_t k_ = 0;
  std::vector<std::byte> copy_;
};

/// An operand in its multiplied_form: the operand itself, or its dequantized values.
class MultipliedOperand {
 public:
  MultipliedOperand(Accumulator accumulator, const QuantizedOperand& operand);
  MultipliedOperand(const MultipliedOperand&) = delete;
  MultipliedOperand& operator=(const MultipliedOperand&) = delete;

  const QuantizedOperand& get() const { return operand_; }

 private:
  QuantizedOperand operand_;
  std::vector<std::byte> values_;
};

/// Sizes of packed operands for one carrier and kernel table.
struct PackedSizes {
  std::int64_t columns = 0;     ///< panel width W
  std::int64_t step_bytes = 0;  ///< of one k of a panel
  std::int64_t group = 0;       ///< products of one group of a left-operand row
  std::int64_t group_bytes = 0;
};
PackedSizes packed_sizes(Carrier carrier, const GemmKernels& kernels);

}  // namespace fp8lab::cpu
