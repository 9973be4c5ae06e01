#include "kernels/gemm/gemm.hpp"

#include <string>

#include "emulation/base/error.hpp"
#include "emulation/ops/gemm/gemm_plan.hpp"
#include "emulation/spec/tensor_core.hpp"
#include "kernels/gemm/carry.hpp"
#include "kernels/gemm/gemm_scalar.hpp"
#include "kernels/gemm/gemm_wgmma.hpp"
#include "kernels/quantize/quantize_values.hpp"

namespace fp8lab::cuda {
namespace {

bool on_tensor_cores(const GemmPlan& plan) {
  return plan.accumulator == Accumulator::sm90_wgmma_fp8 ||
         plan.accumulator == Accumulator::sm90_bf16 || plan.format_a == numerics::kInt8;
}

/// Returns true if the codes are integers of at most 8 bits.
bool holds_integers(const QuantSpec& spec) {
  const numerics::FormatSpec& format = spec.format;
  return format.encoding == numerics::Encoding::twos_complement && format.bits() <= 8 &&
         format.min_exponent() == format.mantissa_bits;
}

/// Returns the plan of a GEMM on this device: exact integer sums that fit into 32 bits
/// use the tensor cores' s8.
GemmPlan device_plan(const GemmSpec& spec, const QuantSpec& a, const QuantSpec& b, std::int64_t k) {
  constexpr std::int64_t kLongestSum = ((std::int64_t{1} << 31) - 1) / (128 * 128);
  GemmPlan plan = plan_gemm(spec, a, b, k);
  const bool exact = plan.accumulator == Accumulator::ideal_exact && !plan.promoted;
  if (exact && holds_integers(a) && holds_integers(b) && plan.ranges.front().end <= kLongestSum) {
    plan.format_a = plan.format_b = numerics::kInt8;
  }
  return plan;
}

ScaleGrid scale_grid(const QuantizedOperand& operand) {
  if (operand.scales.empty()) return {};
  const TileShape tile = operand.spec.scale_tile();
  return {static_cast<const float*>(operand.scales.data), operand.scales.row_stride,
          tile.rows == 0 ? operand.rows : tile.rows, tile.cols == 0 ? operand.k : tile.cols};
}

WgmmaTypes wgmma_types(const GemmPlan& plan) {
  if (plan.format_a == numerics::kBF16) return WgmmaTypes::bf16;
  if (plan.format_a == numerics::kInt8) return WgmmaTypes::s8;
  const bool a = plan.format_a == numerics::kE5M2;
  const bool b = plan.format_b == numerics::kE5M2;
  return a ? (b ? WgmmaTypes::e5m2_e5m2 : WgmmaTypes::e5m2_e4m3)
           : (b ? WgmmaTypes::e4m3_e5m2 : WgmmaTypes::e4m3_e4m3);
}

/// Returns the storage orders that the kernel reads: those of the operands, if
/// there is a kernel for them.
WgmmaOrders wgmma_orders(const GemmPlan& plan, const QuantizedOperand& a,
                         const QuantizedOperand& b) {
  const bool bf16 = plan.accumulator == Accumulator::sm90_bf16;
  if (!bf16 || plan.promoted || !b.has_rows_contiguous()) return WgmmaOrders::k_k;
  return a.has_rows_contiguous() ? WgmmaOrders::rows_rows : WgmmaOrders::k_rows;
}

StorageOrder order_of(bool by_rows) {
  return by_rows ? StorageOrder::rows_contiguous : StorageOrder::k_contiguous;
}

/// Size of the workspace for an operand, 0 unless it has to be copied.
struct Carry {
  const QuantizedOperand& operand;
  CarriedForm form;
  bool copied;
  std::size_t bytes;

  Carry(const QuantizedOperand& source, const CarriedForm& carried)
      : operand(source),
        form(carried),
        copied(!carried_already(source, carried)),
        bytes(copied ? carried_bytes(source, carried) : 0) {}

