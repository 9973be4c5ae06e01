// The tiles of an operand in coordinates of its source.
#pragma once

#include <algorithm>
#include <cstdint>

#include "emulation/base/tensor_view.hpp"
#include "emulation/numerics/host_device.hpp"
#include "emulation/spec/quant_spec.hpp"

namespace fp8lab::cuda {

/// The tiles in coordinates of the source, for either orientation of the operand.
struct TileGrid {
  std::int64_t height, width;  ///< of one tile
  std::int64_t high, wide;     ///< number of tiles
  FP8LAB_HD std::int64_t count() const { return high * wide; }
  /// Return true if each row, or each column, of the source is one tile.
  bool has_row_tiles() const { return wide == 1 && height == 1; }
  bool has_column_tiles() const { return high == 1 && width == 1; }
};

/// Returns the tiles of a source (rows, cols). `tile` is in the operand's orientation; `transpose`
/// says whether that is the source's transpose.
inline TileGrid tile_grid(std::int64_t rows, std::int64_t cols, const TileShape& tile,
                          bool transpose) {
  const std::int64_t height = transpose ? tile.cols : tile.rows;
  const std::int64_t width = transpose ? tile.rows : tile.cols;
  TileGrid grid{};
  grid.height = height == 0 ? rows : std::min(height, rows);
  grid.width = width == 0 ? cols : std::min(width, cols);
  grid.high = (rows + grid.height - 1) / grid.height;
  grid.wide = (cols + grid.width - 1) / grid.width;
  return grid;
}
inline TileGrid tile_grid(const TensorView& source, const TileShape& tile, bool transpose) {
  return tile_grid(source.rows, source.cols, tile, transpose);
}

}  // namespace fp8lab::cuda
