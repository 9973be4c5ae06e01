// Kernels of the emulated GEMM: one table per instruction set, all with the same bits.
//
// A chain of fused groups (specification.md, "The group") is evaluated with the columns of the
// right operand in vector lanes. Per group and output, pass 1 finds the common exponent emax from
// byte or word sums of stored exponents. Pass 2 adds the exact products with a floating-point
// multiply-add that rounds toward zero onto a positive accumulator Y whose unit in the last place
// is the group's grid 2^(emax - F): Y starts at 1.5 * 2^23 (2^52) units, so every addition floors
// one term onto the grid and the sum itself is exact. A negative term off the grid was floored one
// unit too far.
//
// FP8 with 13 fraction bits uses FP32 lanes and byte exponents. Pass 2 counts those terms by
// comparing exponents of lowest set bits, and adds the count back.
//
// With 25 fraction bits every format ("wide") uses FP64 lanes. Left operands and accumulators
// are multiplied by 1 + 2^-30. A product of two significands of at most 11 bits, or an
// accumulator of 24, is a multiple of a unit that is larger than the amount this adds, and so is
// the grid. A positive term is therefore floored as before, and every negative one, on the grid
// or off, one unit too far. The kernels add back the number of negative terms, which the signs
// alone give. Zeros are packed as 2^-400, which is floored to 0, or to one unit too few and
// counted. Exponents are added in bytes, two products in 16 bits. All exponents e <= 61 fit,
// because sums below the floor saturate; larger ones are packed as NaN, and their lanes are
// recomputed. Accumulators stay in FP64 between groups. Block scales that are powers of two are
// multiplied into the packed values.
//
// With AMX, the largest exponents of E4M3 products come from sums of products of powers of two
// instead (Fp8Codes::power), for several groups at a time, and across chains if these are short.
//
// Precondition of the chain functions: the rounding mode is toward zero
// (TowardZero), and the caller runs no other floating-point arithmetic meanwhile.
// All other kernels need round to nearest.
#pragma once

#include <cfenv>
#include <cstddef>
#include <cstdint>

#include "emulation/numerics/schedule.hpp"

