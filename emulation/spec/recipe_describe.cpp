// Descriptions of a recipe: the printed table and the warnings.
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>

#include "emulation/spec/estimator.hpp"
#include "emulation/spec/recipe.hpp"
#include "emulation/spec/recipe_names.hpp"

namespace fp8lab {
namespace {

using Row = std::vector<std::string>;

// Pads columns to their widest cell, two spaces apart, without trailing blanks.
std::string aligned(const std::vector<Row>& rows) {
  std::vector<std::size_t> width(rows.front().size(), 0);
  for (const Row& row : rows) {
    for (std::size_t i = 0; i < row.size(); ++i) width[i] = std::max(width[i], row[i].size());
  }
  std::string text;
  for (const Row& row : rows) {
    std::string line = "  ";
    for (std::size_t i = 0; i < row.size(); ++i) line += fmt::format("{:<{}}  ", row[i], width[i]);
    text += line.substr(0, line.find_last_not_of(' ') + 1) + "\n";
  }
  return text;
}

std::string describe_scale(const QuantSpec& spec) {
  if (!spec.has_scale()) return "-";
  if (spec.scale_source == ScaleSource::static_scale) return fmt::format("{}", spec.static_scale);
  std::string text(word_for(kScaleFormatNames, spec.scale.format));
  const numerics::ScaleRule& rule = spec.scale;
  if (rule.format == numerics::ScaleFormat::nv_two_level) {
    if (rule.outer == numerics::OuterScale::row) text += " by row";
    if (rule.four_over_six == numerics::FourOverSix::none) return text;
    return text + fmt::format(" 4over6 {}", word_for(kFourOverSixNames, rule.four_over_six));
  }
  if (rule.is_power_of_two()) {
    text += fmt::format(" {}", word_for(kScaleRoundingNames, rule.rounding));
  }
  text += fmt::format(" {}", word_for(kScaleArithmeticNames, rule.arithmetic));
  const bool adds = rule.epsilon_mode == numerics::EpsilonMode::add;
  if (rule.amax_epsilon != 0.0f) {
    text += fmt::format(" eps {}{}", adds ? "+" : "", rule.amax_epsilon);
  }
  if (rule.encode_limit == numerics::EncodeLimit::bf16) text += " limit bf16";
  if (rule.scale_overflow == numerics::ScaleOverflow::nan) text += " overflow nan";
  if (spec.scale.margin != 0) text += fmt::format(" margin {}", spec.scale.margin);
  if (rule.deviations != 0.0f) text += " of " + statistic_name(rule.deviations);
  if (rule.factor != 1.0f) text += fmt::format(" times {}", rule.factor);
  return text;
}

std::string describe_source(const QuantSpec& spec) {
  if (spec.scale_source != ScaleSource::delayed) {
    return std::string(word_for(kScaleSourceNames, spec.scale_source));
  }
  const std::string text = fmt::format(
      "delayed {} of {}", word_for(kAmaxAlgorithmNames, spec.amax_algorithm), spec.history_length);
  return spec.warmup_steps == 0 ? text
                                : text + fmt::format(", {} steps current", spec.warmup_steps);
}

std::string describe_rounding(const QuantSpec& spec) {
  const std::string name = rounding_name(spec.rounding, spec.random_bits);
  return spec.via == numerics::kFP32 ? name : fmt::format("{} via {}", name, format_name(spec.via));
}

// Returns the source of a slot's codes.
std::string describe_origin(Slot slot, const QuantSpec& spec) {
  if (spec.orientation_source != OrientationSource::high_precision) {
    return std::string(word_for(kOrientationSourceNames, spec.orientation_source));
  }
  if (is_weight(slot)) {
    return fmt::format("{} weight", word_for(kWeightSourceNames, spec.weight_source));
  }
  return "high_precision";
}

std::string describe(const LinearRecipe& recipe) {
  std::vector<Row> slots = {{"operand", "format", "tile", "scale", "source", "rounding", "overflow",
                             "transform", "made from"}};
  for (const Slot slot : kSlots) {
    const QuantSpec& spec = recipe.slot(slot);
    const bool cast = spec.is_cast();
    slots.push_back(
        {slot_name(slot), format_name(spec.format), spec.has_scale() ? tile_name(spec.tile) : "-",
         describe_scale(spec), describe_source(spec), cast ? describe_rounding(spec) : "-",
         cast ? std::string(word_for(kOverflowNames, spec.overflow)) : "-",
         spec.transform ? transform_name(spec.transform) : "-", describe_origin(slot, spec)});
  }
  std::vector<Row> gemms = {
      {"gemm", "accumulator", "schedule", "scale order", "split K", "output"}};
  for (const GemmRole role : kGemmRoles) {
    const GemmSpec& spec = recipe.gemm(role);
    gemms.push_back({gemm_role_name(role), accumulator_name(spec.accumulator), schedule_name(spec),
                     std::string(word_for(kScaleOrderNames, spec.scale_order)),
                     std::to_string(spec.split_k),
                     std::string(word_for(kStorageNames, spec.output))});
  }
  std::string text = aligned(slots) + aligned(gemms);
  for (const Slot slot : {Slot::fprop_x, Slot::fprop_w}) {
    const numerics::Estimator& estimator = recipe.slot(slot).estimator;
    if (!estimator) continue;
    text += fmt::format("  d{} times the estimator of {}: {}\n", tensor_name(tensor_of(slot)),
                        slot_name(slot), estimator_name(estimator));
  }
  return text;
}

std::string describe_saved(const Recipe& recipe) {
  std::vector<Row> rows = {{"saved activation", "format", "tile", "scale", "rounding"}};
  for (const SavedActivation& saved : recipe.saved_activations) {
    const QuantSpec& spec = saved.spec;
    const std::string name = saved.name.empty() ? "others" : saved.name;
    if (saved.is_recomputed) {
      rows.push_back({name, "recomputed", "-", "-", "-"});
      continue;
    }
    rows.push_back({name, format_name(spec.format), spec.has_scale() ? tile_name(spec.tile) : "-",
                    describe_scale(spec),
                    spec.is_cast() ? std::string(word_for(kRoundingNames, spec.rounding)) : "-"});
  }
  return aligned(rows);
}

std::string describe_attention(const AttentionRecipe& attention) {
  std::vector<Row> rows = {
      {"attention", "format", "tile", "scale", "source", "rounding", "transform"}};
  for (const AttentionSlot slot : kAttentionSlots) {
    if (!attention.has(slot)) continue;
    const AttentionQuantizer& quantizer = *attention.slots[slot];
    const QuantSpec& spec = quantizer.spec;
    const std::string tile = quantizer.tile == AttentionTile::given
                                 ? tile_name(spec.tile)
                                 : std::string(name_of(quantizer.tile));
    rows.push_back({std::string(name_of(slot)), format_name(spec.format),
                    spec.has_scale() ? tile : "-", describe_scale(spec), describe_source(spec),
                    rounding_name(spec.rounding, spec.random_bits),
                    spec.transform ? transform_name(spec.transform) : "-"});
  }
  return aligned(rows);
}

void warn_of_range(Slot slot, const QuantSpec& spec, std::vector<std::string>& out) {
  using numerics::ScaleRounding;
  const std::string name = slot_name(slot);
  if (spec.is_quantized() && !spec.has_scale()) {
    out.push_back(fmt::format(
        "{}: {} without a scale reaches only 2^{} to 2^{}; watch the "
        "underflow and saturation fractions",
        name, format_name(spec.format), spec.format.min_exponent() - spec.format.mantissa_bits,
        spec.format.max_exponent()));
  }
  if (!spec.has_scale()) return;
  if (spec.scale_source == ScaleSource::delayed && !is_second_orientation(slot)) {
    out.push_back(
        fmt::format("{}: delayed scaling knows only past steps; a growing amax saturates "
                    "until the history follows{}",
                    name, spec.warmup_steps == 0 ? ", and the first step has scale 1" : ""));
  }
  if (spec.scale_source == ScaleSource::static_scale) {
    out.push_back(fmt::format("{}: the static scale does not follow the data", name));
  }
  const ScaleRounding rounding = spec.scale.rounding;
  const bool rounds_down = rounding == ScaleRounding::nearest ||
                           rounding == ScaleRounding::ocp_floor ||
                           rounding == ScaleRounding::even || rounding == ScaleRounding::floor;
  // A factor of 4/3 compensates for floor(log2 amax) in FP4.
  const bool may_saturate = spec.scale.is_power_of_two() && rounds_down && spec.scale.factor <= 1;
  if (spec.scale_source == ScaleSource::current && may_saturate) {
    out.push_back(
        fmt::format("{}: scale rounding {} may round the scale down, so the largest "
                    "values of a tile saturate",
                    name, word_for(kScaleRoundingNames, rounding)));
  }
}

void warn_of_tiles(Slot slot, const QuantSpec& spec, const OperandShape& shape,
                   std::vector<std::string>& out) {
  if (!spec.has_scale() || spec.tile.is_tensor()) return;
  const auto [rows, k] = shape;
  const std::string name = slot_name(slot);
  if (tensor_of(slot) == Tensor::dy && spec.scale.amax_epsilon > 1e-6f) {
    out.push_back(
        fmt::format("{}: gradients are often below amax_epsilon {}; such tiles use only "
                    "the low codes and then flush to zero",
                    name, spec.scale.amax_epsilon));
  }
  if (spec.tile.cols > 0 && k % spec.tile.cols != 0) {
    out.push_back(
        fmt::format("{}: K = {} is not a multiple of {}; the last tile of each row has {} "
                    "elements",
                    name, k, spec.tile.cols, k % spec.tile.cols));
  }
  if (spec.tile.rows > 1 && rows % spec.tile.rows != 0) {
    out.push_back(fmt::format("{}: {} rows are not a multiple of {}; the last tile is short", name,
                              rows, spec.tile.rows));
  }
  if (spec.tile_rows(rows) * spec.tile_cols(k) == 1) {
    out.push_back(fmt::format("{}: one {} tile covers the whole ({}, {}) operand", name,
                              tile_name(spec.tile), rows, k));
  }
}

void warn_of_transform(Slot slot, const QuantSpec& spec, const OperandShape& shape,
                       std::vector<std::string>& out) {
  const std::string refusal = transform_refusal(spec.transform, shape.rows, shape.k);
  if (!refusal.empty()) out.push_back(fmt::format("{}: {}", slot_name(slot), refusal));
}

void warn_of_accumulation(const LinearRecipe& recipe, GemmRole role, std::int64_t k,
                          std::vector<std::string>& out) {
  const GemmSpec& gemm = recipe.gemm(role);
  const std::string name = gemm_role_name(role);
  const numerics::GroupModel& group = gemm.accumulator.group;
  const bool short_sums = gemm.accumulator.unit == numerics::ChainUnit::fused_group &&
                          gemm.accumulator.takes_codes() && group.output_mantissa_bits < 20;
  if (short_sums && gemm.schedule == Schedule::fast && k > 1024) {
    out.push_back(fmt::format(
        "{}: one chain over K = {} keeps {} mantissa bits; promote:128 bounds the error", name, k,
        group.output_mantissa_bits));
  }
  if (gemm.accumulator != Accumulator::sm90_wgmma_fp8) return;
  const QuantSpec &a = recipe.a(role), &b = recipe.b(role);
  if (k % 16 != 0) {
    out.push_back(
        fmt::format("{}: K = {} is not a multiple of 16, which the FP8 GEMMs of the H200 "
                    "need",
                    name, k));
  }
  if (gemm.schedule == Schedule::promote && gemm.promote_interval != 128) {
    out.push_back(
        fmt::format("{}: {} is a schedule of our own kernels; cuBLASLt promotes every 128", name,
                    schedule_name(gemm)));
  }
  if (a.format == numerics::kE5M2 && b.format == numerics::kE5M2) {
    out.push_back(fmt::format("{}: cuBLASLt refuses e5m2 by e5m2", name));
  }
  const bool blocks = a.has_scale() && b.has_scale() && a.tile.rows > 1 && b.tile.rows > 1;
  if (blocks) {
    out.push_back(fmt::format("{}: cuBLASLt refuses {} by {} scales", name, tile_name(a.tile),
                              tile_name(b.tile)));
  }
}

}  // namespace

std::vector<std::string> warnings(const LinearRecipe& recipe, std::int64_t tokens, std::int64_t in,
                                  std::int64_t out) {
  std::vector<std::string> found;
  for (const GemmRole role : kGemmRoles) {
    for (const Slot slot : {a_slot(role), b_slot(role)}) {
      const QuantSpec& spec = recipe.slot(slot);
      const OperandShape shape = operand_shape(slot, tokens, in, out);
      warn_of_range(slot, spec, found);
      warn_of_transform(slot, spec, shape, found);
      warn_of_tiles(slot, spec, shape, found);
    }
    warn_of_accumulation(recipe, role, operand_shape(a_slot(role), tokens, in, out).k, found);
  }
  return found;
}

Evidence evidence(const Recipe& recipe) {
  Evidence weakest = Evidence::measured;
  const auto add = [&](const LinearRecipe& linear) {
    for (const GemmSpec& gemm : linear.gemms) {
      const TensorCoreProfile* const profile = profile_of(gemm.accumulator);
      weakest = std::max(weakest, profile != nullptr ? profile->evidence : Evidence::definition);
    }
  };
  add(recipe.linear);
  if (!recipe.keep_high_precision.empty()) add(recipe.high_precision);
  for (const RecipeOverride& exception : recipe.overrides) add(exception.recipe);
  return weakest;
}

std::string describe(const Recipe& recipe) {
  std::string text = fmt::format("recipe {} ({})\n", recipe.name, recipe.hash);
  if (!recipe.summary.empty()) text += recipe.summary + "\n";
  if (!recipe.source.empty()) text += "source: " + recipe.source + "\n";
  text += fmt::format("activations {}\n", word_for(kStorageNames, recipe.activation_dtype));
  text += describe(recipe.linear);
  if (!recipe.keep_high_precision.empty()) {
    text += fmt::format("kept in {}: {}\n", word_for(kStorageNames, recipe.activation_dtype),
                        fmt::join(recipe.keep_high_precision, ", "));
  }
  for (const RecipeOverride& exception : recipe.overrides) {
    text += fmt::format("layers matching {}\n", exception.match) + describe(exception.recipe);
  }
  if (!recipe.saved_activations.empty()) text += describe_saved(recipe);
  if (!recipe.attention.empty()) text += describe_attention(recipe.attention);
  return text;
}

}  // namespace fp8lab
