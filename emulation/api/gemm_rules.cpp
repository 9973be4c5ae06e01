#include "emulation/api/gemm_rules.hpp"

#include <numeric>

#include "emulation/api/recipe_names.hpp"
#include "emulation/numerics/codec.hpp"

namespace fp8lab {
namespace {

using numerics::FormatSpec;
using Refusal = std::optional<GemmRefusal>;

// Products that one instruction sums exactly (numerics.md section 3): a chunk must be whole ones.
int group_size(Accumulator accumulator) {
  if (is_fp8(accumulator)) return 32;
  return accumulator == Accumulator::sm90_bf16 ? 16 : 1;
}

Refusal refuse_format(Accumulator accumulator, const QuantSpec& operand, const std::string& name) {
  const FormatSpec& format = operand.format;
  const std::string found = accumulator_name(accumulator) + " cannot multiply " + name +
                            ", which is " + format_name(format) +
                            (operand.transform.is_expansion() ? " expanded" : "") +
                            "; accepted with it: ";
  const bool is_carried =
      format == numerics::kE5M2 || numerics::holds_values(numerics::kE4M3, format);
  if (is_fp8(accumulator) && (!is_carried || operand.transform.is_expansion())) {
    return GemmRefusal{"accumulator",
                       found + "sm90_bf16 (formats bf16 holds), ideal_fp32, ideal_exact"};
  }
  if (accumulator == Accumulator::sm90_bf16 && !numerics::holds_values(numerics::kBF16, format)) {
    return GemmRefusal{"accumulator", found + "ideal_fp32, ideal_exact"};
  }
  return {};
}

Refusal refuse_interval(const GemmSpec& spec) {
  const int group = group_size(spec.accumulator);
  if (spec.schedule == Schedule::fast) return {};
  if (spec.promote_interval >= group && spec.promote_interval % group == 0) return {};
  return GemmRefusal{"schedule", schedule_name(spec) + " with " +
                                     accumulator_name(spec.accumulator) +
                                     "; accepted: promote:G with G a positive multiple of " +
                                     std::to_string(group) + ", or fast"};
}

// `common`: the largest interval in which no scale changes.
std::string accepted_intervals(Accumulator accumulator, std::int64_t common) {
  const int group = group_size(accumulator);
  const std::string width = std::to_string(common);
  if (common % group != 0) {
    return "no interval is a divisor of " + width + " and a multiple of " + std::to_string(group) +
           ", as " + accumulator_name(accumulator) +
           " needs; accepted: ideal_fp32, ideal_exact, or other tiles";
  }
  const std::string accepted = "accepted: promote:G with G a divisor of " + width;
  return group == 1 ? accepted : accepted + " and a multiple of " + std::to_string(group);
}

Refusal refuse_width(const GemmSpec& spec, const QuantSpec& operand, const std::string& name,
                     std::int64_t common) {
  const TileShape tile = operand.scale_tile();
  if (tile.cols == 0) return {};
  if (spec.schedule == Schedule::promote && tile.cols % spec.promote_interval == 0) return {};
  return GemmRefusal{"schedule", schedule_name(spec) + ", but the scales of " + name + " (tile " +
                                     tile_name(tile) + ") change inside an accumulation chunk; " +
                                     accepted_intervals(spec.accumulator, common)};
}

Refusal refuse_order(const GemmSpec& spec, bool scales_vary_along_k) {
  if (spec.scale_order == ScaleOrder::automatic) return {};
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
                                        "\"promote:G\""};
}

// A rotation of K cancels in the product only when both operands have it.
Refusal refuse_transform(const QuantSpec& a, const QuantSpec& b, const std::string& name_a,
                         const std::string& name_b) {
  if (a.transform == b.transform) return {};
  return GemmRefusal{"transform", name_a + " has " + transform_name(a.transform) + " and " +
                                      name_b + " has " + transform_name(b.transform) +
                                      ", which do not cancel in their product; accepted: the same "
                                      "for both"};
}

Refusal refuse_rest(const GemmSpec& spec) {
  if (spec.split_k < 1 || spec.split_k > 64) {
    return GemmRefusal{"split_k", std::to_string(spec.split_k) + "; accepted: 1 to 64"};
  }
  if (spec.output != DType::bf16 && spec.output != DType::f32) {
    return GemmRefusal{"output", std::string(name_of(spec.output)) + "; accepted: bf16, fp32"};
  }
  return {};
}

}  // namespace

bool is_fp8(Accumulator accumulator) {
  return accumulator == Accumulator::sm90_wgmma_fp8 ||
         accumulator == Accumulator::sm90_mma_sync_fp8;
}

std::optional<GemmRefusal> refuse_gemm(const GemmSpec& spec, const QuantSpec& a, const QuantSpec& b,
                                       const std::string& name_a, const std::string& name_b) {
  const QuantSpec x = multiplied_form(spec.accumulator, a);
  const QuantSpec y = multiplied_form(spec.accumulator, b);
  const std::int64_t common = std::gcd(x.scale_tile().cols, y.scale_tile().cols);
  Refusal refusal = refuse_interval(spec);
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
