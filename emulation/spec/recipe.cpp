#include "emulation/spec/recipe.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <optional>
#include <string_view>
#include <utility>

#include "emulation/base/input_error.hpp"
#include "emulation/numerics/codec.hpp"
#include "emulation/spec/estimator.hpp"
#include "emulation/spec/gemm_rules.hpp"
#include "emulation/spec/quant_rules.hpp"
#include "emulation/spec/recipe_names.hpp"
#include "emulation/spec/spec_fields.hpp"

namespace fp8lab {
namespace {

std::vector<std::string_view> split_at_dots(std::string_view text) {
  std::vector<std::string_view> parts;
  std::size_t begin = 0;
  while (true) {
    const std::size_t dot = text.find('.', begin);
    parts.push_back(text.substr(begin, dot - begin));
    if (dot == std::string_view::npos) return parts;
    begin = dot + 1;
  }
}

// Matches one part of a name against one part of a pattern; "*" spans any characters. The text
// after a star is matched at its first occurrence: if the rest matches anywhere, it matches there.
bool part_matches(std::string_view pattern, std::string_view text) {
  std::size_t star = pattern.find('*');
  if (star == std::string_view::npos) return pattern == text;
  if (text.substr(0, star) != pattern.substr(0, star)) return false;
  text.remove_prefix(star);
  pattern.remove_prefix(star + 1);
  while ((star = pattern.find('*')) != std::string_view::npos) {
    const std::string_view piece = pattern.substr(0, star);
    const std::size_t place = text.find(piece);
    if (place == std::string_view::npos) return false;
    text.remove_prefix(place + piece.size());
    pattern.remove_prefix(star + 1);
  }
  return text.ends_with(pattern);
}

// Matches a pattern without braces.
bool plain_pattern_matches(std::string_view pattern, std::string_view name, int layer_count) {
  const std::vector<std::string_view> wanted = split_at_dots(pattern);
  const std::vector<std::string_view> parts = split_at_dots(name);
  if (wanted.size() > parts.size()) return false;
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    std::string expected(wanted[i]);
    if (i == 1 && wanted[0] == "layers") {
      if (expected == "first") expected = "0";
      if (expected == "last") expected = std::to_string(layer_count - 1);
    }
    if (!part_matches(expected, parts[i])) return false;
  }
  return true;
}

/// `fields` are a sentence about the key.
[[noreturn]] void refuse(const std::string& where, const std::string& key, ErrorFields fields) {
  fields.where = where;
  fields.key = key;
  fields.verb = ":";
  throw RecipeError(std::move(fields));
}

// Checks for quantizers that a backend could compute but no recipe means, and for impossible ones.
void validate_quantizer(const QuantSpec& spec, const std::string& where, const std::string& key) {
  if (spec.format.bits() < 3) {
    refuse(where, key + ".format",
           {.found = fmt::format("'{}'", format_name(spec.format)),
            .reason = "cannot be an operand",
            .accepted = "signed formats of at least 3 bits"});
  }
  if (const std::optional<ErrorFields> refusal = refuse_quantizer(spec)) {
    refuse(where, key + "." + refusal->key, *refusal);
  }
  const TileShape& tile = spec.tile;
  if (!tile.is_tensor() && !tile.is_row() && (tile.rows < 1 || tile.cols < 1)) {
    refuse(where, key + ".tile", {.accepted = "tensor, row, or RxC with both extents at least 1"});
  }
  if (!tile.is_tensor() && spec.scale_source == ScaleSource::none) {
    refuse(where, key + ".tile",
           {.found = tile_name(tile),
            .reason = "without a scale",
            .accepted = "tensor, or another scale_source"});
  }
  for (const Field<QuantSpec>& field : quant_fields()) {
    QuantSpec trial = spec;
    if (!field.is_text && !field.set(trial, field.get(spec))) {
      refuse(where, key + "." + field.word, {.accepted = field.accepted});
    }
  }
}

void validate_orientation(const LinearRecipe& recipe, Slot slot, const std::string& where) {
  const QuantSpec& spec = recipe.slot(slot);
  const std::string key = "slots." + slot_name(slot);
  if (!is_weight(slot) && spec.weight_source != WeightSource::bf16) {
    refuse(where, key + ".weight_source",
           {.reason = "only w has master weights", .accepted = "bf16"});
  }
  if (spec.orientation_source == OrientationSource::high_precision) return;
  const Slot first = first_orientation(tensor_of(slot));
  const std::string source(word_for(kOrientationSourceNames, spec.orientation_source));
  if (!is_second_orientation(slot)) {
    refuse(where, key + ".orientation_source",
           {.found = source,
            .reason = "is for the second orientations dgrad.w, wgrad.dy and wgrad.x",
            .accepted = "high_precision"});
  }
  if (!recipe.slot(first).is_quantized()) {
    refuse(where, key + ".orientation_source",
           {.found = source,
            .reason = fmt::format(", but {} is {}", slot_name(first),
                                  format_name(recipe.slot(first).format)),
            .accepted = fmt::format("high_precision, or an FP8 {}", slot_name(first))});
  }
  if (spec.orientation_source == OrientationSource::requantized && !spec.is_quantized()) {
    refuse(where, key + ".orientation_source",
           {.reason = fmt::format("requantized with format {}", format_name(spec.format)),
            .accepted = "dequantized, or a format of at most 8 bits"});
  }
  if (spec.orientation_source == OrientationSource::dequantized && spec.is_quantized()) {
    refuse(where, key + ".orientation_source",
           {.reason = fmt::format("dequantized values are not quantized again, format is {}",
                                  format_name(spec.format)),
            .accepted = "format = \"bf16\" or \"fp32\", or requantized"});
  }
  if (spec.orientation_source == OrientationSource::transformed &&
      !recipe.slot(first).transform.is_along_k()) {
    refuse(where, key + ".orientation_source",
           {.reason = fmt::format("transformed, but the transform of {} is {}", slot_name(first),
                                  transform_name(recipe.slot(first).transform)),
            .accepted =
                fmt::format("requantized, or a Hadamard transform along K or a smoothing of {}",
                            slot_name(first))});
  }
}

// Smoothing factors come from the unquantized tensors of a GEMM. So a second orientation is made
// from the tensor itself, or from the codes of the first one in its smoothed space (transformed).
void validate_smoothing(const LinearRecipe& recipe, Slot slot, const std::string& where) {
  const QuantSpec& spec = recipe.slot(slot);
  if (spec.orientation_source == OrientationSource::high_precision) return;
  const Slot first = first_orientation(tensor_of(slot));
  for (const Slot smoothed : {slot, first}) {
    if (!recipe.slot(smoothed).transform.is<Smoothing>()) continue;
    if (smoothed == first && spec.orientation_source == OrientationSource::transformed) continue;
    refuse(where, "slots." + slot_name(slot) + ".orientation_source",
           {.found = fmt::to_string(word_for(kOrientationSourceNames, spec.orientation_source)),
            .reason = fmt::format(", but {} has the transform {}", slot_name(smoothed),
                                  transform_name(recipe.slot(smoothed).transform)),
            .accepted = "high_precision"});
  }
}

// After the GEMM the residual of a clamp is computed from the unquantized tensor.
void validate_compensation(const LinearRecipe& recipe, Slot slot, const std::string& where) {
  const QuantSpec& spec = recipe.slot(slot);
  if (!spec.transform.is_compensated()) return;
  if (spec.orientation_source == OrientationSource::high_precision) return;
  refuse(where, "slots." + slot_name(slot) + ".orientation_source",
         {.found = fmt::to_string(word_for(kOrientationSourceNames, spec.orientation_source)),
          .reason = fmt::format("with the transform {}", transform_name(spec.transform)),
          .accepted = "high_precision, or a clamp without compensation"});
}

// A transform undone in the product would be undone in the bias as well. The rows of a second
// orientation may be in one space only.
void validate_left(const LinearRecipe& recipe, Slot slot, const std::string& where) {
  const QuantSpec& spec = recipe.slot(slot);
  if (!spec.transform.is_left()) return;
  const std::string key = "slots." + slot_name(slot) + ".transform";
  const std::string name = transform_name(spec.transform);
  if (gemm_role(slot) == GemmRole::fprop) {
    refuse(where, key,
           {.found = name,
            .reason = "is taken out of the product, which may get a bias",
            .accepted = "in dgrad, wgrad"});
  }
  if (spec.orientation_source == OrientationSource::transformed) {
    refuse(where, key,
           {.found = name,
            .reason = "of rows that are transformed already, orientation_source is transformed",
            .accepted = "a transform along K"});
  }
}

// An element's factor depends on its scaled value, and must meet the gradient in the same space.
void validate_estimator(const LinearRecipe& recipe, Slot slot, const std::string& where) {
  const QuantSpec& spec = recipe.slot(slot);
  if (!spec.estimator) return;
  const std::string key = "slots." + slot_name(slot) + ".estimator";
  const std::string name = estimator_name(spec.estimator);
  if (!is_of_forward_pass(slot)) {
    refuse(where, key,
           {.found = name,
            .reason = "is for x and w of the forward pass",
            .accepted = "in fprop.x, fprop.w"});
  }
  if (spec.has_codebooks() || spec.transform.is<Clamp>()) {
    refuse(where, key,
           {.found = name,
            .reason = "needs codes of fixed values of what is not clamped",
            .accepted = "ste, or another format and transform"});
  }
  const GemmRole role = gradient_role(slot);
  const Slot b = b_slot(role);
  const bool is_in_space = recipe.slot(b).orientation_source == OrientationSource::transformed;
  if (spec.transform && !is_in_space) {
    refuse(where, key,
           {.found = name,
            .reason = fmt::format("is in the space of {}, the product of {} is not",
                                  transform_name(spec.transform), gemm_role_name(role)),
            .accepted = fmt::format(
                "ste, transform = \"none\", or orientation_source = \"transformed\" in {}",
                slot_name(b))});
  }
  for (const Slot operand : {a_slot(role), b}) {
    const QuantSpec& other = recipe.slot(operand);
    const bool is_transformed =
        operand != b && other.orientation_source == OrientationSource::transformed;
    if (!other.transform.is_left() && !is_transformed) continue;
    refuse(where, key,
           {.found = name,
            .reason = fmt::format(
                "comes before the transform of the rows of {} is taken out of the product",
                slot_name(operand)),
            .accepted = fmt::format("ste, or rows of {} without a transform", slot_name(operand))});
  }
}

void validate_gemm(const LinearRecipe& recipe, GemmRole role, const std::string& where) {
  const GemmSpec& gemm = recipe.gemm(role);
  const std::string key = "gemm." + gemm_role_name(role);
  const Slot a = a_slot(role), b = b_slot(role);
  const std::optional<ErrorFields> refusal =
      refuse_gemm(gemm, recipe.slot(a), recipe.slot(b), slot_name(a), slot_name(b));
  if (refusal) {
    const bool of_slots = refusal->key == "transform";
    const std::string table =
        of_slots ? "slots." + slot_name(recipe.slot(a).transform ? a : b) : key;
    refuse(where, table + "." + refusal->key, *refusal);
  }
}

}  // namespace

