// Quantized weights in files: which tensors belong together, and the values that they stand for.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "src/io/tensors/safetensors.hpp"
#include "src/model/dialects/weight_layout.hpp"

namespace fp8lab {

/// The tensors of one quantized weight. The pointers are null for those that are not there.
struct StoredWeight {
  std::string name;  ///< "X.weight", whatever its tensors are called
  const StoredTensor* codes = nullptr;
  const StoredTensor* scales = nullptr;
  const StoredTensor* global = nullptr;  ///< the tensor's scale of two levels
  WeightLayout layout;                   ///< its tile is that of ScaleGrid
  bool is_swizzled = false;              ///< torchao: scales in the order of 128x4 tiles

  /// Returns the shape of the weight: that of the codes, with twice the columns if packed.
  std::vector<std::int64_t> shape() const;
};

/// Returns the tensor of a name, or null.
using FindTensor = std::function<const StoredTensor*(const std::string&)>;

/// Returns true for zero points of weights, whatever type they are stored as: no weight of their
/// own.
bool is_zero_point(const std::string& name);

/// Returns true if every element is `value`; false for types that cannot be decoded.
bool holds_only(const StoredTensor& tensor, float value);

/// Returns the weight whose codes `tensor` holds, with the tensors beside it; nothing if it holds
/// none. Types and names decide: FP8, U8 with "_packed", U8 beside FP8 scales, "_qdata".
/// `claimed`, what the configuration says, tells apart dialects that call tensors alike, and names
/// the scales that are not there. The tile is not set.
std::optional<StoredWeight> weight_of_codes(const StoredTensor& tensor, const FindTensor& find,
                                            std::optional<Dialect> claimed);

/// Returns the tile of scales of shape `scales` beside a weight of shape `weight`: the last two
/// extents are a matrix, those before count matrices of their own. `claimed` is the tile that the
/// configuration names. Returns nothing for shapes that fit no tile.
std::optional<StoredScaleTile> tile_of_shapes(const std::vector<std::int64_t>& weight,
                                              const std::vector<std::int64_t>& scales,
                                              const std::optional<StoredScaleTile>& claimed);

/// The decode scales of a weight, one for each tile, as FP32.
class ScaleGrid {
 public:
  /// The grid of a weight of `shape` in tiles of `tile`, all 1.
  ScaleGrid(const std::vector<std::int64_t>& shape, const StoredScaleTile& tile);

  /// Reads the scales of `weight`, whose tensors are all there and whose layout has its tile. Two
  /// levels: RN(s / S) for compressed-tensors, else RN(s * S). Throws Error for types that hold no
  /// scales.
  static ScaleGrid read(const StoredWeight& weight);
  /// Makes it from the bytes of the tensors of `layout` in this order: scales, the tensor's scale.
  static ScaleGrid from_bytes(const WeightLayout& layout, const std::vector<std::int64_t>& shape,
                              std::span<const std::byte> scales, std::span<const std::byte> global);

  std::int64_t matrices() const { return matrices_; }
  std::int64_t rows() const { return rows_; }  ///< of one matrix
  std::int64_t cols() const { return cols_; }
  std::int64_t tile_rows() const { return grid_rows_; }  ///< tiles down the rows of one matrix
  std::int64_t tile_cols() const { return grid_cols_; }
  /// Rows and columns of a tile that is not cut off by an edge.
  std::int64_t tile_height() const { return tile_height_; }
  std::int64_t tile_width() const { return tile_width_; }
  std::vector<float>& values() { return values_; }
  const std::vector<float>& values() const { return values_; }
  /// Returns the index in values() of the tile of a row (counted over all matrices) and a column.
  std::size_t index(std::int64_t row, std::int64_t col) const;
  /// Returns "block (1, 2)", or with several matrices "block (7, 1, 2)".
  std::string place(std::size_t index) const;
  /// Returns the indices of place().
  std::vector<std::int64_t> indices(std::size_t index) const;

  /// Multiplies elements from number `first` on by the scales of their tiles, each rounded once.
  void multiply(std::int64_t first, std::span<float> values) const;

 private:
  std::int64_t matrices_, rows_, cols_, grid_rows_, grid_cols_, tile_height_, tile_width_;
  std::vector<float> values_;
};

/// Decodes elements from number `first` on of codes in memory or in a file, unscaled.
void decode_codes(const WeightLayout& layout, std::span<const std::byte> codes, std::int64_t first,
                  std::span<float> values);
void read_codes(const StoredWeight& weight, std::int64_t first, std::span<float> values);

/// Reads elements of a weight as scale * code, rounded once.
void read_weight(const StoredWeight& weight, const ScaleGrid& scales, std::int64_t first,
                 std::span<float> values);

/// Returns the position in the order of 128x4 tiles (cuBLAS) of scale (row, col) of a grid of
/// `cols` columns; rows are padded to multiples of 128, columns to multiples of 4.
std::size_t swizzled_index(std::int64_t row, std::int64_t col, std::int64_t cols);

}  // namespace fp8lab
