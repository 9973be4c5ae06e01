#include "emulation/cpu/simd/gemm_kernels.hpp"

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "emulation/cpu/simd/chain_group.hpp"
#include "emulation/cpu/simd/chain_pack.hpp"
#include "emulation/cpu/simd/wide_chain.hpp"
#include "emulation/cpu/simd/wide_pack.hpp"
#include "emulation/numerics/codec.hpp"
#if defined(FP8LAB_ISA_avx512_amx)
#include "emulation/cpu/simd/chain_amx.hpp"
#endif

namespace fp8lab::cpu {
namespace FP8LAB_ISA {
namespace {

using HalfFp8Layout = Layout<Fp8Lanes, 16>;
using Tf32Layout = WideLayout<8>;
using Sm100Layout = WideLayout<32, ChainOutput::f32, -126>;

// --- packing ------------------------------------------------------------------------------------

template <class L>
void pack_fp8_groups(const Fp8Source& source, std::int64_t row, std::int64_t k, std::byte* out,
                     std::int64_t group_bytes) {
  const std::uint8_t* codes = source.data + row * source.row_stride;
  if (source.format == Fp8Format::e4m3) {
    pack_row<SplitE4M3, L, Fp8Codes>(codes, 1, k, out, group_bytes);
  } else {
    pack_row<SplitE5M2, L, Fp8Codes>(codes, 1, k, out, group_bytes);
  }
}

void pack_fp8_row(const Fp8Source* source, std::int64_t row, std::int64_t k, std::int64_t group,
                  std::byte* out, std::int64_t group_bytes) {
  if (group == kFp8Group) return pack_fp8_groups<Fp8Layout>(*source, row, k, out, group_bytes);
  pack_fp8_groups<HalfFp8Layout>(*source, row, k, out, group_bytes);
}

void pack_wide_row(const WideSource* source, std::int64_t row, std::int64_t k, std::int64_t group,
                   std::byte* out, std::int64_t group_bytes) {
  const float* data = source->data + row * source->row_stride;
  const float* scales = source->scales;
  if (scales != nullptr) scales += row / source->scale_rows * source->scale_stride;
  const int least = source->min_exponent;
  switch (group) {
    case 8: return pack_wide_groups<Tf32Layout>(data, scales, least, k, out, group_bytes);
    case 16: return pack_wide_groups<Bf16Layout>(data, scales, least, k, out, group_bytes);
    default: return pack_wide_groups<Sm100Layout>(data, scales, least, k, out, group_bytes);
  }
}

void pack_bf16_row(const Bf16Source* source, std::int64_t row, std::int64_t k, std::byte* out,
                   std::int64_t group_bytes) {
  pack_bf16_groups<Bf16Layout>(source->data + row * source->row_stride, source->k_stride, k, out,
                               group_bytes);
}

void pack_fp8_panel(const Fp8Source* source, std::int64_t first, std::int64_t rows, std::int64_t k,
                    std::byte* out) {
  if (source->format == Fp8Format::e4m3) {
    pack_panel<SplitE4M3, Fp8Layout>(source->data, source->row_stride, 1, first, rows, k, out);
  } else {
    pack_panel<SplitE5M2, Fp8Layout>(source->data, source->row_stride, 1, first, rows, k, out);
  }
}

#if defined(FP8LAB_ISA_avx512_amx)
void pack_e4m3_row(const Fp8Source* source, std::int64_t row, std::int64_t k, std::byte* out,
                   std::int64_t group_bytes) {
  pack_row<SplitE4M3, E4m3Layout, Fp8Codes>(source->data + row * source->row_stride, 1, k, out,
                                            group_bytes);
}

void pack_e4m3_panel(const Fp8Source* source, std::int64_t first, std::int64_t rows, std::int64_t k,
                     std::byte* out) {
  pack_panel<SplitE4M3, E4m3Layout>(source->data, source->row_stride, 1, first, rows, k, out);
}
#endif

void pack_bf16_panel(const Bf16Source* source, std::int64_t first, std::int64_t rows,
                     std::int64_t k, std::byte* out) {
  pack_bf16_steps<Bf16Layout>(*source, first, rows, k, out);
}

void pack_wide_columns(const WideSource* source, std::int64_t first, std::int64_t rows,
                       std::int64_t k, std::int64_t group, std::byte* out) {
  switch (group) {
    case 8: return pack_wide_panel<Tf32Layout>(*source, first, rows, k, out);
    case 16: return pack_wide_panel<Bf16Layout>(*source, first, rows, k, out);
    default: return pack_wide_panel<Sm100Layout>(*source, first, rows, k, out);
  }
}

constexpr std::int64_t kF32Columns = 64;

/// Packs panels of plain numbers, as FP32 or FP64.
template <class Element>
void pack_plain_panel(const F32Source* source, std::int64_t first, std::int64_t rows,
                      std::int64_t k, std::byte* out) {
  auto* panel = reinterpret_cast<Element*>(out);
  for (std::int64_t j = 0; j < kF32Columns; ++j) {
    const float* row = source->data + (first + j) * source->row_stride;
    for (std::int64_t l = 0; l < k; ++l) {
      panel[l * kF32Columns + j] = first + j < rows ? static_cast<Element>(row[l]) : Element{0};
    }
  }
}

// --- chains -------------------------------------------------------------------------------------

template <class L, numerics::GroupModel kModel>
void group_chain(const ChainTile* tile) {
  run_chain<L>(*tile, kModel);
}

template <class L, numerics::GroupModel kModel>
void wide_chain(const ChainTile* tile) {
  run_wide_chain<L>(*tile, kModel);
}

#if defined(FP8LAB_ISA_avx512_amx)
void e4m3_chain(const ChainTile* tile) {
  run_amx_chain<E4m3Layout>(*tile, numerics::kSm90WgmmaFp8F32);
}
#endif

template <class L, int kRows>
void fused_rows(const std::byte* a, std::int64_t a_row_bytes, const typename L::Element* b,
                std::int64_t k, typename L::Element* c, bool from_zero) {
  using Element = typename L::Element;
  constexpr int kVectors = L::kLanes == 1 ? 1 : 4;
  const auto row = [&](int r) { return reinterpret_cast<const Element*>(a + r * a_row_bytes); };
  for (std::int64_t j = 0; j < kF32Columns; j += kVectors * L::kLanes) {
    typename L::Vector y[kRows][kVectors];
    for (int r = 0; r < kRows; ++r) {
      for (int v = 0; v < kVectors; ++v) {
        y[r][v] =
            from_zero ? L::splat(Element{0}) : L::load(c + r * kF32Columns + j + v * L::kLanes);
      }
    }
    for (std::int64_t l = 0; l < k; ++l) {
      for (int r = 0; r < kRows; ++r) {
        const typename L::Vector value = L::splat(row(r)[l]);
        for (int v = 0; v < kVectors; ++v) {
          y[r][v] = L::fused(value, L::load(b + l * kF32Columns + j + v * L::kLanes), y[r][v]);
        }
      }
    }
    for (int r = 0; r < kRows; ++r) {
      for (int v = 0; v < kVectors; ++v) {
        L::store(c + r * kF32Columns + j + v * L::kLanes, y[r][v]);
      }
    }
  }
}

/// Runs chains of fused multiply-adds; for FP32, `c` is that of the tile.
template <class L>
void fused_chain(const ChainTile& tile, typename L::Element* c) {
  const auto* b = reinterpret_cast<const typename L::Element*>(tile.b);
  std::int64_t r = 0;
  for (; r + L::kRows <= tile.rows; r += L::kRows) {
    fused_rows<L, L::kRows>(tile.a + r * tile.a_row_bytes, tile.a_row_bytes, b, tile.k,
                            c + r * kF32Columns, tile.from_zero);
  }
  for (; r < tile.rows; ++r) {
    fused_rows<L, 1>(tile.a + r * tile.a_row_bytes, tile.a_row_bytes, b, tile.k,
                     c + r * kF32Columns, tile.from_zero);
  }
}

void f32_chain(const ChainTile* tile) { fused_chain<F32Lanes>(*tile, tile->c); }
void f64_chain(const ChainTile* tile, double* sums) { fused_chain<F64Lanes>(*tile, sums); }

/// Adds one row of a BlockSumTile. Its terms are exact in FP64, and so is their
/// sum in units of the grid.
void add_block_row(const BlockSumTile& tile, std::int64_t row) {
  constexpr numerics::GroupModel kModel = numerics::kSm100Mxf4nvf4;
  constexpr double kTooLarge = 0x1p128;
  float* c = tile.accumulator + row * kF32Columns;
  const auto power = [](std::int64_t exponent) {
    return numerics::bits_double(static_cast<std::uint64_t>(exponent + 1023) << 52);
  };
  double terms[kBlockSums][kF32Columns];
  std::int64_t emax[kF32Columns];
  for (std::int64_t j = 0; j < kF32Columns; ++j) {
    if (tile.from_zero) c[j] = 0.0f;
    const auto field = static_cast<std::int64_t>(float_bits(c[j]) >> 23 & 0xFFu);
    emax[j] = (field > 1 ? field : 1) - 127;  // zero counts at the floor
  }
  static_assert(kModel.min_exponent == 1 - 127);
  for (std::int64_t i = 0; i < tile.blocks; ++i) {
    const float* sums = tile.sums + (i * tile.rows + row) * kF32Columns;
    const float* scale_b = tile.scale_b + i * tile.scale_b_stride;
    const float scale_a = tile.scale_a[i * tile.scale_a_stride + row];
    const std::int32_t least = tile.scale_exponent;
    const std::int32_t exponent_a = std::max(scale_exponent(scale_a), least);
    for (std::int64_t j = 0; j < kF32Columns; ++j) {
      const double scale = static_cast<double>(scale_a) * static_cast<double>(scale_b[j]);
      terms[i][j] = static_cast<double>(sums[j]) * scale;
      const std::int64_t exponent = exponent_a + std::max(scale_exponent(scale_b[j]), least);
      const bool counts = terms[i][j] != 0.0 && exponent > emax[j];
      emax[j] = counts ? exponent : emax[j];
    }
  }
  for (std::int64_t j = 0; j < kF32Columns; ++j) {
    const double units = power(kModel.fraction_bits - emax[j]);
    double sum = __builtin_trunc(static_cast<double>(c[j]) * units);
    for (std::int64_t i = 0; i < tile.blocks; ++i) sum += __builtin_trunc(terms[i][j] * units);
    const double result = sum * power(emax[j] - kModel.fraction_bits);
    const double infinity = __builtin_copysign(__builtin_inf(), result);
    const double bounded = __builtin_fabs(result) >= kTooLarge ? infinity : result;
    c[j] = static_cast<float>(bounded) + 0.0f;  // -0 becomes +0
  }
}

void add_block_sums(const BlockSumTile* tile) {
  for (std::int64_t r = 0; r < tile->rows; ++r) add_block_row(*tile, r);
}

// --- promotion and epilogue ---------------------------------------------------------------------

/// `columns`: those of the tile; a constant leaves no loop over vectors.
template <bool kFromZero, class Columns>
void promote_rows(const PromotionTile& tile, Columns columns) {
  const float* __restrict sb = tile.scale_b;
  for (std::int64_t r = 0; r < tile.rows; ++r) {
    const float* __restrict p = tile.partial + r * columns;
    float* __restrict acc = tile.accumulator + r * columns;
    const auto before = [acc](std::int64_t j) { return kFromZero ? 0.0f : acc[j]; };
    const float sa = tile.scale_a == nullptr ? 1.0f : tile.scale_a[r];
    switch (tile.order) {
      case numerics::ScaleOrder::automatic:
      case numerics::ScaleOrder::epilogue:
      case numerics::ScaleOrder::in_instruction:
        for (std::int64_t j = 0; j < columns; ++j) acc[j] = before(j) + p[j];
        if (!tile.f16) break;
        for (std::int64_t j = 0; j < columns; j += F16Rounding::kLanes) {
          F16Rounding::round(acc + j, __builtin_inff());
        }
        break;
      case numerics::ScaleOrder::b_then_a:
        for (std::int64_t j = 0; j < columns; ++j) {
          acc[j] = __builtin_fmaf(p[j] * sb[j], sa, before(j));
        }
        break;
      case numerics::ScaleOrder::a_then_b:
        for (std::int64_t j = 0; j < columns; ++j) {
          acc[j] = __builtin_fmaf(p[j] * sa, sb[j], before(j));
        }
        break;
      case numerics::ScaleOrder::product_first:
        for (std::int64_t j = 0; j < columns; ++j) {
          acc[j] = __builtin_fmaf(p[j], sa * sb[j], before(j));
        }
        break;
    }
  }
}

void promote(const PromotionTile* tile) {
  using Usual = std::integral_constant<std::int64_t, Fp8Layout::kColumns>;
  if (tile->columns != Usual::value) {
    return tile->from_zero ? promote_rows<true>(*tile, tile->columns)
                           : promote_rows<false>(*tile, tile->columns);
  }
  tile->from_zero ? promote_rows<true>(*tile, Usual{}) : promote_rows<false>(*tile, Usual{});
}

void scale_row(const EpilogueRow& row) {
  float* v = row.accumulator;
  const float s = row.factor;
  if (row.outer) {
    for (std::int64_t j = 0; j < row.columns; ++j) v[j] = (v[j] * row.scale_a) * row.scale_b[j];
  }
  if (row.split_k && s == 0.0f) {
    for (std::int64_t j = 0; j < row.columns; ++j) v[j] = row.c == nullptr ? 0.0f : row.c[j];
  } else if (row.split_k) {
    for (std::int64_t j = 0; j < row.columns; ++j) v[j] = v[j] * s;
    if (row.c == nullptr) return;
    for (std::int64_t j = 0; j < row.columns; ++j) v[j] = __builtin_fmaf(1.0f, row.c[j], v[j]);
  } else if (row.c == nullptr) {
    for (std::int64_t j = 0; j < row.columns; ++j) v[j] = __builtin_fmaf(v[j], s, 0.0f);
  } else {
    for (std::int64_t j = 0; j < row.columns; ++j) v[j] = __builtin_fmaf(v[j], s, row.c[j]);
  }
}

void finish_row(const EpilogueRow* row) {
  scale_row(*row);
  float* v = row->accumulator;
  if (row->bias != nullptr) {
    for (std::int64_t j = 0; j < row->columns; ++j) v[j] = v[j] + row->bias[j];
  }
  if (row->bf16) {
    auto* out = static_cast<std::uint16_t*>(row->output);
    for (std::int64_t j = 0; j < row->columns; ++j) out[j] = numerics::to_bf16(v[j]);
  } else {
    auto* out = static_cast<float*>(row->output);
    for (std::int64_t j = 0; j < row->columns; ++j) {
      const std::uint32_t bits = float_bits(v[j]);
      const bool nan = (bits & 0x7FFFFFFFu) > numerics::kF32Infinity;
      out[j] = bits_float(nan ? numerics::kF32NaN : bits);
    }
  }
}

}  // namespace

extern const GemmKernels kGemm;
const GemmKernels kGemm = {
    .fp8_columns = Fp8Layout::kColumns,
    .bf16_columns = Bf16Layout::kColumns,
    .f32_columns = kF32Columns,
    .pack_fp8_row = pack_fp8_row,
    .pack_bf16_row = pack_bf16_row,
    .pack_wide_row = pack_wide_row,
    .pack_fp8_panel = pack_fp8_panel,
    .pack_bf16_panel = pack_bf16_panel,
    .pack_wide_panel = pack_wide_columns,
    .pack_f32_panel = pack_plain_panel<float>,
    .pack_f64_panel = pack_plain_panel<double>,
#if defined(FP8LAB_ISA_avx512_amx)
    .has_e4m3 = true,
    .pack_e4m3_row = pack_e4m3_row,
    .pack_e4m3_panel = pack_e4m3_panel,
#else
    .has_e4m3 = false,
    .pack_e4m3_row = nullptr,
    .pack_e4m3_panel = nullptr,
#endif
    .chains =
        {
            group_chain<Fp8Layout, numerics::kSm90WgmmaFp8F32>,
            group_chain<Layout<Fp8Lanes, 32, ChainOutput::f16>, numerics::kSm90WgmmaFp8F16>,
            group_chain<HalfFp8Layout, numerics::kSm89MmaFp8F32>,
            group_chain<Layout<Fp8Lanes, 16, ChainOutput::f16>, numerics::kSm89MmaFp8F16>,
            wide_chain<Bf16Layout, numerics::kSm90Bf16F32>,
            wide_chain<WideLayout<16, ChainOutput::f16>, numerics::kSm90Fp16F16>,
            wide_chain<Tf32Layout, numerics::kSm90Tf32F32>,
            wide_chain<Sm100Layout, numerics::kSm100Mxf8f6f4>,
#if defined(FP8LAB_ISA_avx512_amx)
            e4m3_chain,
#else
            nullptr,
#endif
        },
    .f32_chain = f32_chain,
    .f64_chain = f64_chain,
    .add_block_sums = add_block_sums,
    .promote = promote,
    .finish_row = finish_row,
};

}  // namespace FP8LAB_ISA
}  // namespace fp8lab::cpu