bool layer_pattern_matches(const std::string& pattern, const std::string& name, int layer_count) {
  const std::size_t open = pattern.find('{');
  const std::size_t close = pattern.find('}', open);
  if (open == std::string::npos || close == std::string::npos) {
    return plain_pattern_matches(pattern, name, layer_count);
  }
  const std::string before = pattern.substr(0, open);
  const std::string after = pattern.substr(close + 1);
  std::size_t begin = open + 1;
  while (begin <= close) {
    std::size_t comma = pattern.find(',', begin);
    if (comma == std::string::npos || comma > close) comma = close;
    const std::string choice = pattern.substr(begin, comma - begin);
    const std::string expanded = std::string(before).append(choice).append(after);
    if (layer_pattern_matches(expanded, name, layer_count)) return true;
    begin = comma + 1;
  }
  return false;
}

const SavedActivation* Recipe::saved_activation(const std::string& activation) const {
  const SavedActivation* of_all = nullptr;
  for (const SavedActivation& row : saved_activations) {
    if (row.name == activation) return &row;
    if (row.name.empty()) of_all = &row;
  }
  return of_all;
}

std::optional<ErrorFields> refuse_saved_activation(const QuantSpec& spec) {
  if (spec.scale_source == ScaleSource::delayed) {
    return ErrorFields{.reason = "a saved activation is scaled by its own amax",
                       .accepted = "no delayed scale"};
  }
  if (spec.transform && !spec.transform.is<RangeExpansion>()) {
    return ErrorFields{.found = "transform " + transform_name(spec.transform),
                       .reason = "is for operands of a GEMM",
                       .accepted = "expand, or none"};
  }
  std::optional<ErrorFields> of_operands = refuse_quantizer(spec);
  if (of_operands) of_operands->key.clear();
  return of_operands;
}

