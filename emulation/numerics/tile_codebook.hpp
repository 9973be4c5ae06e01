// Tiles whose codes are meaningless without the tile's own numbers. Both kinds of tiles
// compute these numbers from the tile's extremes, store them among the scales, and
// encode and decode elements.
#pragma once

#include <cstdint>

#include "emulation/numerics/codec.hpp"
#include "emulation/numerics/element_cast.hpp"
#include "emulation/numerics/format.hpp"
#include "emulation/numerics/host_device.hpp"
#include "emulation/numerics/range_expansion.hpp"
#include "emulation/numerics/tile_logarithm.hpp"

FP8LAB_NUMERICS_BEGIN

/// A LogFMT tile. `scales` points to the tile's scale in a row of `wide` tiles; a row holds the
/// scales of all tiles, then their further numbers.
struct LogarithmTile {
  LogCodebook book;

  /// Returns the tile with this largest magnitude and this smallest nonzero one.
  FP8LAB_HD static LogarithmTile of(FormatSpec format, float amax, float amin) {
    return {log_codebook(format, amax, amin)};
  }
  FP8LAB_HD static LogarithmTile read(const float* scales, std::int64_t wide) {
    return {{scales[0], scales[wide]}};
  }
  FP8LAB_HD void store(float* scales, std::int64_t wide) const {
    scales[0] = book.scale;
    scales[wide] = book.step;
  }
  /// Returns the code of x; `random` is the element's random word. Of the cast only the format and
  /// the rounding matter: its values lie within the codebook.
  FP8LAB_HD std::uint32_t encode(const ElementCast& cast, float x, std::uint32_t random) const {
    return encode_log_codebook(cast.format, book, x, cast.rounding, random);
  }
  FP8LAB_HD float decode(FormatSpec format, std::uint32_t code) const {
    return decode_log_codebook(format, book, code);
  }
};

/// A tile with expanded range; the layout of `scales` is the same.
struct ExpandedTile {
  ExpandedGroup group;

  FP8LAB_HD static ExpandedTile of(FormatSpec, float amax, float amin) {
    return {expanded_group(amax, amin)};
  }
  FP8LAB_HD static ExpandedTile read(const float* scales, std::int64_t wide) {
    return {{scales[0], scales[wide], scales[2 * wide]}};
  }
  FP8LAB_HD void store(float* scales, std::int64_t wide) const {
    scales[0] = group.scale;
    scales[wide] = group.exponent;
    scales[2 * wide] = group.center;
  }
  FP8LAB_HD std::uint32_t encode(const ElementCast& cast, float x, std::uint32_t random) const {
    return numerics::encode(cast, float_bits(expand(group, x)), random);
  }
  FP8LAB_HD float decode(FormatSpec format, std::uint32_t code) const {
    return contract(group, numerics::decode(format, code));
  }
};

FP8LAB_NUMERICS_END
