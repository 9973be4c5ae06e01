#include "emulation/ops/gemm/gemm_plan.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>

#include "emulation/base/error.hpp"
#include "emulation/numerics/codec.hpp"
#include "emulation/numerics/schedule.hpp"
#include "emulation/ops/quantize/operand_checks.hpp"
#include "emulation/spec/gemm_rules.hpp"
#include "emulation/spec/tensor_core.hpp"

namespace fp8lab {
namespace {

using numerics::FormatSpec;

bool varies_along_k(const QuantSpec& spec) { return spec.scale_tile().cols > 0; }

bool in_blocks(const QuantSpec& spec) {
  return varies_along_k(spec) && spec.scale_tile().rows != 1;
}

// specification.md, "Epilogue and split K": blocks of 128, of 64 for bf16 and by analogy for FP16.
// A promotion interval that does not divide the block widens it, so that no chunk spans two ranges.
std::vector<KRange> split_ranges(const GemmSpec& spec, bool blocks_128x128, std::int64_t k) {
  if (spec.split_k == 1) return {{0, k}};
  std::int64_t block = spec.accumulator.operand.bits() == 16 ? 64 : 128;
  if (spec.schedule == Schedule::promote) {
    block = std::lcm(block, static_cast<std::int64_t>(spec.promote_interval));
  }
  const std::int64_t width = numerics::split_range_width(k, block, spec.split_k, blocks_128x128);
  std::vector<KRange> ranges;
  for (std::int64_t i = 0; i < spec.split_k; ++i) {
    const KRange range{i * width, std::min((i + 1) * width, k)};
    if (range.begin >= range.end) {
      throw Error("split_k = " + std::to_string(spec.split_k) + " leaves range " +
                  std::to_string(i) + " of K = " + std::to_string(k) + " empty: ranges are " +
                  std::to_string(width) + " wide; use split_k = " + std::to_string(i));
    }
    ranges.push_back(range);
  }
  return ranges;
}

// Returns true if values stored as `dtype` enter a multiplier of format `carrier` exactly.
bool fits(const QuantSpec& spec, DType dtype, const FormatSpec& carrier) {
  if (spec.is_quantized()) return dtype == DType::u8;
  if (dtype != DType::bf16 && dtype != DType::f32) return false;
  const FormatSpec stored = dtype == DType::bf16 ? numerics::kBF16 : numerics::kFP32;
  return dtype == spec.storage() || numerics::holds_values(carrier, stored);
}

void check_codes(const GemmPlan& plan, const FormatSpec& carrier, const QuantizedOperand& operand,
                 const char* name) {
  const std::string prefix = std::string("GEMM operand ") + name + ": ";
  const TensorView& codes = operand.codes;
  if (operand.k != plan.k) {
    throw Error(prefix + "K is " + std::to_string(operand.k) + ", expected " +
                std::to_string(plan.k));
  }
  check_storage_order(prefix.c_str(), operand);
  if (!fits(operand.spec, codes.dtype, carrier)) {
    throw Error(prefix + "codes of format " + format_name(operand.spec.format) + " stored as " +
                std::string(name_of(codes.dtype)) + " cannot enter accumulator " +
                accumulator_name(plan.accumulator));
  }
  const TensorView& scales = operand.scales;
  if (!operand.spec.has_scale()) {
    if (!scales.empty()) throw Error(prefix + "has scales but its scale source is none");
    return;
  }
  const std::int64_t rows = operand.spec.tile_rows(operand.rows);
  const std::int64_t cols = operand.spec.tile_cols(operand.k);
  if (!scales.has_memory() || scales.dtype != DType::f32 || scales.rows != rows ||
      scales.cols != cols) {
    throw Error(prefix + "scales are " + std::to_string(scales.rows) + "x" +
                std::to_string(scales.cols) + " " + std::string(name_of(scales.dtype)) +
                ", expected " + std::to_string(rows) + "x" + std::to_string(cols) + " f32");
  }
}

// An instruction reads scales as codes, so other values are refused.
void check_block_scales(const GemmPlan& plan, const QuantizedOperand& operand, const char* name) {
  if (plan.order != ScaleOrder::in_instruction) return;
  for (std::int64_t r = 0; r < operand.scales.rows; ++r) {
    for (std::int64_t j = 0; j < operand.scales.cols; ++j) {
      const float scale = operand.scales.row<const float>(r)[j];
      const std::uint32_t code = numerics::encode(plan.scale_format, numerics::float_bits(scale));
      if (std::isnan(scale) ||
          (!std::signbit(scale) && numerics::decode(plan.scale_format, code) == scale)) {
        continue;
      }
      throw Error(fmt::format(
          "GEMM operand {}: scale {} of tile ({}, {}) is not an unsigned {} "
          "number, as {} reads them",
          name, scale, r, j, format_name(plan.scale_format), accumulator_name(plan.accumulator)));
    }
  }
}

// Returns the operand's shape and type in its multiplied_form.
QuantizedOperand as_multiplied(const Accumulator& accumulator, const QuantizedOperand& operand) {
  const QuantSpec form = multiplied_form(accumulator, operand.spec);
  if (form == operand.spec) return operand;
  check_operand("gemm", operand);
  QuantizedOperand values = operand;
  values.spec = form;
  values.codes.dtype = form.storage();
  values.scales = {};
  return values;
}

// Drawn signs and factors of the two operands cancel only if they are the same.
void check_transforms(const QuantizedOperand& a, const QuantizedOperand& b) {
  const bool matched =
      !a.is_right && b.is_right && a.channel_factors.data == b.channel_factors.data;
  if (a.spec.transform.is<Smoothing>() && !matched) {
    throw Error("GEMM operands: transform " + transform_name(a.spec.transform) +
                " of a and b with different factors; accepted: those of smoothing_factors for "
                "both, b the right operand");
  }
  if (!a.spec.transform.is_along_k() || !a.spec.transform.has_drawn_signs()) return;
  if (a.key.seed == b.key.seed && a.key.step == b.key.step &&
      a.key.step_counter == b.key.step_counter && a.key.rotation == b.key.rotation) {
    return;
  }
  throw Error("GEMM operands: transform " + transform_name(a.spec.transform) +
              " of a and b with different signs; accepted: the same seed, step and rotation");
}

// Refuses addends of a GEMM that would be rotated back with the product.
void check_addends(const QuantizedOperand& a, const QuantizedOperand& b, bool adds) {
  if (!adds) return;
  for (const QuantizedOperand* operand : {&a, &b}) {
    const Transform transform = operand->space_of_rows().transform;
    if (!transform) continue;
    throw Error("GEMM operands: transform " + transform_name(transform) +
                " with a bias or an accumulator; accepted: a product alone");
  }
}

}  // namespace

ScaleOrder scale_order(const GemmSpec& spec, const QuantSpec& a, const QuantSpec& b) {
  if (spec.scale_order != ScaleOrder::automatic) return spec.scale_order;
  if (spec.accumulator.group.block_scales) return ScaleOrder::in_instruction;
  if (in_blocks(a) || in_blocks(b)) return ScaleOrder::product_first;
  if (varies_along_k(a) || varies_along_k(b)) return ScaleOrder::b_then_a;
  return ScaleOrder::epilogue;
}

std::string gemm_refusal(const GemmSpec& spec, const QuantSpec& a, const QuantSpec& b) {
  std::optional<ErrorFields> refusal = refuse_gemm(spec, a, b, "a", "b");
  if (!refusal) return {};
  refusal->where = "GEMM";
  return render(*refusal);
}

numerics::ElementGemm element_gemm(const GemmPlan& plan) {
  numerics::ElementGemm element;
  element.unit = plan.accumulator.unit;
  element.group = plan.accumulator.group;
  element.scale_format = plan.scale_format;
  element.format_a = plan.format_a;
  element.format_b = plan.format_b;
  element.promote_interval = plan.promoted ? plan.chunk : 0;
  FP8LAB_ASSERT(plan.order != ScaleOrder::automatic);
  element.order = plan.order;
  element.scale_width_a = plan.scale_width_a;
  element.scale_width_b = plan.scale_width_b;
  element.range_width = plan.split() ? plan.ranges.front().end : 0;
  return element;
}

numerics::Epilogue element_epilogue(const GemmPlan& plan, bool accumulate, DType output) {
  using numerics::EpilogueScales;
  numerics::Epilogue epilogue;
  epilogue.scales = plan.order != ScaleOrder::epilogue ? EpilogueScales::none
                    : plan.scalar_scales               ? EpilogueScales::scalar
                                                       : EpilogueScales::outer;
  epilogue.split_k = plan.split();
  epilogue.alpha = plan.alpha;
  epilogue.beta = accumulate ? 1.0f : 0.0f;
  epilogue.output = output == DType::bf16 ? numerics::kBF16 : numerics::kFP32;
  return epilogue;
}

GemmPlan plan_gemm(const GemmSpec& spec, const QuantSpec& a, const QuantSpec& b, std::int64_t k) {
  const std::string reason = gemm_refusal(spec, a, b);
  if (!reason.empty()) throw Error(reason);
  if (k < 1) throw Error("GEMM with K = " + std::to_string(k) + "; K must be positive");
  GemmPlan plan;
  plan.accumulator = spec.accumulator;
  plan.order = scale_order(spec, a, b);
  plan.promoted = spec.schedule == Schedule::promote;
  plan.scalar_scales = a.scale_tile().rows == 0 && b.scale_tile().rows == 0;
  plan.alpha = spec.alpha;
  const Accumulator& unit = spec.accumulator;
  plan.format_a = unit.carrier(a.format).value_or(unit.operand);
  plan.format_b = unit.carrier(b.format).value_or(unit.operand);
  if (plan.order == ScaleOrder::in_instruction) {
    plan.scale_format = block_scale_format(a.scale.format);
  }
  plan.k = k;
  plan.chunk = plan.promoted ? spec.promote_interval : k;
  plan.scale_width_a = a.scale_tile().cols;
  plan.scale_width_b = b.scale_tile().cols;
  plan.ranges = split_ranges(spec, in_blocks(a) || in_blocks(b), k);
  return plan;
}

void check_gemm_operands(const GemmSpec& spec, const GemmPlan& plan, const QuantizedOperand& a,
                         const QuantizedOperand& b, const TensorView& bias, bool accumulate,
                         const TensorView& d) {
  check_codes(plan, plan.format_a, a, "a");
  check_codes(plan, plan.format_b, b, "b");
  check_transforms(a, b);
  check_addends(a, b, accumulate || !bias.empty());
  if (!bias.empty()) {
    const bool typed = bias.dtype == DType::bf16 || bias.dtype == DType::f32;
    if (bias.rows != 1 || bias.cols != b.rows || !typed) {
      throw Error("GEMM bias is " + std::to_string(bias.rows) + "x" + std::to_string(bias.cols) +
                  " " + std::string(name_of(bias.dtype)) + ", expected 1x" +
                  std::to_string(b.rows) + " bf16 or f32");
    }
  }
  if (!d.has_memory() || d.rows != a.rows || d.cols != b.rows) {
    throw Error("GEMM output is " + std::to_string(d.rows) + "x" + std::to_string(d.cols) +
                ", expected " + std::to_string(a.rows) + "x" + std::to_string(b.rows));
  }
  if (d.dtype != spec.output || (accumulate && d.dtype != DType::f32)) {
    throw Error("GEMM output is " + std::string(name_of(d.dtype)) + ", the recipe asks for " +
                std::string(name_of(spec.output)) +
                (accumulate ? " and accumulation needs f32" : ""));
  }
}

void check_block_scales(const GemmPlan& plan, const QuantizedOperand& a,
                        const QuantizedOperand& b) {
  check_block_scales(plan, a, "a");
  check_block_scales(plan, b, "b");
}

void ops::Gemm::check() const {
  if (const std::string reason = gemm_refusal(spec, a.spec, b.spec); !reason.empty()) {
    throw Error(reason);
  }
  const QuantizedOperand left = as_multiplied(spec.accumulator, a);
  const QuantizedOperand right = as_multiplied(spec.accumulator, b);
  check_gemm_operands(spec, plan_gemm(spec, left.spec, right.spec, a.k), left, right, bias,
                      accumulate, d);
}

}  // namespace fp8lab