  CarriedCodes run(Context& context, std::byte* memory) const {
    if (copied) return carry(context, operand, form, memory);
    return {operand.codes.data, operand.codes.row_stride};
  }
};

/// Returns the operand in its multiplied_form, as
/// reference::MultipliedOperand; values go to `memory`.
QuantizedOperand multiplied(Context& context, const Accumulator& accumulator,
                            const QuantizedOperand& operand, std::byte* memory) {
  const QuantSpec form = multiplied_form(accumulator, operand.spec);
  if (form == operand.spec) return operand;
  QuantizedOperand values = operand;
  values.spec = form;
  values.scales = {};
  values.codes = {memory, form.storage(), operand.rows, operand.k, operand.k};
  decode_operand(context, operand, false, values.codes);
  return values;
}

}  // namespace

std::string device_gemm_refusal(const GemmSpec& spec, const QuantSpec& a, const QuantSpec& b) {
  const std::string reason = fp8lab::gemm_refusal(spec, a, b);
  if (!reason.empty()) return reason;
  const Accumulator& unit = spec.accumulator;
  const bool carried =
      unit.takes_codes() || unit.operand == numerics::kBF16 || unit.operand == numerics::kFP32;
  const bool late = unit.group.late_fraction_bits > 0;
  if (carried && !unit.group.block_scales && !late) return {};
  return "GEMM accumulator: " + accumulator_name(unit) + " is emulated by backend cpu only";
}

void run(Context& context, const ops::Gemm& op) {
  const std::string reason = device_gemm_refusal(op.spec, op.a.spec, op.b.spec);
  if (!reason.empty()) throw Error(reason);
  if (op.a.spec.has_codebooks() || op.b.spec.has_codebooks()) {
    const auto size_a = static_cast<std::size_t>(op.a.rows * op.a.k) * sizeof(float);
    const auto size_b = static_cast<std::size_t>(op.b.rows * op.b.k) * sizeof(float);
    auto* const memory = static_cast<std::byte*>(context.tensor_memory(size_a + size_b));
    const QuantizedOperand a = multiplied(context, op.spec.accumulator, op.a, memory);
    const QuantizedOperand b = multiplied(context, op.spec.accumulator, op.b, memory + size_a);
    return run(context, ops::Gemm{.spec = op.spec,
                                  .a = a,
                                  .b = b,
                                  .bias = op.bias,
                                  .accumulate = op.accumulate,
                                  .d = op.d});
  }
  const GemmPlan plan = device_plan(op.spec, op.a.spec, op.b.spec, op.a.k);
  check_gemm_operands(op.spec, plan, op.a, op.b, op.bias, op.accumulate, op.d);
  if (op.a.rows == 0 || op.b.rows == 0) return;
  const bool tensor_cores = on_tensor_cores(plan);
  const WgmmaOrders orders = wgmma_orders(plan, op.a, op.b);
  const Carry carry_a(op.a, {plan.format_a, order_of(a_by_rows(orders)), tensor_cores});
  const Carry carry_b(op.b, {plan.format_b, order_of(b_by_rows(orders)), tensor_cores});
  const std::size_t carried = carry_a.bytes + carry_b.bytes;

  WgmmaGemm gemm;
  gemm.types = wgmma_types(plan);
  gemm.orders = orders;
  gemm.promoted = plan.promoted;
  gemm.order = plan.order;
  gemm.m = op.a.rows;
  gemm.n = op.b.rows;
  gemm.k = plan.k;
  gemm.chunk = plan.chunk;
  gemm.splits = static_cast<std::int64_t>(plan.ranges.size());
  gemm.range = plan.ranges.front().end;
  gemm.scale_a = scale_grid(op.a);
  gemm.scale_b = scale_grid(op.b);
  gemm.epilogue = element_epilogue(plan, op.accumulate, op.d.dtype);
  gemm.bias = op.bias.data;
  gemm.bias_bf16 = op.bias.dtype == DType::bf16;
  gemm.d = op.d.data;
  gemm.d_stride = op.d.row_stride;

  const std::size_t own = tensor_cores ? wgmma_workspace(context, gemm) : 0;
  std::byte* memory = nullptr;
  if (carried + own > 0) {
    memory = static_cast<std::byte*>(context.workspace(carried + own));
  }
  const CarriedCodes codes_a = carry_a.run(context, memory);
  const CarriedCodes codes_b = carry_b.run(context, memory + carry_a.bytes);
  gemm.a = codes_a.data;
  gemm.b = codes_b.data;
  gemm.a_stride = codes_a.stride;
  gemm.b_stride = codes_b.stride;
  gemm.memory = reinterpret_cast<float*>(memory + carried);
  if (tensor_cores) return gemm_wgmma(context, gemm);

  const numerics::ElementGemm element = element_gemm(plan);
  const int code_bytes = (plan.format_a.bits() + 7) / 8;
  gemm_scalar(context, {element, gemm.epilogue, code_bytes, gemm.m, gemm.n, gemm.k, gemm.a, gemm.b,
                        gemm.a_stride, gemm.b_stride, gemm.scale_a, gemm.scale_b, gemm.bias,
                        gemm.bias_bf16, gemm.d, gemm.d_stride});
}

}  // namespace fp8lab::cuda
