#include "src/config/recipe/attention_table.hpp"

#include <fmt/format.h>

#include <optional>
#include <string>
#include <utility>

#include "emulation/base/input_error.hpp"
#include "emulation/ops/attention/quantized_attention.hpp"
#include "emulation/spec/recipe_names.hpp"
#include "src/config/recipe/spec_words.hpp"

namespace fp8lab {
namespace {

/// A head that every quantizer fits which fits some head: as wide as its transform and its tile.
std::int64_t fitting_head(const QuantSpec& spec) {
  const auto* const hadamard = spec.transform.as<Hadamard>();
  const std::int64_t tile = spec.scale_tile().cols;
  if (tile > 0) return tile;
  return hadamard != nullptr && hadamard->block > 0 ? hadamard->block : 64;
}

/// Parses words among which a tile may be that of a head.
AttentionQuantizer parse_quantizer(const std::string& words) {
  AttentionQuantizer quantizer;
  std::string others;
  for (const std::string& word : split_at_slashes(words)) {
    const std::optional<AttentionTile> tile = attention_tile_from_name(word);
    if (!tile) {
      others += (others.empty() ? "" : "/") + word;
      continue;
    }
    if (quantizer.tile != AttentionTile::given) {
      throw InputError({.where = fmt::format("quantizer '{}'", words),
                        .found = fmt::format("{} and {}", name_of(quantizer.tile), word),
                        .accepted = "one tile"});
    }
    quantizer.tile = *tile;
  }
  if (quantizer.tile == AttentionTile::given) {
    quantizer.spec = parse_quant_spec(words);
    return quantizer;
  }
  for (const std::string& word : split_at_slashes(others)) {
    if (!tile_from_name(word)) continue;
    throw InputError({.where = fmt::format("quantizer '{}'", words),
                      .found = fmt::format("{} and {}", word, name_of(quantizer.tile)),
                      .accepted = "one tile"});
  }
  // Whichever tile it is, a word about it asks for scales of tiles.
  quantizer.spec = parse_quant_spec(others + "/row");
  quantizer.spec.tile = {};
  return quantizer;
}

/// Returns why no shape of attention fits the quantizer; empty if some do.
std::string refusal(AttentionSlot slot, const AttentionQuantizer& quantizer, DType activations) {
  const QuantSpec& spec = quantizer.spec;
  const bool is_gradient = slot == AttentionSlot::ds;
  if (is_inside_attention(slot)) {
    const bool is_current = spec.scale_source == ScaleSource::current;
    if (is_current && (!is_gradient || quantizer.tile != AttentionTile::block)) {
      return is_gradient ? fmt::format("the tile {} of dS, which is never in memory as a whole",
                                       quantizer.tile == AttentionTile::given
                                           ? tile_name(spec.tile)
                                           : std::string(name_of(quantizer.tile)))
                         : "scales of tiles; the largest weight of a row is 1";
    }
    return supports_attention_weights(spec, activations, is_gradient).reason;
  }
  const bool has_transform = slot == AttentionSlot::q || slot == AttentionSlot::k;
  if (spec.transform && !has_transform) {
    return fmt::format("the transform {}, which only those of q and k undo in their product",
                       transform_name(spec.transform));
  }
  AttentionRecipe alone;
  alone.slots[slot] = quantizer;
  const std::int64_t head = fitting_head(spec);
  const AttentionExtents extents{.sequence = 64, .head_dim = head, .q_tile = 64, .kv_tile = 64};
  return supports_attention_operand(alone.spec(slot, extents, activations), head, activations)
      .reason;
}

/// Reads the quantizer of one slot; nothing for a tensor that stays as it is.
std::optional<AttentionQuantizer> read_slot(TomlReader& table, AttentionSlot slot,
                                            DType activations) {
  const std::string key(name_of(slot));
  if (table.node(key) == nullptr) return std::nullopt;
  const std::string words = table.text(key, "");
  AttentionQuantizer quantizer;
  try {
    if (recipe_slot_from_text(words)) {
      throw InputError({.found = fmt::format("'{}'", words),
                        .reason = "is a slot of another recipe",
                        .accepted = accepted_attention_quantizer(slot)});
    }
    quantizer = parse_quantizer(words);
  } catch (const InputError& error) {
    ErrorFields fields = error.fields();
    fields.where = fmt::format("{}: '{}'", table.where(key), table.path_of(key));
    throw InputError(std::move(fields));
  }
  const auto as_it_is = format_by_name(word_for(kStorageNames, activations));
  if (quantizer.spec.format == as_it_is) return std::nullopt;
  const std::string reason = refusal(slot, quantizer, activations);
  if (reason.empty()) return quantizer;
  table.refuse(key, {.found = fmt::format("'{}'", words),
                     .reason = ": " + reason,
                     .accepted = accepted_attention_quantizer(slot)});
}

}  // namespace

std::string accepted_attention_quantizer(AttentionSlot slot) {
  switch (slot) {
    case AttentionSlot::p:
      return "a format of at most 8 bits with a static scale or none, such as "
             "e4m3fn/static:0.00390625 (2^-8); bf16: as it is";
    case AttentionSlot::ds:
      return "a format of at most 8 bits with the scale block, delayed, static:NUMBER or none, "
             "such "
             "as e5m2/block; bf16: as it is";
    default:
      return "the words of a quantizer of at most 8 bits, with the tile tensor, head, block, "
             "token, "
             "row or RxC, such as e4m3fn/block/hadamard:full, which is a head; bf16: as it is";
  }
}

AttentionRecipe read_attention(TomlReader& document, DType activations) {
  std::optional<TomlReader> table = document.table("attention");
  if (!table) return {};
  AttentionRecipe recipe;
  bool says_something = false;
  for (const AttentionSlot slot : kAttentionSlots) {
    says_something = says_something || table->has(name_of(slot));
    recipe.slots[slot] = read_slot(*table, slot, activations);
  }
  table->finish();
  if (!says_something) {
    document.fail("attention", {.reason = "the table is empty", .accepted = "q, k, v, p, do, ds"});
  }
  const auto transform_of = [&](AttentionSlot slot) {
    return recipe.has(slot) ? recipe.slots[slot]->spec.transform : Transform{};
  };
  const Transform q = transform_of(AttentionSlot::q), k = transform_of(AttentionSlot::k);
  if (q == k) return recipe;
  document.fail("attention", {.reason = fmt::format("q has the transform {} and k {}",
                                                    transform_name(q), transform_name(k)),
                              .accepted = "the same one for both, which cancels in their product"});
}

}  // namespace fp8lab
