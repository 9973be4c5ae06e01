#include "emulation/reference/gemm_reference.hpp"

#include <algorithm>
#include <array>
#include <vector>

#include "emulation/base/error.hpp"
#include "emulation/reference/multiplied_operand.hpp"
#include "emulation/spec/tensor_core.hpp"

namespace fp8lab::reference {
namespace {

using numerics::FormatSpec;

// An operand with its codes converted to the plan's format and its scales arranged by row.
template <class Code>
struct CarriedOperand {
  std::vector<Code> codes;    // (rows, k)
  std::vector<float> scales;  // (rows, tile columns); one column of ones without a scale
  std::int64_t scale_columns = 1;
};

template <class Code>
Code carry(const FormatSpec& to, std::uint32_t f32_bits) {
  return static_cast<Code>(
      numerics::encode(to, f32_bits, numerics::Rounding::nearest, numerics::Overflow::special));
}

template <class Code>
CarriedOperand<Code> carry_operand(const QuantizedOperand& operand, const FormatSpec& to) {
  CarriedOperand<Code> carried;
  carried.codes.reserve(static_cast<std::size_t>(operand.rows * operand.k));
  for (std::int64_t r = 0; r < operand.rows; ++r) {
    for (std::int64_t k = 0; k < operand.k; ++k) {
      std::uint32_t bits = 0;
      if (operand.codes.dtype == DType::u8) {
        const std::uint8_t code = operand.codes.row<const std::uint8_t>(r)[k];
        if (operand.spec.format == to) {
          carried.codes.push_back(code);
          continue;
        }
        bits = numerics::decode_bits(operand.spec.format, code);
      } else if (operand.codes.dtype == DType::bf16) {
        bits = static_cast<std::uint32_t>(operand.codes.row<const std::uint16_t>(r)[k]) << 16;
      } else {
        bits = numerics::float_bits(operand.codes.row<const float>(r)[k]);
      }
      carried.codes.push_back(carry<Code>(to, bits));
    }
  }
  const TileShape tile = operand.spec.scale_tile();
  carried.scale_columns = operand.spec.has_scale() ? operand.spec.tile_cols(operand.k) : 1;
  for (std::int64_t r = 0; r < operand.rows; ++r) {
    for (std::int64_t j = 0; j < carried.scale_columns; ++j) {
      carried.scales.push_back(scale_at(operand, r, j * tile.cols));
    }
  }
  return carried;
}

float bias_at(const TensorView& bias, std::int64_t n) {
  return bias.dtype == DType::bf16 ? numerics::from_bf16(bias.row<const std::uint16_t>(0)[n])
                                   : bias.row<const float>(0)[n];
}

// Calls finish(m, n, accumulator, first scale of row m, first scale of column n) for each element.
template <class Code, class Finish>
void multiply_codes(const GemmPlan& plan, const QuantizedOperand& a, const QuantizedOperand& b,
                    const Finish& finish) {
  const CarriedOperand<Code> x = carry_operand<Code>(a, plan.format_a);
  const CarriedOperand<Code> y = carry_operand<Code>(b, plan.format_b);
  const numerics::ElementGemm element = element_gemm(plan);
#pragma omp parallel for schedule(static)
  for (std::int64_t m = 0; m < a.rows; ++m) {
    for (std::int64_t n = 0; n < b.rows; ++n) {
      const float* sa = x.scales.data() + m * x.scale_columns;
      const float* sb = y.scales.data() + n * y.scale_columns;
      const float acc = numerics::accumulate_element(element, x.codes.data() + m * plan.k,
                                                     y.codes.data() + n * plan.k, plan.k, sa, sb);
      finish(m, n, acc, *sa, *sb);
    }
  }
}

template <class Code>
std::vector<float> sum_prefixes(const GemmPlan& plan, const QuantizedOperand& a,
                                const QuantizedOperand& b, std::int64_t every) {
  const CarriedOperand<Code> x = carry_operand<Code>(a, plan.format_a);
  const CarriedOperand<Code> y = carry_operand<Code>(b, plan.format_b);
  const numerics::ElementGemm element = element_gemm(plan);
  std::vector<float> sums;
  for (std::int64_t k = 0; k < plan.k;) {
    k = std::min(k + every, plan.k);
    sums.push_back(numerics::accumulate_element(element, x.codes.data(), y.codes.data(), k,
                                                x.scales.data(), y.scales.data()));
  }
  return sums;
}

template <class Finish>
void multiply(const GemmPlan& plan, const QuantizedOperand& a, const QuantizedOperand& b,
              const Finish& finish) {
  const int bits = plan.format_a.bits();
  if (bits <= 8) return multiply_codes<std::uint8_t>(plan, a, b, finish);
  if (bits <= 16) return multiply_codes<std::uint16_t>(plan, a, b, finish);
  return multiply_codes<std::uint32_t>(plan, a, b, finish);
}

}  // namespace

void gemm(const ops::Gemm& op) {
  const QuantizedOperand &a = op.a, &b = op.b;
  if (MultipliedOperand::is_copy(a) || MultipliedOperand::is_copy(b)) {
    const std::string reason = gemm_refusal(op.spec, a.spec, b.spec);
    if (!reason.empty()) throw Error(reason);
    const MultipliedOperand x(op.spec.accumulator, a), y(op.spec.accumulator, b);
    return gemm(ops::Gemm{.spec = op.spec,
                          .a = x.get(),
                          .b = y.get(),
                          .bias = op.bias,
                          .accumulate = op.accumulate,
                          .d = op.d});
  }
  const GemmPlan plan = plan_gemm(op.spec, a.spec, b.spec, a.k);
  check_gemm_operands(op.spec, plan, a, b, op.bias, op.accumulate, op.d);
  check_block_scales(plan, a, b);
  const numerics::Epilogue epilogue = element_epilogue(plan, op.accumulate, op.d.dtype);
  multiply(plan, a, b, [&](std::int64_t m, std::int64_t n, float acc, float sa, float sb) {
    const float c = op.accumulate ? op.d.row<const float>(m)[n] : 0.0f;
    const float added = op.bias.empty() ? 0.0f : bias_at(op.bias, n);
    const std::uint32_t code =
        numerics::finish_element(epilogue, acc, sa, sb, c, op.bias.empty() ? nullptr : &added);
    if (op.d.dtype == DType::bf16) {
      op.d.row<std::uint16_t>(m)[n] = static_cast<std::uint16_t>(code);
    } else {
      op.d.row<float>(m)[n] = numerics::bits_float(code);
    }
  });
}

void gemm_accumulators(const GemmPlan& plan, const QuantizedOperand& a, const QuantizedOperand& b,
                       const TensorView& accumulators) {
  multiply(plan, a, b, [&](std::int64_t m, std::int64_t n, float acc, float, float) {
    accumulators.row<float>(m)[n] = acc;
  });
}

std::vector<float> partial_sums(const GemmSpec& spec, const QuantizedOperand& a,
                                const QuantizedOperand& b, std::int64_t every) {
  FP8LAB_ASSERT(a.rows == 1 && b.rows == 1 && every > 0);
  const MultipliedOperand x(spec.accumulator, a), y(spec.accumulator, b);
  const GemmPlan plan = plan_gemm(spec, x.get().spec, y.get().spec, a.k);
  const int bits = plan.format_a.bits();
  if (bits <= 8) return sum_prefixes<std::uint8_t>(plan, x.get(), y.get(), every);
  if (bits <= 16) return sum_prefixes<std::uint16_t>(plan, x.get(), y.get(), every);
  return sum_prefixes<std::uint32_t>(plan, x.get(), y.get(), every);
}

}  // namespace fp8lab::reference
