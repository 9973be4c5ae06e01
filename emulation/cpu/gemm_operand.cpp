#include "emulation/cpu/gemm_operand.hpp"

#include <array>
#include <cstring>

#include "emulation/api/error.hpp"
#include "emulation/cpu/operand_decode.hpp"
#include "emulation/numerics/codec.hpp"

namespace fp8lab::cpu {
namespace {

using numerics::FormatSpec;

// All codes of an 8-bit operand in the carrier format.
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

}  // namespace

CarriedCodes::CarriedCodes(Carrier carrier, const QuantizedOperand& operand,
                           const FormatSpec& format)
    : carrier_(carrier),
      fp8_format_(format == numerics::kE5M2 ? Fp8Format::e5m2 : Fp8Format::e4m3),
      data_(operand.codes.data),
      row_stride_(operand.codes.row_stride),
      rows_(operand.rows),
      k_(operand.k) {
  const DType stored = operand.codes.dtype;
  switch (carrier) {
    case Carrier::fp8:
      if (operand.spec.format == format) return;
      copy_ = convert<std::uint8_t>(operand, format);
      break;
    case Carrier::bf16:
      if (stored == DType::bf16) return;
      copy_ = convert<std::uint16_t>(operand, format);
      break;
    case Carrier::f32:
      if (stored == DType::f32) return;
      copy_ = convert<std::uint32_t>(operand, format);
      break;
  }
  data_ = copy_.data();
  row_stride_ = k_;
}

MultipliedOperand::MultipliedOperand(Accumulator accumulator, const QuantizedOperand& operand)
    : operand_(operand) {
  const QuantSpec form = multiplied_form(accumulator, operand.spec);
  if (form == operand.spec) return;
  const DType dtype = form.storage();
  values_.resize(static_cast<std::size_t>(operand.rows * operand.k) * size_of(dtype));
  operand_.spec = form;
  operand_.scales = {};
  operand_.codes = {values_.data(), dtype, operand.rows, operand.k, operand.k};
  decode_operand(operand, false, operand_.codes);
}

void CarriedCodes::pack_row(const GemmKernels& kernels, std::int64_t row, std::int64_t begin,
                            std::int64_t length, std::byte* out, std::int64_t group_bytes) const {
  switch (carrier_) {
    case Carrier::fp8: {
      const Fp8Source source{static_cast<const std::uint8_t*>(data_) + begin, row_stride_,
                             fp8_format_};
      return kernels.pack_fp8_row(&source, row, length, out, group_bytes);
    }
    case Carrier::bf16: {
      const Bf16Source source{static_cast<const std::uint16_t*>(data_) + begin, row_stride_, 1};
      return kernels.pack_bf16_row(&source, row, length, out, group_bytes);
    }
    case Carrier::f32:
      std::memcpy(out, static_cast<const float*>(data_) + row * row_stride_ + begin,
                  static_cast<std::size_t>(length) * sizeof(float));
  }
}

void CarriedCodes::pack_panel(const GemmKernels& kernels, std::int64_t first,
                              std::byte* out) const {
  switch (carrier_) {
    case Carrier::fp8: {
      const Fp8Source source{static_cast<const std::uint8_t*>(data_), row_stride_, fp8_format_};
      return kernels.pack_fp8_panel(&source, first, rows_, k_, out);
    }
    case Carrier::bf16: {
      const Bf16Source source{static_cast<const std::uint16_t*>(data_), row_stride_, 1};
      return kernels.pack_bf16_panel(&source, first, rows_, k_, out);
    }
    case Carrier::f32: {
      const F32Source source{static_cast<const float*>(data_), row_stride_};
      return kernels.pack_f32_panel(&source, first, rows_, k_, out);
    }
  }
}

PackedSizes packed_sizes(Carrier carrier, const GemmKernels& kernels) {
  switch (carrier) {
    case Carrier::fp8:
      return {kernels.fp8_columns, kernels.fp8_columns * kFp8PanelBytes, kFp8Group, kFp8GroupBytes};
    case Carrier::bf16:
      return {kernels.bf16_columns, kernels.bf16_columns * kBf16PanelBytes, kBf16Group,
              kBf16GroupBytes};
    case Carrier::f32: return {kernels.f32_columns, kernels.f32_columns * 4, 1, 4};
  }
  FP8LAB_ASSERT(false);
  return {};
}

}  // namespace fp8lab::cpu
