#include "src/validate/gemm_cases.hpp"

#include <fmt/format.h>

#include <utility>

#include "emulation/numerics/codec.hpp"

namespace fp8lab {
namespace {

using numerics::GroupModel;

constexpr int kGroupsPerPair = 3;

std::uint32_t draw_accumulator(const GroupModel& group, CaseGenerator& cases) {
  const float value = cases.accumulator();
  if (group.output == numerics::OutputKind::f32_truncated) return numerics::float_bits(value);
  return cases.bits() % 2 == 0 ? cases.bits() & 0xFBFFu
                               : numerics::encode(numerics::kFP16, numerics::float_bits(value));
}

}  // namespace

std::vector<ExpectedGroup> draw_groups(const Instruction& instruction,
                                       const Implementation& expected, CaseGenerator& cases) {
  const int n = instruction.mma_sync_fp8 ? 32 : instruction.group.products;
  std::vector<ExpectedGroup> list;
  for (int pair = 0; pair < kCaseKinds * kCaseKinds; ++pair) {
    for (int i = 0; i < kGroupsPerPair; ++i) {
      ExpectedGroup one;
      one.instruction = &instruction;
      const auto kind_a = static_cast<CaseKind>(pair / kCaseKinds);
      const auto kind_b = static_cast<CaseKind>(pair % kCaseKinds);
      one.a = cases.tile<std::uint32_t>(instruction.format_a, kind_a, n);
      one.b = cases.tile<std::uint32_t>(instruction.format_b, kind_b, n);
      // A chain of two, so that the second accumulator has the magnitude of the products.
      one.c_bits = i == 0   ? 0u
                   : i == 1 ? list.back().result
                            : draw_accumulator(instruction.group, cases);
      one.result = expected.group(one.problem());
      list.push_back(std::move(one));
    }
  }
  return list;
}

float ordinary_scale(CaseGenerator& cases) {
  return numerics::bits_float(0x3D000000u + cases.bits() % 0x04000000u);
}

SuiteOperand::SuiteOperand(const QuantSpec& wanted, std::int64_t operand_rows,
                           std::int64_t operand_k, CaseGenerator& cases, bool specials)
    : spec(wanted), rows(operand_rows), k(operand_k) {
  if (spec.is_quantized()) {
    codes = cases.codes<std::uint8_t>(spec.format, rows, k, 3, 16, specials);
  } else {
    bf16 = cases.codes<std::uint16_t>(spec.format, rows, k, 3, 16, specials);
  }
  if (!spec.has_scale()) return;
  scales.resize(static_cast<std::size_t>(spec.tile_rows(rows) * spec.tile_cols(k)));
  for (float& scale : scales) scale = ordinary_scale(cases);
}

QuantizedOperand SuiteOperand::view() {
  QuantizedOperand operand;
  operand.spec = spec;
  operand.rows = rows;
  operand.k = k;
  operand.codes = spec.is_quantized() ? TensorView{codes.data(), DType::u8, rows, k, k}
                                      : TensorView{bf16.data(), DType::bf16, rows, k, k};
  if (spec.has_scale()) {
    const std::int64_t wide = spec.tile_cols(k);
    operand.scales = {scales.data(), DType::f32, spec.tile_rows(rows), wide, wide};
  }
  return operand;
}

void GemmProblem::run(const Implementation& implementation) {
  const std::int64_t m = a.rows, n = b.rows;
  const bool f32 = spec.output == DType::f32;
  void* data = f32 ? static_cast<void*>(d.data()) : d_bf16.data();
  TensorView bias_view;
  if (!bias.empty()) bias_view = {bias.data(), DType::f32, 1, n, n};
  implementation.gemm(spec, a.view(), b.view(), bias_view, accumulate,
                      {data, spec.output, m, n, n});
}

std::string GemmProblem::describe(std::size_t i) const {
  const auto element = static_cast<std::int64_t>(i);
  return fmt::format("{}, {} by {}, {} x {} x {}{}{}, element ({}, {})", label(spec), label(a.spec),
                     label(b.spec), a.rows, b.rows, a.k, bias.empty() ? "" : ", bias",
                     accumulate ? ", accumulating" : "", element / b.rows, element % b.rows);
}

std::uint32_t GemmProblem::result(std::size_t i) const {
  return spec.output == DType::f32 ? numerics::float_bits(d[i]) : d_bf16[i];
}

GemmProblem draw_gemm(const OperandPair& pair, CaseGenerator& cases) {
  GemmProblem problem;
  QuantSpec a;
  a.format = *format_by_name(pair.format);
  if (a.is_quantized()) a.scale_source = ScaleSource::current;
  QuantSpec b = a;
  a.tile = pair.a;
  b.tile = pair.b;
  GemmSpec& spec = problem.spec;
  spec.accumulator = a.is_quantized() ? Accumulator::sm90_wgmma_fp8 : Accumulator::sm90_bf16;
  const ScheduleChoice choice = *schedule_from_name(pair.gemm);
  spec.schedule = choice.schedule;
  spec.promote_interval = choice.promote_interval;
  spec.output = cases.bits() % 3 == 0 ? DType::bf16 : DType::f32;
  problem.accumulate = spec.output == DType::f32 && cases.bits() % 3 == 0;
  const std::int64_t k = 130 + cases.bits() % 400;
  if (k > 256 && b.tile.rows != 128 && a.tile.rows != 128 && cases.bits() % 4 == 0) {
    spec.split_k = 2;
  }
  const bool specials = cases.bits() % 8 == 0;
  const std::int64_t m = pair.m / 2 + 1 + cases.bits() % (pair.m / 2);
  const std::int64_t n = pair.n / 2 + 1 + cases.bits() % (pair.n / 2);
  problem.a = SuiteOperand(a, m, k, cases, specials);
  problem.b = SuiteOperand(b, n, k, cases, specials);
  if (cases.bits() % 2 == 0) {
    for (std::int64_t i = 0; i < n; ++i) problem.bias.push_back(ordinary_scale(cases));
  }
  problem.d.resize(static_cast<std::size_t>(m * n));
  problem.d_bf16.resize(problem.d.size());
  for (float& start : problem.d) start = cases.accumulator();
  return problem;
}

}  // namespace fp8lab
