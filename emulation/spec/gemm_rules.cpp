#include "emulation/spec/gemm_rules.hpp"

#include <numeric>
#include <utility>

#include "emulation/spec/recipe_names.hpp"
#include "emulation/spec/tensor_core.hpp"

namespace fp8lab {
namespace {

using numerics::FormatSpec;
using GemmVerdict = std::optional<GemmRefusal>;

GemmVerdict refuse_format(const Accumulator& accumulator, const QuantSpec& operand,
                          const std::string& name) {
  const FormatSpec& format = operand.format;
  const bool expanded = operand.transform.is<RangeExpansion>();
  // Expanded values are contracted first, and multiplied in the accumulator's own format.
  const auto takes = [&](const Accumulator& unit) {
    return unit.carrier(format) &&
           (!expanded || unit.operand == numerics::kBF16 || unit.operand == numerics::kFP32);
  };
  if (!expanded && takes(accumulator)) return {};
  std::string accepted;
  for (const TensorCoreProfile& other : tensor_core_profiles()) {
    if (other.accumulator.group.block_scales || !takes(other.accumulator)) continue;
    accepted += (accepted.empty() ? "" : ", ") + std::string(other.name);
  }
  return GemmRefusal{"accumulator", accumulator_name(accumulator) + " cannot multiply " + name +
                                        ", which is " + format_name(format) +
                                        (expanded ? " expanded" : "") +
                                        "; accepted with it: " + accepted};
}

// Refuses scales inside the instruction unless it takes them and both operands have the same kind.
GemmVerdict refuse_block_scales(const GemmSpec& spec, const QuantSpec& a, const QuantSpec& b,
                                const std::string& name_a, const std::string& name_b) {
  const Accumulator& unit = spec.accumulator;
  std::string accepted;
  for (const BlockScale& scale : unit.block_scales) {
    if (scale.width == 0) continue;
    accepted += accepted.empty() ? "" : " or ";
    accepted += "tiles of " + std::to_string(scale.width) + " along K with " +
                std::string(word_for(kScaleFormatNames, scale.format)) + " scales";
  }
  accepted += "; a factor of the whole tensor belongs into alpha";
  for (const auto& [operand, name] : {std::pair(&a, &name_a), std::pair(&b, &name_b)}) {
    if (unit.takes_scales(*operand)) continue;
    return GemmRefusal{"accumulator", accumulator_name(unit) + " takes block scales and " + *name +
                                          " is " + label(*operand) + "; accepted: " + accepted};
  }
  if (a.tile.cols != b.tile.cols) {
    return GemmRefusal{"accumulator", accumulator_name(unit) + " takes one kind of scales, " +
                                          name_a + " is " + label(a) + ", " + name_b + " is " +
                                          label(b) + "; accepted on both sides: " + accepted};
  }
  if (spec.scale_order != ScaleOrder::automatic && spec.scale_order != ScaleOrder::in_instruction) {
    return GemmRefusal{"scale_order", std::string(word_for(kScaleOrderNames, spec.scale_order)) +
                                          " with " + accumulator_name(unit) +
                                          "; accepted: automatic, in_instruction"};
  }
  return {};
}

GemmVerdict refuse_interval(const GemmSpec& spec) {
  const int group = spec.accumulator.products();
  if (spec.schedule == Schedule::fast) return {};
  if (spec.promote_interval >= group && spec.promote_interval % group == 0) return {};
  return GemmRefusal{
      "schedule", schedule_name(spec) + " with " + accumulator_name(spec.accumulator) +
                      "; accepted: promote:" + std::to_string(group) + " or another multiple of " +
                      std::to_string(group) + ", or fast"};
}

// `common`: the largest interval along K without a change of scale.
std::string accepted_intervals(const Accumulator& accumulator, std::int64_t common) {
  const int group = accumulator.products();
  const std::string width = std::to_string(common);
  if (common % group != 0) {
    return "no interval is a divisor of " + width + " and a multiple of " + std::to_string(group) +
           ", as " + accumulator_name(accumulator) +
           " needs; accepted: ideal_fp32, ideal_exact, or other tiles";
  }
  const std::string accepted =
      "accepted: promote:" + width + " or promote with another divisor of " + width;
  if (group == 1) return accepted;
  std::string all;
  for (std::int64_t interval = group; interval <= common; interval += group) {
    if (common % interval != 0) continue;
    all += (all.empty() ? "accepted: promote:" : ", promote:") + std::to_string(interval);
  }
  return all;
}

GemmVerdict refuse_width(const GemmSpec& spec, const QuantSpec& operand, const std::string& name,
                         std::int64_t common) {
  const TileShape tile = operand.scale_tile();
  if (tile.cols == 0) return {};
  if (spec.schedule == Schedule::promote && tile.cols % spec.promote_interval == 0) return {};
  return GemmRefusal{"schedule", schedule_name(spec) + ", but the scales of " + name + " (tile " +
                                     tile_name(tile) + ") change inside an accumulation chunk; " +
                                     accepted_intervals(spec.accumulator, common)};
}

GemmVerdict refuse_order(const GemmSpec& spec, bool scales_vary_along_k) {
  if (spec.scale_order == ScaleOrder::automatic) return {};
  if (spec.scale_order == ScaleOrder::in_instruction) {
    return GemmRefusal{"scale_order", "in_instruction with " + accumulator_name(spec.accumulator) +
                                          ", which takes no block scales; accepted: automatic"};
  }
  if (spec.scale_order == ScaleOrder::epilogue) {
    if (!scales_vary_along_k) return {};
    return GemmRefusal{"scale_order",
                       "epilogue applies scales after the sum, but they change along K; accepted: "
                       "automatic, b_then_a, a_then_b, product_first"};
  }
  if (spec.schedule == Schedule::promote) return {};
  return GemmRefusal{"scale_order", std::string(word_for(kScaleOrderNames, spec.scale_order)) +
                                        " scales promoted partial sums, schedule is fast; "
                                        "accepted: automatic, epilogue, or schedule = "
                                        "\"promote:128\""};
}

// A rotation of K cancels in the product only if both operands have it. A clamp's residual is
// multiplied with the other tensor as it was before a clamp.
GemmVerdict refuse_transform(const QuantSpec& a, const QuantSpec& b, const std::string& name_a,
                             const std::string& name_b) {
  if (a.transform.is_compensated() && b.transform.is_compensated()) {
    return GemmRefusal{"transform", name_a + " has " + transform_name(a.transform) + " and " +
                                        name_b + " has " + transform_name(b.transform) +
                                        "; accepted: compensated in one of the two"};
  }
  const auto along_k = [](const QuantSpec& spec) {
    return spec.transform.is_along_k() ? spec.transform : Transform{};
  };
  if (along_k(a) == along_k(b)) return {};
  return GemmRefusal{"transform", name_a + " has " + transform_name(a.transform) + " and " +
                                      name_b + " has " + transform_name(b.transform) +
                                      ", which do not cancel in their product; accepted: the same "
                                      "for both"};
}

GemmVerdict refuse_rest(const GemmSpec& spec) {
  if (spec.split_k < 1 || spec.split_k > 64) {
    return GemmRefusal{"split_k", std::to_string(spec.split_k) + "; accepted: 1 to 64"};
  }
  if (spec.output != DType::bf16 && spec.output != DType::f32) {
    return GemmRefusal{"output", std::string(name_of(spec.output)) + "; accepted: bf16, fp32"};
  }
  return {};
}

}  // namespace

std::optional<GemmRefusal> refuse_gemm(const GemmSpec& spec, const QuantSpec& a, const QuantSpec& b,
                                       const std::string& name_a, const std::string& name_b) {
  const QuantSpec x = multiplied_form(spec.accumulator, a);
  const QuantSpec y = multiplied_form(spec.accumulator, b);
  const std::int64_t common = std::gcd(x.scale_tile().cols, y.scale_tile().cols);
  GemmVerdict refusal = refuse_interval(spec);
  if (!refusal && spec.accumulator.group.block_scales) {
    refusal = refuse_format(spec.accumulator, x, name_a);
    if (!refusal) refusal = refuse_format(spec.accumulator, y, name_b);
    if (!refusal) refusal = refuse_block_scales(spec, x, y, name_a, name_b);
    if (!refusal) refusal = refuse_transform(x, y, name_a, name_b);
    return refusal ? refusal : refuse_rest(spec);
  }
  if (!refusal) refusal = refuse_format(spec.accumulator, x, name_a);
  if (!refusal) refusal = refuse_width(spec, x, name_a, common);
  if (!refusal) refusal = refuse_format(spec.accumulator, y, name_b);
  if (!refusal) refusal = refuse_width(spec, y, name_b, common);
  if (!refusal) refusal = refuse_transform(x, y, name_a, name_b);
  if (!refusal) refusal = refuse_order(spec, common > 0);
  if (!refusal) refusal = refuse_rest(spec);
  return refusal;
}

}  // namespace fp8lab
