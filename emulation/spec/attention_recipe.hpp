// The quantizers of attention: the table [attention] of a recipe.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "emulation/spec/quant_spec.hpp"
#include "emulation/spec/slot.hpp"

namespace fp8lab {

/// What attention multiplies: queries, keys, values, the weights P, and the gradients dO and dS.
enum class AttentionSlot : std::uint8_t { q, k, v, p, dout, ds };

inline constexpr std::array<AttentionSlot, 6> kAttentionSlots = {
    AttentionSlot::q, AttentionSlot::k,    AttentionSlot::v,
    AttentionSlot::p, AttentionSlot::dout, AttentionSlot::ds};
template <class T>
using PerAttentionSlot = KeyedArray<AttentionSlot, T, kAttentionSlots.size()>;

/// Returns the key in recipes: "q", "k", "v", "p", "do" or "ds".
std::string_view name_of(AttentionSlot slot);

/// True for P and dS, which are quantized inside attention and are no tensors in memory.
constexpr bool is_inside_attention(AttentionSlot slot) {
  return slot == AttentionSlot::p || slot == AttentionSlot::ds;
}

/// A tile that depends on the shape of attention.
enum class AttentionTile : std::uint8_t {
  given,  ///< that of the QuantSpec
  head,   ///< all tokens of a sequence in the columns of a head
  block,  ///< a tile of queries (q, do) or of keys (k, v) in the columns of a head; of ds, both
  token,  ///< one token in the columns of a head
};

/// Returns the word of a tile in [attention]; empty for AttentionTile::given.
std::string_view name_of(AttentionTile tile);
/// Inverse of name_of; empty for other words.
std::optional<AttentionTile> attention_tile_from_name(std::string_view name);

/// The quantizer of one slot.
struct AttentionQuantizer {
  QuantSpec spec;  ///< without a tile unless `tile` is AttentionTile::given
  AttentionTile tile = AttentionTile::given;

  bool operator==(const AttentionQuantizer&) const = default;
};

/// Returns the words of the quantizer, such as "e4m3fn/block/fp32/hadamard:64".
std::string label(const AttentionQuantizer& quantizer);

/// Extents of attention on which tiles depend.
struct AttentionExtents {
  std::int64_t sequence = 0;  ///< tokens of a sequence
  std::int64_t head_dim = 0;
  std::int64_t q_tile = 0, kv_tile = 0;
};

/// What a recipe says of attention; a slot without a quantizer is not quantized.
struct AttentionRecipe {
  PerAttentionSlot<std::optional<AttentionQuantizer>> slots{};

  bool operator==(const AttentionRecipe&) const = default;
  bool has(AttentionSlot slot) const { return slots[slot].has_value(); }
  bool empty() const { return !quantizes_forward() && !quantizes_backward(); }
  /// True if the forward pass quantizes an operand.
  bool quantizes_forward() const {
    return has(AttentionSlot::q) || has(AttentionSlot::k) || has(AttentionSlot::v) ||
           has(AttentionSlot::p);
  }
  /// True if the backward pass does. It then reads the codes of the forward pass as well; otherwise
  /// it is that of unquantized attention.
  bool quantizes_backward() const { return has(AttentionSlot::dout) || has(AttentionSlot::ds); }
  /// Returns the quantizer of a slot with its tile for these extents; hadamard:full is that of a
  /// head. Without a quantizer, returns that of `values` (bf16 or f32).
  QuantSpec spec(AttentionSlot slot, const AttentionExtents& extents, DType values) const;
};

}  // namespace fp8lab
