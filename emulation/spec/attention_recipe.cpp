#include "emulation/spec/attention_recipe.hpp"

#include <variant>

namespace fp8lab {
namespace {

constexpr PerAttentionSlot<std::string_view> kSlotNames = {"q", "k", "v", "p", "do", "ds"};

}  // namespace

std::string_view name_of(AttentionSlot slot) { return kSlotNames[slot]; }

std::string_view name_of(AttentionTile tile) {
  switch (tile) {
    case AttentionTile::given: return "";
    case AttentionTile::head: return "head";
    case AttentionTile::block: return "block";
    case AttentionTile::token: return "token";
  }
  return "";
}

std::optional<AttentionTile> attention_tile_from_name(std::string_view name) {
  for (const AttentionTile tile :
       {AttentionTile::head, AttentionTile::block, AttentionTile::token}) {
    if (name == name_of(tile)) return tile;
  }
  return std::nullopt;
}

std::string label(const AttentionQuantizer& quantizer) {
  if (quantizer.tile == AttentionTile::given) return label(quantizer.spec);
  // The tile is the word behind the format.
  QuantSpec spec = quantizer.spec;
  spec.tile = {1, 0};
  std::string text = label(spec);
  const std::string row = "/row";
  text.replace(text.find(row), row.size(), "/" + std::string(name_of(quantizer.tile)));
  return text;
}

QuantSpec AttentionRecipe::spec(AttentionSlot slot, const AttentionExtents& extents,
                                DType values) const {
  if (!has(slot)) {
    QuantSpec as_it_is;
    as_it_is.format = values == DType::f32 ? numerics::kFP32 : numerics::kBF16;
    return as_it_is;
  }
  QuantSpec spec = slots[slot]->spec;
  if (Hadamard* const hadamard = std::get_if<Hadamard>(&spec.transform.kind)) {
    const bool is_full = hadamard->block == 0 && !hadamard->left;
    if (is_full) hadamard->block = static_cast<int>(extents.head_dim);
  }
  const bool of_queries = slot == AttentionSlot::q || slot == AttentionSlot::dout;
  switch (slots[slot]->tile) {
    case AttentionTile::given: return spec;
    case AttentionTile::head: spec.tile = {extents.sequence, extents.head_dim}; return spec;
    case AttentionTile::token: spec.tile = {1, extents.head_dim}; return spec;
    case AttentionTile::block:
      // dS has the scale of its tile of queries and keys, whatever their extents.
      if (slot == AttentionSlot::ds) return spec;
      spec.tile = {of_queries ? extents.q_tile : extents.kv_tile, extents.head_dim};
      return spec;
  }
  return spec;
}

}  // namespace fp8lab
