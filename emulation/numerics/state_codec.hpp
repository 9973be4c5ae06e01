// Conversion between the numbers that the optimizer keeps and their codes: the element formats and
// scales of operands, with up to 16 bits.
#pragma once

#include <cstdint>

#include "emulation/numerics/codec.hpp"
#include "emulation/numerics/element_cast.hpp"
#include "emulation/numerics/range_expansion.hpp"
#include "emulation/numerics/scaling.hpp"

FP8LAB_NUMERICS_BEGIN

/// Parameters that all elements of a state share.
struct StateCodec {
  ElementCast cast;
  ScaleRule rule;
  bool is_scaled = false;    ///< scaled by the amax of the tile
  bool is_expanded = false;  ///< range expansion (COAT) instead of `rule`
  float fixed_scale = 1.0f;  ///< decode factor if the scale does not come from the tile

  /// Returns the numbers stored per tile: the scale, and for an expansion its exponent and center.
  FP8LAB_HD constexpr int tile_numbers() const { return is_expanded ? 3 : is_scaled ? 1 : 0; }
};

/// The numbers of a tile. In a tile that was read, `scale.multiplier` is unspecified.
struct StateTile {
  TileScale scale;
  ExpandedGroup expanded;
};

/// Returns the tile with these bits of its largest magnitude and of its smallest nonzero magnitude,
/// 0x7FFFFFFF if there is none.
FP8LAB_HD inline StateTile state_tile(const StateCodec& codec, std::uint32_t amax_bits,
                                      std::uint32_t amin_bits) {
  StateTile tile;
  if (codec.is_expanded) {
    tile.expanded = expanded_group(bits_float(amax_bits), bits_float(amin_bits));
  } else if (codec.is_scaled) {
    tile.scale = tile_scale(codec.rule, codec.cast.format, bits_float(amax_bits));
  } else {
    tile.scale = {codec.fixed_scale, bounded_quotient(1.0f, codec.fixed_scale), false};
  }
  return tile;
}

/// Returns number `i` of the tile as it is stored.
FP8LAB_HD inline float tile_number(const StateCodec& codec, const StateTile& tile, int i) {
  if (!codec.is_expanded) return tile.scale.decode;
  return i == 0 ? tile.expanded.scale : i == 1 ? tile.expanded.exponent : tile.expanded.center;
}

/// Sets number `i` to its stored value.
FP8LAB_HD inline void set_tile_number(const StateCodec& codec, StateTile& tile, int i,
                                      float value) {
  if (!codec.is_expanded) {
    tile.scale.decode = value;
  } else if (i == 0) {
    tile.expanded.scale = value;
  } else if (i == 1) {
    tile.expanded.exponent = value;
  } else {
    tile.expanded.center = value;
  }
}

/// Returns the code of x: encode() of the scaled value, for an expansion that of expand().
FP8LAB_HD inline std::uint32_t encode_state(const StateCodec& codec, const StateTile& tile, float x,
                                            std::uint32_t random_bits) {
  const float value = codec.is_expanded ? expand(tile.expanded, x) : scaled_value(tile.scale, x);
  return encode(codec.cast, float_bits(value), random_bits);
}

/// Returns RN(scale * decode(code)), for an expansion contract(decode(code)); a NaN is the
/// canonical one. A tile whose numbers and codes are all zero, like cleared memory, holds zeros.
FP8LAB_HD inline float decode_state(const StateCodec& codec, const StateTile& tile,
                                    std::uint32_t code) {
  const float value = decode(codec.cast.format, code);
  return canonical_nan(codec.is_expanded ? contract(tile.expanded, value)
                                         : tile.scale.decode * value);
}

FP8LAB_NUMERICS_END