namespace fp8lab::cpu {

/// The 8-bit format of a code.
enum class Fp8Format : std::int32_t { e4m3, e5m2 };

/// Products of one group.
inline constexpr std::int64_t kFp8Group = 32;
inline constexpr std::int64_t kBf16Group = 16;

/// Bytes of one element of a left-operand row: value, exponent, lowest bit, each broadcast to 32
/// bits or more.
inline constexpr std::int64_t kFp8ProductBytes = 4 + 4 + 4;
/// The same for E4M3 operands of ChainKind::e4m3_32: value, lowest bit, power.
inline constexpr std::int64_t kE4m3ProductBytes = 4 + 4 + 2;
inline constexpr std::int64_t kE4m3PanelBytes = 4 + 1 + 2;

/// Bytes per column and k of a packed right-operand panel: value, exponent, lowest bit.
inline constexpr std::int64_t kFp8PanelBytes = 4 + 1 + 1;

/// Wide operands: bytes of one group of a left-operand row and, per column, of a right-operand
/// panel: values, exponents (left twice in a row), and words of 16 bits, twice in a row, with the
/// signs of up to 16 elements.
constexpr std::int64_t wide_group_bytes(std::int64_t group) { return group * (8 + 2) + 8; }
constexpr std::int64_t wide_panel_bytes(std::int64_t group) {
  return group * (8 + 1) + (group + 15) / 16 * 2;
}

/// A source matrix: element (i, l), l along K, is data[i * row_stride + l * k_stride].
struct Fp8Source {
  const std::uint8_t* data;
  std::int64_t row_stride;
  Fp8Format format;  ///< K is contiguous
};
struct Bf16Source {
  const std::uint16_t* data;
  std::int64_t row_stride, k_stride;
};
struct F32Source {
  const float* data;
  std::int64_t row_stride;  ///< K is contiguous
};
/// FP32 values of a narrow format. Values below 2^min_exponent are its
/// subnormals and not normalised.
struct WideSource {
  const float* data;
  std::int64_t row_stride;  ///< K is contiguous
  int min_exponent;         ///< of the format: its subnormals count at this exponent
  const float* scales;      ///< one for 32 elements, powers of two or NaN; nullptr: none
  std::int64_t scale_stride,
      scale_rows;  ///< scales of row i begin at i / scale_rows * scale_stride
};

/// Maximum number of rows of a tile of ChainKind::e4m3_32.
inline constexpr std::int64_t kE4m3Rows = 48;

/// The largest exponents of products that one chain of ChainKind::e4m3_32 finds for itself and
/// for the chains after it, because AMX takes long to wake up. Belongs to one thread, which
/// keeps it from chain to chain.
struct ExponentsAhead {
  static constexpr std::int64_t kGroups = 8;
  static constexpr std::int64_t kGroupBytes = kE4m3Rows * 64;  ///< a byte for each output
  std::int64_t found = 0, used = 0;                            ///< groups
  alignas(64) std::byte codes[kGroups * kGroupBytes];
};

/// One tile of chains. c (rows, W), contiguous, is the accumulator in and
/// out; W is the panel width.
struct ChainTile {
  const std::byte* a;          ///< packed rows (f32: rows of floats, f64: of doubles)
  std::int64_t a_row_bytes;    ///< distance of rows
  std::int64_t a_group_bytes;  ///< distance of groups of one row (f32: unused)
  std::int64_t rows;
  const std::byte* b;  ///< packed panel, at the first k of the chain
  std::int64_t k;      ///< length of the chain
  float* c;
  bool from_zero;  ///< c is taken as +0 and need not be initialised
  /// Accumulators before the chain for columns [first_column, last_column), from first_column on;
  /// read only to recompute lanes that met infinities, NaN or overflow. Unused with from_zero.
  /// Lanes outside these columns are not recomputed.
  const float* start;
  std::int64_t start_stride;
  std::int64_t first_column, last_column;
  /// e4m3_32 only. Precondition: the next calls with the same `ahead`, up to `k_behind` products in
  /// whole groups, are for the chains after this one in the same packed rows and panel.
  ExponentsAhead* ahead;
  std::int64_t k_behind;
};

/// Chains by packing, products of a group and, if it is FP16, accumulator.
enum class ChainKind : std::int32_t {
  fp8_32,       ///< numerics::kSm90WgmmaFp8F32
  fp8_32_f16,   ///< numerics::kSm90WgmmaFp8F16
  fp8_16,       ///< numerics::kSm89MmaFp8F32
  fp8_16_f16,   ///< numerics::kSm89MmaFp8F16
  wide_16,      ///< numerics::kSm90Bf16F32 and kSm90Fp16F32
  wide_16_f16,  ///< numerics::kSm90Fp16F16
  wide_8,       ///< numerics::kSm90Tf32F32
  wide_32,      ///< numerics::kSm100Mxf8f6f4 and kSm100F8f6f4F32
  e4m3_32,      ///< fp8_32 of two E4M3 operands
};
inline constexpr int kChainKinds = 9;

/// Exact sums of up to kBlockSums neighbouring blocks of products. A group adds each as one term:
/// numerics::scaled_group with exact_products (numerics::kSm100Mxf4nvf4).
struct BlockSumTile {
  std::int64_t blocks, rows, columns;
  const float* sums;     ///< (blocks, rows, columns)
  const float* scale_a;  ///< (blocks, rows), blocks scale_a_stride apart
  const float* scale_b;  ///< (blocks, columns), blocks scale_b_stride apart
  std::int64_t scale_a_stride, scale_b_stride;
  int scale_exponent;  ///< smallest exponent of a scale: its subnormals count there
  float* accumulator;  ///< (rows, columns), in and out
  bool from_zero;      ///< the accumulator is taken as +0 and need not be initialised
};
inline constexpr std::int64_t kBlockSums = 4;

/// Arguments of promote(): combines acc[r][j] and p[r][j] by numerics::ScaleOrder with scale_a[r]
/// and scale_b[j]. All tiles (rows, columns) are contiguous.
struct PromotionTile {
  numerics::ScaleOrder order;
  bool f16;  ///< acc + p of FP16 numbers, rounded to FP16, without scales
  std::int64_t rows, columns;
  const float* partial;
  float* accumulator;
  const float* scale_a;    ///< one per row; unused if the order has no scales
  const float* scale_b;    ///< one per column; likewise
  bool from_zero = false;  ///< the accumulator is taken as +0 and need not be initialised
};

/// Arguments of finish_row(): the epilogue of one row (specification.md, "Epilogue and split K"),
/// numerics::finish_element for each column.
struct EpilogueRow {
  float* accumulator;  ///< overwritten
  std::int64_t columns;
  bool outer;  ///< acc = (acc * scale_a) * scale_b[j] first
  float scale_a;
  const float* scale_b;
  float factor;  ///< s
  bool split_k;
  const float* c;     ///< nullptr: beta = 0
  const float* bias;  ///< widened; nullptr: none
  void* output;       ///< bf16 or f32
  bool bf16;
};

struct GemmKernels {
  std::int64_t fp8_columns, bf16_columns, f32_columns;  ///< panel widths W

