#include "emulation/spec/gemm_rules.hpp"

#include <fmt/format.h>

#include <numeric>
#include <utility>

#include "emulation/spec/recipe_names.hpp"
#include "emulation/spec/tensor_core.hpp"

namespace fp8lab {
namespace {

using numerics::FormatSpec;
using GemmVerdict = std::optional<ErrorFields>;

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
  return ErrorFields{.key = "accumulator",
                     .found = accumulator_name(accumulator),
                     .reason = fmt::format("cannot multiply {}, which is {}{}", name,
                                           format_name(format), (expanded ? " expanded" : "")),
                     .accepted = accepted};
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
  const std::string remedy = "a factor of the whole tensor belongs into alpha";
  for (const auto& [operand, name] : {std::pair(&a, &name_a), std::pair(&b, &name_b)}) {
    if (unit.takes_scales(*operand)) continue;
    return ErrorFields{
        .key = "accumulator",
        .found = accumulator_name(unit),
        .reason = fmt::format("takes block scales and {} is {}", *name, label(*operand)),
        .accepted = accepted,
        .remedy = remedy};
  }
  if (a.tile.cols != b.tile.cols) {
    return ErrorFields{.key = "accumulator",
                       .found = accumulator_name(unit),
                       .reason = fmt::format("takes one kind of scales, {} is {}, {} is {}", name_a,
                                             label(a), name_b, label(b)),
                       .accepted = "on both sides, " + accepted,
                       .remedy = remedy};
  }
  if (spec.scale_order != ScaleOrder::automatic && spec.scale_order != ScaleOrder::in_instruction) {
    return ErrorFields{.key = "scale_order",
                       .found = fmt::to_string(word_for(kScaleOrderNames, spec.scale_order)),
                       .reason = fmt::format("with {}", accumulator_name(unit)),
                       .accepted = "automatic, in_instruction"};
  }
  return {};
}

GemmVerdict refuse_interval(const GemmSpec& spec) {
  const int group = spec.accumulator.products();
  if (spec.schedule == Schedule::fast) return {};
  if (spec.promote_interval >= group && spec.promote_interval % group == 0) return {};
  return ErrorFields{
      .key = "schedule",
      .found = schedule_name(spec),
      .reason = fmt::format("with {}", accumulator_name(spec.accumulator)),
      .accepted = fmt::format("promote:{} or another multiple of {}, or fast", group, group)};
}

// `common`: the largest interval along K without a change of scale, a multiple of the group.
std::string accepted_intervals(int group, std::int64_t common) {
  if (group == 1) {
    return fmt::format("promote:{} or promote with another divisor of {}", common, common);
  }
  std::string all;
  for (std::int64_t interval = group; interval <= common; interval += group) {
    if (common % interval != 0) continue;
    all += (all.empty() ? "promote:" : ", promote:") + std::to_string(interval);
  }
  return all;
}

GemmVerdict refuse_width(const GemmSpec& spec, const QuantSpec& operand, const std::string& name,
                         std::int64_t common) {
  const TileShape tile = operand.scale_tile();
  if (tile.cols == 0) return {};
  if (spec.schedule == Schedule::promote && tile.cols % spec.promote_interval == 0) return {};
  const int group = spec.accumulator.products();
  ErrorFields refusal{
      .key = "schedule",
      .found = schedule_name(spec),
      .reason = fmt::format(", but the scales of {} (tile {}) change inside an accumulation chunk",
                            name, tile_name(tile))};
  if (common % group == 0) {
    refusal.accepted = accepted_intervals(group, common);
  } else {
    refusal.reason +=
        fmt::format("; no interval is a divisor of {} and a multiple of {}, as {} needs", common,
                    group, accumulator_name(spec.accumulator));
    refusal.accepted = "ideal_fp32, ideal_exact, or other tiles";
  }
  return refusal;
}

GemmVerdict refuse_order(const GemmSpec& spec, bool scales_vary_along_k) {
  if (spec.scale_order == ScaleOrder::automatic) return {};
  if (spec.scale_order == ScaleOrder::in_instruction) {
    return ErrorFields{.key = "scale_order",
                       .reason = fmt::format("in_instruction with {}, which takes no block scales",
                                             accumulator_name(spec.accumulator)),
                       .accepted = "automatic"};
  }
  if (spec.scale_order == ScaleOrder::epilogue) {
    if (!scales_vary_along_k) return {};
    return ErrorFields{.key = "scale_order",
                       .reason = "epilogue applies scales after the sum, but they change along K",
                       .accepted = "automatic, b_then_a, a_then_b, product_first"};
  }
  if (spec.schedule == Schedule::promote) return {};
  return ErrorFields{.key = "scale_order",
                     .found = fmt::to_string(word_for(kScaleOrderNames, spec.scale_order)),
                     .reason = "scales promoted partial sums, schedule is fast",
                     .accepted = "automatic, epilogue, or schedule = \"promote:128\""};
}

// A rotation of K cancels in the product only if both operands have it. A clamp's residual is
// multiplied with the other tensor as it was before a clamp.
GemmVerdict refuse_transform(const QuantSpec& a, const QuantSpec& b, const std::string& name_a,
                             const std::string& name_b) {
  const auto both = [&] {
    return fmt::format("{} has {} and {} has {}", name_a, transform_name(a.transform), name_b,
                       transform_name(b.transform));
  };
  if (a.transform.is_compensated() && b.transform.is_compensated()) {
    return ErrorFields{
        .key = "transform", .reason = both(), .accepted = "compensated in one of the two"};
  }
  const auto along_k = [](const QuantSpec& spec) {
    return spec.transform.is_along_k() ? spec.transform : Transform{};
  };
  if (along_k(a) == along_k(b)) return {};
  return ErrorFields{.key = "transform",
                     .reason = both() + ", which do not cancel in their product",
                     .accepted = "the same for both"};
}

// The product of a clamp's residual is added to the stored product, without its factor.
GemmVerdict refuse_factor(const GemmSpec& spec, const QuantSpec& a, const QuantSpec& b,
                          const std::string& name_a, const std::string& name_b) {
  if (spec.alpha == 1.0f) return {};
  for (const auto& [operand, name] : {std::pair(&a, &name_a), std::pair(&b, &name_b)}) {
    if (!operand->transform.is_compensated()) continue;
    return ErrorFields{
        .key = fmt::format("transform of {}", *name),
        .found = transform_name(operand->transform),
        .reason = fmt::format("with a product that the model multiplies by {}", spec.alpha),
        .accepted = "a clamp without compensation, or linear_alpha = \"one\""};
  }
  return {};
}

GemmVerdict refuse_rest(const GemmSpec& spec) {
  if (spec.split_k < 1 || spec.split_k > 64) {
    return ErrorFields{
        .key = "split_k", .found = fmt::to_string(spec.split_k), .accepted = "1 to 64"};
  }
  if (spec.output != DType::bf16 && spec.output != DType::f32) {
    return ErrorFields{
        .key = "output", .found = fmt::to_string(name_of(spec.output)), .accepted = "bf16, fp32"};
  }
  return {};
}

GemmVerdict first_refusal(const GemmSpec& spec, const QuantSpec& a, const QuantSpec& b,
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
  if (!refusal) refusal = refuse_factor(spec, x, y, name_a, name_b);
  if (!refusal) refusal = refuse_rest(spec);
  return refusal;
}

}  // namespace

std::optional<ErrorFields> refuse_gemm(const GemmSpec& spec, const QuantSpec& a, const QuantSpec& b,
                                       const std::string& name_a, const std::string& name_b) {
  GemmVerdict refusal = first_refusal(spec, a, b, name_a, name_b);
  if (refusal) refusal->verb = ":";
  return refusal;
}

}  // namespace fp8lab
