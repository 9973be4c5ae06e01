// Operands of the fast GEMM: codes in the plan's carrier format, ready to be packed.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "emulation/cpu/simd/gemm_kernels.hpp"
#include "emulation/ops/gemm/gemm_plan.hpp"

namespace fp8lab::cpu {

/// The form in which element codes enter the multiplier of the fast GEMM.
enum class Carrier : std::uint8_t {
  fp8,   ///< e4m3fn or e5m2 codes, one byte (narrower formats are carried exactly into e4m3fn)
  e4m3,  ///< e4m3fn codes of both operands, for ChainKind::e4m3_32
  bf16,  ///< bf16 codes (every format of at most 8 bits is carried exactly)
  wide,  ///< decoded FP32 values with the exponents of their format, and block scales
  f32,   ///< decoded FP32 values: ideal_fp32, and block sums
  f64,   ///< the same as FP64: ideal_exact
};

/// How the fast GEMM evaluates the chains of an accumulator.
struct FastMethod {
  Carrier carrier = Carrier::f32;
  std::int64_t group = 1;  ///< products that are summed at a time
  ChainKind kind{};        ///< unused with Carrier::f32 and f64
  /// mma.sync of sm_90: every 32 products, those with k % 4 < 2 first, form a chain of their own.
  /// `promotion` adds these chains.
  bool mma_sync = false;
  bool f16_promotion = false;  ///< with mma_sync: the sums are FP16 numbers
  bool block_scales = false;   ///< scales of 32 elements enter the chain
  /// If above 0, with Carrier::f32: the number of products that are summed exactly at a time.
  /// Groups add such sums times their scales, see BlockSumTile.
  std::int64_t exact_products = 0;
};

/// Returns the method for an accumulator; empty for parameters that no chain has.
std::optional<FastMethod> fast_method(const Accumulator& accumulator);

/// Returns the method for operands that a plan carries as `format_a` and `format_b`. Prefers chains
/// that `kernels` has for these formats alone.
FastMethod specialise(const FastMethod& method, const GemmPlan& plan, const GemmKernels& kernels);

/// The codes of one operand in the plan's format: the operand's own memory if it already has that
/// form, else a copy. Every carried value is exact.
class CarriedCodes {
 public:
  /// `format` is the plan's format; `operand` must outlive this.
  CarriedCodes(const FastMethod& method, const QuantizedOperand& operand,
               const numerics::FormatSpec& format);

  /// Returns the number of elements along K: that of the operand, for mma.sync padded with
  /// zeros to a multiple of 32.
  std::int64_t k() const { return k_; }

  /// Returns the FP32 values of a row. Precondition: Carrier::f32 or f64.
  const float* values(std::int64_t row) const {
    return static_cast<const float*>(data_) + row * row_stride_;
  }

  /// Packs `length` elements of `row` from k = `begin` on as a left operand, with groups
  /// `group_bytes` apart.
  void pack_row(const GemmKernels& kernels, std::int64_t row, std::int64_t begin,
                std::int64_t length, std::byte* out, std::int64_t group_bytes) const;
  /// Packs all of K for the columns (rows of the operand) of one panel from `first` on.
  void pack_panel(const GemmKernels& kernels, std::int64_t first, std::byte* out) const;

 private:
  void pair_up();
  WideSource wide_source(std::int64_t begin) const;

  FastMethod method_;
  const QuantizedOperand& operand_;
  Fp8Format fp8_format_ = Fp8Format::e4m3;
  int min_exponent_ = 0;
  const void* data_ = nullptr;
  std::int64_t row_stride_ = 0;
  std::int64_t rows_ = 0;
  std::int64_t k_ = 0;
  std::vector<std::byte> copy_;
};

/// Sizes of packed operands for one method and kernel table.
struct PackedSizes {
  std::int64_t columns = 0;     ///< panel width W
  std::int64_t step_bytes = 0;  ///< bytes of one k of a panel
  std::int64_t group = 0;       ///< products of one group of a left-operand row
  std::int64_t group_bytes = 0;
  std::int64_t rows = 0;  ///< rows of a block of packed rows; 0: any number
};
PackedSizes packed_sizes(const FastMethod& method, const GemmKernels& kernels);

}  // namespace fp8lab::cpu