const LinearRecipe& Recipe::for_layer(const std::string& layer_name, int layer_count) const {
  if (layer_name.ends_with(".lora_a") || layer_name.ends_with(".lora_b")) {
    // An adapter follows an override of its own name alone (src/error_sources has such).
    const auto own =
        std::find_if(overrides.begin(), overrides.end(),
                     [&](const RecipeOverride& one) { return one.match == layer_name; });
    return own == overrides.end() ? high_precision : own->recipe;
  }
  for (const std::string& pattern : keep_high_precision) {
    if (layer_pattern_matches(pattern, layer_name, layer_count)) return high_precision;
  }
  for (const RecipeOverride& exception : overrides) {
    if (layer_pattern_matches(exception.match, layer_name, layer_count)) return exception.recipe;
  }
  return linear;
}

void validate(const LinearRecipe& recipe, const std::string& where) {
  for (const Slot slot : kSlots) {
    const std::string key = "slots." + slot_name(slot);
    validate_quantizer(recipe.slot(slot), where, key);
    validate_orientation(recipe, slot, where);
    validate_smoothing(recipe, slot, where);
    validate_compensation(recipe, slot, where);
    validate_left(recipe, slot, where);
    validate_estimator(recipe, slot, where);
  }
  for (const GemmRole role : kGemmRoles) validate_gemm(recipe, role, where);
}

void validate_shape(const LinearRecipe& recipe, GemmRole role, std::int64_t tokens, std::int64_t in,
                    std::int64_t out, const std::string& where) {
  for (const Slot slot : {a_slot(role), b_slot(role)}) {
    const auto [rows, k] = operand_shape(slot, tokens, in, out);
    const std::string refusal = transform_refusal(recipe.slot(slot).transform, rows, k);
    if (!refusal.empty())
      refuse(where, "slots." + slot_name(slot) + ".transform", {.reason = refusal});
  }
}

void validate_shape(const LinearRecipe& recipe, std::int64_t tokens, std::int64_t in,
                    std::int64_t out, const std::string& where) {
  for (const GemmRole role : kGemmRoles) {
    validate_shape(recipe, role, tokens, in, out, where);
  }
}

}  // namespace fp8lab
