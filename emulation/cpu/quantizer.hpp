// One quantization of a matrix into codes of a byte, with everything in the orientation of the
// source.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "emulation/api/backend.hpp"
#include "emulation/cpu/simd/aligned_buffer.hpp"
#include "emulation/cpu/simd/quantize_kernels.hpp"
#include "emulation/cpu/tile_scales.hpp"

namespace fp8lab::cpu {

class Quantizer {
 public:
  /// Of `source`, or its transpose, by operand.spec, which has a format and no codebooks; all three
  /// must outlive the quantizer.
  Quantizer(const TensorView& source, bool transpose, const RandomKey& key,
            QuantizedOperand& operand);

  /// Every tile by its own amax.
  void quantize_tiles();
  /// One scale for the whole tensor, known beforehand; `finite`: so is the whole source.
  void quantize_with(const numerics::TileScale& scale, bool finite) { run(scale, finite, false); }
  /// The same, and returns the amax bits of the tensor.
  std::uint32_t quantize_and_measure(const numerics::TileScale& scale) {
    return run(scale, false, true);
  }
  std::uint32_t tensor_amax() const;

 private:
  /// Half-open ranges of source rows and columns.
  struct Rectangle {
    std::int64_t row_begin, row_end, col_begin, col_end;
    std::int64_t next_row = row_begin, next_col = col_begin;  ///< corner of the one read next
    std::int64_t rows() const { return row_end - row_begin; }
    std::int64_t cols() const { return col_end - col_begin; }
  };
  struct Extent {
    std::int64_t rows, cols;
  };
  /// What a thread keeps from one rectangle to the next.
  struct Scratch {
    std::vector<std::uint32_t> amax;
    std::vector<float> decode, factors;
    AlignedBuffer copy;
  };

  std::uint32_t run(const numerics::TileScale& scale, bool finite, bool measure);
  void quantize_tall_tiles();
  std::vector<std::uint32_t> amax_of_tall_tiles() const;
  void quantize_group(const Rectangle& group, std::int64_t unit_rows, TileScales& scales,
                      Scratch& scratch) const;
  void quantize_unit(const Rectangle& area, TileScales& scales, Scratch& scratch,
                     float* decode) const;
  void choose_scales(const Rectangle& area, TileScales& scales,
                     const std::vector<std::uint32_t>& amax, float* decode, float* factors) const;
  void write_scales(const Rectangle& area, const std::vector<float>& decode) const;
  void encode(const Rectangle& area, const SourceBlock& block) const;
  numerics::TileScale better_of_two(const Rectangle& tile, std::uint32_t amax) const;
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
  /// The same, of a copy whose rows lie side by side where the codes are to be turned.
  SourceBlock block_nearby(const Rectangle& area, AlignedBuffer& copy) const;
  void make_one_tile(SourceBlock& block, const float* factor) const;
  const std::byte* at(std::int64_t row, std::int64_t col) const {
    return static_cast<const std::byte*>(source_.data) +
           (row * source_.row_stride + col) * static_cast<std::int64_t>(size_of(source_.dtype));
  }
  float value_at(std::int64_t row, std::int64_t col) const;

  const TensorView& source_;
  bool transpose_;
  QuantizedOperand& operand_;
  const QuantSpec& spec_;
  const QuantizeKernels& kernels_;
  RandomStream random_;
  EncodeRule rule_{};
  bool streamed_;
  float tensor_factor_ = 1.0f;  ///< of two-level scales
  std::int64_t tile_height_, tile_width_;
};

}  // namespace fp8lab::cpu