  /// Left operand: packs ceil(k / group) groups of a row, `group_bytes` apart. BF16 and wide: zeros
  /// follow the elements of a short last group; FP8: the bytes that follow are undefined. Groups:
  /// FP8 16 or 32 products, BF16 16, wide 8, 16 or 32.
  void (*pack_fp8_row)(const Fp8Source* source, std::int64_t row, std::int64_t k,
                       std::int64_t group, std::byte* out, std::int64_t group_bytes);
  void (*pack_bf16_row)(const Bf16Source* source, std::int64_t row, std::int64_t k, std::byte* out,
                        std::int64_t group_bytes);
  void (*pack_wide_row)(const WideSource* source, std::int64_t row, std::int64_t k,
                        std::int64_t group, std::byte* out, std::int64_t group_bytes);
  /// Right operand: packs W columns from `first` on (those at and beyond `rows` become zeros): k
  /// entries of W * kFp8PanelBytes (f32: W floats, f64: W doubles), or ceil(k / group) groups of
  /// W * wide_panel_bytes(group), the last one padded with zeros.
  void (*pack_fp8_panel)(const Fp8Source* source, std::int64_t first, std::int64_t rows,
                         std::int64_t k, std::byte* out);
  void (*pack_bf16_panel)(const Bf16Source* source, std::int64_t first, std::int64_t rows,
                          std::int64_t k, std::byte* out);
  void (*pack_wide_panel)(const WideSource* source, std::int64_t first, std::int64_t rows,
                          std::int64_t k, std::int64_t group, std::byte* out);
  void (*pack_f32_panel)(const F32Source* source, std::int64_t first, std::int64_t rows,
                         std::int64_t k, std::byte* out);
  void (*pack_f64_panel)(const F32Source* source, std::int64_t first, std::int64_t rows,
                         std::int64_t k, std::byte* out);

  /// With AMX (otherwise has_e4m3 is false): packs operands of ChainKind::e4m3_32. Its tiles
  /// have up to kE4m3Rows rows, and memory for that many. Rows have zeros after K, panels
  /// memory for whole groups.
  bool has_e4m3;
  void (*pack_e4m3_row)(const Fp8Source* source, std::int64_t row, std::int64_t k, std::byte* out,
                        std::int64_t group_bytes);
  void (*pack_e4m3_panel)(const Fp8Source* source, std::int64_t first, std::int64_t rows,
                          std::int64_t k, std::byte* out);

  void (*chains[kChainKinds])(const ChainTile* tile);  ///< by ChainKind
  /// Computes FP32 fused multiply-adds in ascending k, rounded to nearest; not under TowardZero.
  void (*f32_chain)(const ChainTile* tile);
  /// As f32_chain, in FP64 on doubles that are FP32 values; writes `sums` (rows,
  /// f32_columns) instead of c.
  void (*f64_chain)(const ChainTile* tile, double* sums);
  void (*add_block_sums)(const BlockSumTile* tile);  ///< columns = f32_columns; under TowardZero
  void (*promote)(const PromotionTile* tile);
  void (*finish_row)(const EpilogueRow* row);

  void chain(ChainKind kind, const ChainTile& tile) const { chains[static_cast<int>(kind)](&tile); }
};

/// Returns the table of active_target().
const GemmKernels& gemm_kernels();

/// Sets rounding toward zero on this thread during its lifetime.
class TowardZero {
 public:
  TowardZero() : previous_(std::fegetround()) { std::fesetround(FE_TOWARDZERO); }
  ~TowardZero() { std::fesetround(previous_); }
  TowardZero(const TowardZero&) = delete;
  TowardZero& operator=(const TowardZero&) = delete;

 private:
  int previous_;
};

}  // namespace fp8lab::cpu
