#include "emulation/cpu/gemm/gemm_operand.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "emulation/base/error.hpp"
#include "emulation/numerics/codec.hpp"
#include "emulation/spec/tensor_core.hpp"

namespace fp8lab::cpu {
namespace {

using numerics::FormatSpec;

// Returns the carrier code of each code of an 8-bit format.
template <class Code>
std::array<Code, 256> carrier_table(const FormatSpec& from, const FormatSpec& to) {
  std::array<Code, 256> table{};
  for (std::uint32_t code = 0; code < 256; ++code) {
    const std::uint32_t bits = numerics::decode_bits(from, code);
    table[code] = static_cast<Code>(
        numerics::encode(to, bits, numerics::Rounding::nearest, numerics::Overflow::special));
  }
  return table;
}

template <class Code>
std::vector<std::byte> convert(const QuantizedOperand& operand, const FormatSpec& to) {
  std::vector<std::byte> bytes(static_cast<std::size_t>(operand.rows * operand.k) * sizeof(Code));
  auto* out = reinterpret_cast<Code*>(bytes.data());
  const bool narrow = operand.codes.dtype == DType::u8;
  const auto table =
      narrow ? carrier_table<Code>(operand.spec.format, to) : std::array<Code, 256>{};
#pragma omp parallel for schedule(static)
  for (std::int64_t r = 0; r < operand.rows; ++r) {
    Code* row = out + r * operand.k;
    if (narrow) {
      const auto* codes = operand.codes.row<const std::uint8_t>(r);
      for (std::int64_t k = 0; k < operand.k; ++k) row[k] = table[codes[k]];
    } else if constexpr (sizeof(Code) == 4) {  // bf16 to FP32
      const auto* codes = operand.codes.row<const std::uint16_t>(r);
      for (std::int64_t k = 0; k < operand.k; ++k) row[k] = std::uint32_t{codes[k]} << 16;
    }
  }
  return bytes;
}

/// A group model that a kernel implements.
struct FastGroup {
  numerics::GroupModel model;
  Carrier carrier;
  ChainKind kind;
};
constexpr FastGroup kFastGroups[] = {
    {numerics::kSm90WgmmaFp8F32, Carrier::fp8, ChainKind::fp8_32},
    {numerics::kSm90WgmmaFp8F16, Carrier::fp8, ChainKind::fp8_32_f16},
    {numerics::kSm89MmaFp8F32, Carrier::fp8, ChainKind::fp8_16},
    {numerics::kSm89MmaFp8F16, Carrier::fp8, ChainKind::fp8_16_f16},
    {numerics::kSm90Fp16F32, Carrier::wide, ChainKind::wide_16},
    {numerics::kSm90Fp16F16, Carrier::wide, ChainKind::wide_16_f16},
    {numerics::kSm90Tf32F32, Carrier::wide, ChainKind::wide_8},
    {numerics::kSm100F8f6f4F32, Carrier::wide, ChainKind::wide_32},
    {numerics::kSm100Mxf8f6f4, Carrier::wide, ChainKind::wide_32},
};
constexpr std::int64_t kMmaSyncProducts = 32;

}  // namespace

std::optional<FastMethod> fast_method(const Accumulator& accumulator) {
  if (accumulator.unit == numerics::ChainUnit::ideal_fp32) return FastMethod{Carrier::f32};
  if (accumulator.unit == numerics::ChainUnit::ideal_exact) return FastMethod{Carrier::f64};
  if (accumulator.group == numerics::kSm100Mxf4nvf4) {
    FastMethod method;
    method.exact_products = accumulator.group.exact_products;
    return method;
  }
  for (const FastGroup& fast : kFastGroups) {
    if (fast.model != accumulator.group) continue;
    if (fast.carrier == Carrier::fp8 && accumulator.operand != numerics::kE4M3) continue;
    FastMethod method{fast.carrier, fast.model.products, fast.kind};
    if (accumulator.operand == numerics::kBF16) method.carrier = Carrier::bf16;
    method.block_scales = accumulator.group.block_scales;
    method.mma_sync = accumulator.unit == numerics::ChainUnit::mma_sync_fp8;
    if (fast.model.output == numerics::OutputKind::f16_nearest) {
      method.f16_promotion = true;
    }
    return method;
  }
  return std::nullopt;
}

FastMethod specialise(const FastMethod& method, const GemmPlan& plan, const GemmKernels& kernels) {
  FastMethod special = method;
  const bool e4m3 = plan.format_a == numerics::kE4M3 && plan.format_b == numerics::kE4M3;
  if (method.carrier == Carrier::fp8 && method.kind == ChainKind::fp8_32 && e4m3 &&
      kernels.has_e4m3) {
    special.carrier = Carrier::e4m3;
    special.kind = ChainKind::e4m3_32;
  }
  return special;
}

CarriedCodes::CarriedCodes(const FastMethod& method, const QuantizedOperand& operand,
                           const FormatSpec& format)
    : method_(method),
      operand_(operand),
      fp8_format_(format == numerics::kE5M2 ? Fp8Format::e5m2 : Fp8Format::e4m3),
      min_exponent_(method.mma_sync ? numerics::kFP16.min_exponent() : format.min_exponent()),
      data_(operand.codes.data),
      row_stride_(operand.codes.row_stride),
      rows_(operand.rows),
      k_(operand.k) {
  const DType stored = operand.codes.dtype;
  switch (method.carrier) {
    case Carrier::fp8:
    case Carrier::e4m3:
      if (operand.spec.format == format) return;
      copy_ = convert<std::uint8_t>(operand, format);
      break;
    case Carrier::bf16:
      if (stored == DType::bf16) return;
      copy_ = convert<std::uint16_t>(operand, format);
      break;
    case Carrier::wide:
    case Carrier::f32:
    case Carrier::f64:
      if (stored == DType::f32 && !method.mma_sync) return;
      copy_ = convert<std::uint32_t>(operand, numerics::kFP32);
      break;
  }
  if (method.mma_sync) pair_up();
  data_ = copy_.data();
  row_stride_ = k_;
}

// Reorders the copied floats as mma.sync sums them.
void CarriedCodes::pair_up() {
  const std::int64_t steps = (k_ + kMmaSyncProducts - 1) / kMmaSyncProducts;
  const std::int64_t k = steps * kMmaSyncProducts;
  std::vector<std::byte> paired(static_cast<std::size_t>(rows_ * k) * sizeof(float));
  const auto* from = reinterpret_cast<const float*>(copy_.data());
  auto* to = reinterpret_cast<float*>(paired.data());
  for (std::int64_t r = 0; r < rows_; ++r) {
    for (std::int64_t i = 0; i < k_; ++i) {
      const std::int64_t l = i % kMmaSyncProducts;
      const std::int64_t half = l % 4 < 2 ? 0 : kMmaSyncProducts / 2;
      to[r * k + (i - l) + half + l / 4 * 2 + l % 2] = from[r * k_ + i];
    }
  }
  copy_ = std::move(paired);
  k_ = k;
}

WideSource CarriedCodes::wide_source(std::int64_t begin) const {
  WideSource source{
      static_cast<const float*>(data_) + begin, row_stride_, min_exponent_, nullptr, 0, 1};
  if (!method_.block_scales) return source;
  const TensorView& scales = operand_.scales;
  const TileShape& tile = operand_.spec.tile;
  source.scales = scales.row<const float>(0) + begin / tile.cols;
  source.scale_stride = scales.row_stride;
  source.scale_rows = tile.rows == 0 ? rows_ : tile.rows;
  return source;
}

void CarriedCodes::pack_row(const GemmKernels& kernels, std::int64_t row, std::int64_t begin,
                            std::int64_t length, std::byte* out, std::int64_t group_bytes) const {
  switch (method_.carrier) {
    case Carrier::fp8:
    case Carrier::e4m3: {
      const Fp8Source source{static_cast<const std::uint8_t*>(data_) + begin, row_stride_,
                             fp8_format_};
      if (method_.carrier == Carrier::e4m3) {
        return kernels.pack_e4m3_row(&source, row, length, out, group_bytes);
      }
      return kernels.pack_fp8_row(&source, row, length, method_.group, out, group_bytes);
    }
    case Carrier::wide: {
      const WideSource source = wide_source(begin);
      return kernels.pack_wide_row(&source, row, length, method_.group, out, group_bytes);
    }
    case Carrier::bf16: {
      const Bf16Source source{static_cast<const std::uint16_t*>(data_) + begin, row_stride_, 1};
      return kernels.pack_bf16_row(&source, row, length, out, group_bytes);
    }
    case Carrier::f32:
      std::memcpy(out, values(row) + begin, static_cast<std::size_t>(length) * sizeof(float));
      return;
    case Carrier::f64:
      std::copy_n(values(row) + begin, length, reinterpret_cast<double*>(out));
      return;
  }
}

void CarriedCodes::pack_panel(const GemmKernels& kernels, std::int64_t first,
                              std::byte* out) const {
  switch (method_.carrier) {
    case Carrier::fp8:
    case Carrier::e4m3: {
      const Fp8Source source{static_cast<const std::uint8_t*>(data_), row_stride_, fp8_format_};
      const auto pack =
          method_.carrier == Carrier::e4m3 ? kernels.pack_e4m3_panel : kernels.pack_fp8_panel;
      return pack(&source, first, rows_, k_, out);
    }
    case Carrier::wide: {
      const WideSource source = wide_source(0);
      return kernels.pack_wide_panel(&source, first, rows_, k_, method_.group, out);
    }
    case Carrier::bf16: {
      const Bf16Source source{static_cast<const std::uint16_t*>(data_), row_stride_, 1};
      return kernels.pack_bf16_panel(&source, first, rows_, k_, out);
    }
    case Carrier::f32: {
      const F32Source source{static_cast<const float*>(data_), row_stride_};
      return kernels.pack_f32_panel(&source, first, rows_, k_, out);
    }
    case Carrier::f64: {
      const F32Source source{static_cast<const float*>(data_), row_stride_};
      return kernels.pack_f64_panel(&source, first, rows_, k_, out);
    }
  }
}

PackedSizes packed_sizes(const FastMethod& method, const GemmKernels& kernels) {
  const std::int64_t group = method.group;
  switch (method.carrier) {
    case Carrier::fp8:
      return {kernels.fp8_columns, kernels.fp8_columns * kFp8PanelBytes, group,
              group * kFp8ProductBytes};
    case Carrier::e4m3:
      return {kernels.fp8_columns, kernels.fp8_columns * kE4m3PanelBytes, group,
              group * kE4m3ProductBytes, kE4m3Rows};
    case Carrier::bf16:
    case Carrier::wide:
      return {kernels.bf16_columns, kernels.bf16_columns * wide_panel_bytes(group) / group, group,
              wide_group_bytes(group)};
    case Carrier::f32: return {kernels.f32_columns, kernels.f32_columns * 4, 1, 4};
    case Carrier::f64: return {kernels.f32_columns, kernels.f32_columns * 8, 1, 8};
  }
  FP8LAB_ASSERT(false);
  return {};
}

}  // namespace fp8lab::cpu
