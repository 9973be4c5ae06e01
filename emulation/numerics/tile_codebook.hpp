// Tiles whose codes are meaningless without the tile's own numbers. Both kinds of tiles
// compute these numbers from the tile's extremes, store them among the scales, and
// encode and decode elements.
#pragma once

#include <cstdint>

#include "emulation/numerics/codec.hpp"
#include "emulation/numerics/format.hpp"
#include "emulation/numerics/host_device.hpp"
#include "emulation/numerics/range_expansion.hpp"
#include "emulation/numerics/tile_logarithm.hpp"

FP8LAB_NUMERICS_BEGIN

/// The rounding of an element to its code.
struct CodebookRounding {
  Rounding rounding = Rounding::nearest;
  Overflow overflow = Overflow::saturate;
  std::uint32_t random_bits = 0;  ///< for Rounding::stochastic
};

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
  FP8LAB_HD std::uint32_t encode(FormatSpec format, float x, const CodebookRounding& by) const {
    return encode_log_codebook(format, book, x, by.rounding, by.random_bits);
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
  FP8LAB_HD std::uint32_t encode(FormatSpec format, float x, const CodebookRounding& by) const {
    return numerics::encode(format, float_bits(expand(group, x)), by.rounding, by.overflow,
                            by.random_bits);
  }
  FP8LAB_HD float decode(FormatSpec format, std::uint32_t code) const {
    return contract(group, numerics::decode(format, code));
  }
};

FP8LAB_NUMERICS_END
