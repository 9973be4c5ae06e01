// Quantization of one matrix to one-byte codes. Everything is in the orientation of the source.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "emulation/backend.hpp"
#include "emulation/cpu/encode_rule.hpp"
#include "emulation/cpu/quantize/tile_scales.hpp"
#include "emulation/cpu/simd/aligned_buffer.hpp"
#include "emulation/cpu/simd/quantize_kernels.hpp"

namespace fp8lab::cpu {

class Quantizer {
 public:
  /// Quantizes `source`, or its transpose, by operand.spec. Precondition: the spec has a format and
  /// no codebooks. All three must outlive the quantizer.
  Quantizer(const TensorView& source, bool transpose, const QuantizedOperand& operand);

  /// Scales every tile by its own amax.
  void quantize_tiles();
  /// Uses one known scale for the whole tensor. `finite`: the whole source is known to be finite.
  void quantize_with(const numerics::TileScale& scale, bool finite) { run(scale, finite, false); }
  /// As quantize_with, and returns the amax bits of the tensor.
  std::uint32_t quantize_and_measure(const numerics::TileScale& scale) {
    return run(scale, false, true);
  }
  std::uint32_t tensor_amax() const;

 private:
  /// Half-open ranges of source rows and columns.
  struct Rectangle {
    std::int64_t row_begin, row_end, col_begin, col_end;
    std::int64_t next_row = row_begin, next_col = col_begin;  ///< corner of the rectangle that is
                                                              ///< read next
    std::int64_t rows() const { return row_end - row_begin; }
    std::int64_t cols() const { return col_end - col_begin; }
  };
  struct Extent {
    std::int64_t rows, cols;
  };
  /// State that a thread keeps from one rectangle to the next.
  struct Scratch {
    TileScales scales;
    std::vector<std::uint32_t> amax;
    std::vector<float> decode, factors;
    std::size_t decoded = 0;    ///< scales of the group so far
    std::uint32_t largest = 0;  ///< amax of the tensor so far
  };
  /// A rectangle whose codes are transposed. The rectangles of a group lie one below the other, and
  /// their scales are written together.
  struct Unit {
    Rectangle area, group;
  };
  using Group = std::vector<Unit>;
  /// A staging copy of a unit, and the largest magnitudes of its columns.
  struct StagingBuffer {
    std::byte* memory;  ///< bytes_nearby(area) bytes, aligned to a cache line
    Prefetch prefetch;
    SourceBlock block;
  };

  std::uint32_t run(const numerics::TileScale& scale, bool finite, bool measure);
  void quantize_unit(const Rectangle& area, Scratch& scratch) const;
  void transpose_tiles() const;
  void transpose_tall_tiles() const;
  std::uint32_t transpose_tensor(const float& factor) const;
  std::vector<std::uint32_t> amax_of_tall_tiles() const;
  std::vector<Group> groups(const Extent& unit, std::int64_t group_rows) const;
  template <class Prepare>
  std::uint32_t transpose_units(const std::vector<Group>& groups, Prepare prepare) const;
  template <class Prepare>
  void turn_units(const Group& units, Prepare prepare, Scratch& scratch) const;
  std::int64_t staging_row_bytes(const Rectangle& area) const;
  std::int64_t bytes_nearby(const Rectangle& area) const {
    return (area.rows() + tiles_down(area)) * staging_row_bytes(area);
  }
  void start_prefetch(const Rectangle& area, StagingBuffer& staging) const;
  SourceBlock measured(const Rectangle& area, const StagingBuffer& staging) const;
  void prepare_tiles(const Unit& unit, StagingBuffer& staging, Scratch& scratch) const;
  void choose_scales(const Rectangle& area, Scratch& scratch, float* decode) const;
  void write_scales(const Rectangle& area, const std::vector<float>& decode) const;
  void encode(const Rectangle& area, const SourceBlock& block) const;
  void encode_transposed(const Rectangle& area, const SourceBlock& block,
                         const Prefetch& next) const;
  Scratch scratch() const { return {TileScales(spec_, tensor_factor_), {}, {}, {}}; }
  /// Returns tile `index` of `area`, in row-major order.
  Rectangle tile_of(const Rectangle& area, std::size_t index) const;
  std::uint32_t deviation_of(const Rectangle& tile, std::uint32_t amax) const;
  std::vector<std::uint32_t> amax_of_rows() const;
  /// Returns the factor of the two-level scale of a tile.
  float outer_factor(const Rectangle& tile) const {
    if (row_factors_.empty()) return tensor_factor_;
    return row_factors_[static_cast<std::size_t>(transpose_ ? tile.col_begin : tile.row_begin)];
  }
  numerics::TileScale two_level_scale(const Rectangle& tile, std::uint32_t amax) const;
  float error_of(const Rectangle& tile, const numerics::TileScale& scale) const;

  Extent unit_of(std::int64_t height, std::int64_t width) const;
  std::vector<Rectangle> rectangles(const Extent& size) const;
  std::int64_t tiles_down(const Rectangle& area) const {
    return (area.rows() + tile_height_ - 1) / tile_height_;
  }
  std::int64_t tiles_across(const Rectangle& area) const {
    return (area.cols() + tile_width_ - 1) / tile_width_;
  }
  std::size_t tiles_of(const Rectangle& area) const {
    return static_cast<std::size_t>(tiles_down(area) * tiles_across(area));
  }
  SourceBlock block(const Rectangle& area) const;
  void make_one_tile(SourceBlock& block, const float* factor) const;
  const std::byte* at(std::int64_t row, std::int64_t col) const {
    return static_cast<const std::byte*>(source_.data) +
           (row * source_.row_stride + col) * static_cast<std::int64_t>(size_of(source_.dtype));
  }
  float value_at(std::int64_t row, std::int64_t col) const;

  const TensorView& source_;
  bool transpose_;
  const QuantizedOperand& operand_;
  const QuantSpec& spec_;
  const QuantizeKernels& kernels_;
  RandomStream random_;
  EncodeRule rule_;
  bool streamed_;
  float tensor_factor_ = 1.0f;      ///< of two-level scales
  std::vector<float> row_factors_;  ///< of each row of the operand, for OuterScale::row
  std::int64_t tile_height_, tile_width_;
};

}  // namespace fp8lab::cpu
