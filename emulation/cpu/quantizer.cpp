#include "emulation/cpu/quantizer.hpp"

#include <algorithm>
#include <cstring>

#include "emulation/numerics/codec.hpp"

namespace fp8lab::cpu {
namespace {

using numerics::bits_float;
using numerics::TileScale;

/// Elements of one unit of work: small enough to stay in the second-level cache between the amax
/// and the encoding pass.
constexpr std::int64_t kUnitElements = 64 * 1024;
constexpr std::int64_t kTallCols = 2048;  ///< of a unit of many rows: each a page at least
constexpr std::int64_t kLineBytes = 64;
constexpr std::int64_t kTurnedRows = kLineBytes;  ///< of a unit whose codes are turned: whole lines
/// Of so many rows the scales are written together where the codes are turned, because neighbouring
/// ones belong to rows far from each other.
constexpr std::int64_t kGroupRows = 512;
/// Turned codes of more bytes are written past the caches.
constexpr std::int64_t kStreamedBytes = 8 << 20;

std::int64_t extent(std::int64_t tile, std::int64_t whole) {
  return tile == 0 ? whole : std::min(tile, whole);
}

std::int64_t round_up(std::int64_t value, std::int64_t step) {
  return (value + step - 1) / step * step;
}

bool is_on_lines(const TensorView& codes) {
  return reinterpret_cast<std::uintptr_t>(codes.data) % kLineBytes == 0 &&
         codes.row_stride % kLineBytes == 0;
}

bool is_finite(const std::vector<std::uint32_t>& amax) {
  std::uint32_t infinite = 0;
  for (const std::uint32_t magnitude : amax) infinite |= magnitude >= numerics::kF32Infinity;
  return infinite == 0;
}

}  // namespace

Quantizer::Quantizer(const TensorView& source, bool transpose, const RandomKey& key,
                     QuantizedOperand& operand)
    : source_(source),
      transpose_(transpose),
      operand_(operand),
      spec_(operand.spec),
      kernels_(quantize_kernels()),
      random_{key.seed, key.step, key.tensor, key.orientation},
      rule_{spec_.format.exponent_bits,
            spec_.format.mantissa_bits,
            spec_.format.bias,
            static_cast<std::int32_t>(spec_.format.specials),
            static_cast<std::int32_t>(spec_.format.encoding),
            static_cast<std::int32_t>(spec_.rounding),
            static_cast<std::int32_t>(spec_.overflow),
            spec_.has_scale() && spec_.scale.divides()},
      streamed_(transpose && operand.codes.size() >= kStreamedBytes && is_on_lines(operand.codes)),
      tile_height_(extent(transpose ? spec_.tile.cols : spec_.tile.rows, source.rows)),
      tile_width_(extent(transpose ? spec_.tile.rows : spec_.tile.cols, source.cols)) {}

// --- rectangles of the source -------------------------------------------------------------------

/// Rows and columns of whole tiles of height x width that make a unit.
Quantizer::Extent Quantizer::unit_of(std::int64_t height, std::int64_t width) const {
  const std::int64_t wanted_rows =
      transpose_ ? kTurnedRows : std::max<std::int64_t>(1, kUnitElements / source_.cols);
  const std::int64_t rows = round_up(std::min(wanted_rows, source_.rows), height);
  const std::int64_t least_cols = rows > kTurnedRows ? kTallCols : kLineBytes;
  const std::int64_t wanted_cols = std::max(least_cols, kUnitElements / rows);
  return {rows, std::max<std::int64_t>(1, wanted_cols / width) * width};
}

/// Cuts the source, in the order of memory.
std::vector<Quantizer::Rectangle> Quantizer::rectangles(const Extent& size) const {
  std::vector<Rectangle> areas;
  for (std::int64_t r = 0; r < source_.rows; r += size.rows) {
    for (std::int64_t c = 0; c < source_.cols; c += size.cols) {
      areas.push_back(
          {r, std::min(r + size.rows, source_.rows), c, std::min(c + size.cols, source_.cols)});
    }
  }
  for (std::size_t i = 0; i + 1 < areas.size(); ++i) {
    areas[i].next_row = areas[i + 1].row_begin;
    areas[i].next_col = areas[i + 1].col_begin;
  }
  return areas;
}

/// In whole tiles, with the factors yet to be set.
SourceBlock Quantizer::block(const Rectangle& area) const {
  return {at(area.row_begin, area.col_begin),
          source_.dtype == DType::bf16,
          false,
          area.rows(),
          source_.row_stride,
          area.cols(),
          tile_height_,
          tile_width_,
          tiles_across(area),
          nullptr,
          static_cast<std::uint64_t>(area.row_begin * source_.cols + area.col_begin),
          static_cast<std::uint64_t>(source_.cols),
          at(area.next_row, area.next_col),
          source_.row_stride};
}

/// Turning walks down columns. The rows of a wide matrix each lie in pages of their own, and where
/// their distance is a power of two they share few sets of a cache.
SourceBlock Quantizer::block_nearby(const Rectangle& area, AlignedBuffer& copy) const {
  SourceBlock result = block(area);
  if (!transpose_ || area.rows() <= kTurnedRows) return result;
  const auto size = static_cast<std::int64_t>(size_of(source_.dtype));
  const std::int64_t bytes = round_up(area.cols() * size, kLineBytes) + kLineBytes;
  auto* to = static_cast<std::byte*>(copy.reserve(static_cast<std::size_t>(area.rows() * bytes)));
  result.data = to;
  result.row_stride = bytes / size;
  for (std::int64_t r = area.row_begin; r < area.row_end; ++r, to += bytes) {
    std::memcpy(to, at(r, area.col_begin), static_cast<std::size_t>(area.cols() * size));
  }
  return result;
}

void Quantizer::make_one_tile(SourceBlock& block, const float* factor) const {
  block.tile_height = source_.rows;
  block.tile_width = std::max<std::int64_t>(source_.cols, 2);
  block.tile_stride = 1;
  block.factors = factor;
}

float Quantizer::value_at(std::int64_t row, std::int64_t col) const {
  return source_.dtype == DType::bf16 ? numerics::from_bf16(source_.row<std::uint16_t>(row)[col])
                                      : source_.row<float>(row)[col];
}

void Quantizer::encode(const Rectangle& area, const SourceBlock& block) const {
  const std::int64_t stride = operand_.codes.row_stride;
  if (!transpose_) {
    const CodeBlock codes{operand_.codes.row<std::uint8_t>(area.row_begin) + area.col_begin, stride,
                          false};
    return kernels_.encode(&rule_, &random_, &block, &codes);
  }
  const CodeBlock codes{operand_.codes.row<std::uint8_t>(area.col_begin) + area.row_begin, stride,
                        streamed_};
  kernels_.encode_turned(&rule_, &random_, &block, &codes);
}

// --- one scale ----------------------------------------------------------------------------------

std::uint32_t Quantizer::tensor_amax() const {
  const std::vector<Rectangle> areas = rectangles(unit_of(1, 1));
  const auto count = static_cast<std::int64_t>(areas.size());
  std::uint32_t amax = 0;
#pragma omp parallel for schedule(static) reduction(max : amax) if (count > 1)
  for (std::int64_t i = 0; i < count; ++i) {
    SourceBlock all = block(areas[static_cast<std::size_t>(i)]);
    make_one_tile(all, nullptr);
    kernels_.amax(&all, &amax);
  }
  return amax;
}

std::uint32_t Quantizer::run(const TileScale& scale, bool finite, bool measure) {
  if (spec_.has_scale()) operand_.scales.row<float>(0)[0] = scale.decode;
  const float factor = rule_.divide ? scale.decode : scale.multiplier;
  const std::vector<Rectangle> areas = rectangles(unit_of(1, 1));
  const auto count = static_cast<std::int64_t>(areas.size());
  std::uint32_t amax = 0;
#pragma omp parallel reduction(max : amax) if (count > 1)
  {
    AlignedBuffer copy;
#pragma omp for schedule(static)
    for (std::int64_t i = 0; i < count; ++i) {
      const Rectangle& area = areas[static_cast<std::size_t>(i)];
      SourceBlock all = block_nearby(area, copy);
      make_one_tile(all, &factor);
      all.finite = finite;
      if (measure) {
        std::uint32_t area_amax = 0;
        kernels_.amax(&all, &area_amax);
        all.finite = area_amax < numerics::kF32Infinity;
        amax = std::max(amax, area_amax);
      }
      encode(area, all);
    }
  }
  return amax;
}

// --- a scale for each tile ----------------------------------------------------------------------

void Quantizer::quantize_tiles() {
  if (is_two_level(spec_)) {
    tensor_factor_ =
        numerics::nv_tensor_factor(spec_.scale, spec_.format, bits_float(tensor_amax()));
  }
  if (transpose_ && tile_height_ > kGroupRows) return quantize_tall_tiles();
  const Extent unit = unit_of(tile_height_, tile_width_);
  const std::int64_t rows = streamed_ ? round_up(kGroupRows, unit.rows) : unit.rows;
  const std::vector<Rectangle> groups = rectangles({rows, unit.cols});
  const auto count = static_cast<std::int64_t>(groups.size());
#pragma omp parallel if (count > 1)
  {
    TileScales scales(spec_, tensor_factor_);
    Scratch scratch;
#pragma omp for schedule(static)
    for (std::int64_t i = 0; i < count; ++i) {
      quantize_group(groups[static_cast<std::size_t>(i)], unit.rows, scales, scratch);
    }
  }
}

/// In units of `unit_rows`, one below the other.
void Quantizer::quantize_group(const Rectangle& group, std::int64_t unit_rows, TileScales& scales,
                               Scratch& scratch) const {
  scratch.decode.resize(tiles_of(group));
  float* decode = scratch.decode.data();
  for (std::int64_t r = group.row_begin; r < group.row_end; r += unit_rows) {
    Rectangle unit = group;
    unit.row_begin = r;
    unit.row_end = std::min(r + unit_rows, group.row_end);
    if (unit.row_end < group.row_end) {
      unit.next_row = unit.row_end;
      unit.next_col = unit.col_begin;
    }
    quantize_unit(unit, scales, scratch, decode);
    decode += tiles_of(unit);
  }
  write_scales(group, scratch.decode);
}

void Quantizer::quantize_unit(const Rectangle& area, TileScales& scales, Scratch& scratch,
                              float* decode) const {
  SourceBlock tiles = block_nearby(area, scratch.copy);
  scratch.amax.assign(tiles_of(area), 0u);
  scratch.factors.resize(tiles_of(area));
  kernels_.amax(&tiles, scratch.amax.data());
  choose_scales(area, scales, scratch.amax, decode, scratch.factors.data());
  tiles.finite = is_finite(scratch.amax);
  tiles.factors = scratch.factors.data();
  encode(area, tiles);
}

/// From the amaxes of the tiles of `area`.
void Quantizer::choose_scales(const Rectangle& area, TileScales& scales,
                              const std::vector<std::uint32_t>& amax, float* decode,
                              float* factors) const {
  scales.of_all(amax.data(), static_cast<std::int64_t>(amax.size()), decode, factors);
  if (spec_.scale.four_over_six == numerics::FourOverSix::none) return;
  const std::int64_t wide = tiles_across(area);
  for (std::size_t i = 0; i < amax.size(); ++i) {
    const auto tile = static_cast<std::int64_t>(i);
    const std::int64_t row = area.row_begin + tile / wide * tile_height_;
    const std::int64_t col = area.col_begin + tile % wide * tile_width_;
    const TileScale scale = better_of_two({row, std::min(row + tile_height_, area.row_end), col,
                                           std::min(col + tile_width_, area.col_end)},
                                          amax[i]);
    decode[i] = scale.decode;
    factors[i] = rule_.divide ? scale.decode : scale.multiplier;
  }
}

void Quantizer::write_scales(const Rectangle& area, const std::vector<float>& decode) const {
  const std::int64_t high = tiles_down(area), wide = tiles_across(area);
  const std::int64_t first_row = area.row_begin / tile_height_;
  const std::int64_t first_col = area.col_begin / tile_width_;
  const float* scale = decode.data();
  if (!transpose_) {
    for (std::int64_t i = 0; i < high; ++i, scale += wide) {
      std::copy_n(scale, wide, operand_.scales.row<float>(first_row + i) + first_col);
    }
    return;
  }
  for (std::int64_t j = 0; j < wide; ++j, ++scale) {
    float* const to = operand_.scales.row<float>(first_col + j) + first_row;
    for (std::int64_t i = 0; i < high; ++i) to[i] = scale[i * wide];
  }
}

/// The usual scale of a tile, or the one 1.5 times as large if that gives a smaller error.
TileScale Quantizer::better_of_two(const Rectangle& tile, std::uint32_t amax) const {
  const TileScale usual = numerics::nv_tile_scale(spec_.format, tensor_factor_, bits_float(amax));
  const TileScale enlarged =
      numerics::nv_tile_scale(spec_.format, tensor_factor_, bits_float(amax), true);
  return error_of(tile, enlarged) < error_of(tile, usual) ? enlarged : usual;
}

float Quantizer::error_of(const Rectangle& tile, const TileScale& scale) const {
  float sum = 0.0f;
  for (std::int64_t r = tile.row_begin; r < tile.row_end; ++r) {
    float row_sum = 0.0f;
    for (std::int64_t c = tile.col_begin; c < tile.col_end; ++c) {
      row_sum += numerics::four_over_six_error(spec_.scale.four_over_six, spec_.format, scale,
                                               value_at(r, c));
    }
    sum += row_sum;
  }
  return sum;
}

// --- turned tiles that are taller than a unit
// -----------------------------------------------------

std::vector<std::uint32_t> Quantizer::amax_of_tall_tiles() const {
  const Rectangle whole{0, source_.rows, 0, source_.cols};
  const std::int64_t wide = tiles_across(whole);
  std::vector<std::uint32_t> amax(static_cast<std::size_t>(tiles_down(whole) * wide), 0u);
  const std::int64_t bands = (source_.rows + kTurnedRows - 1) / kTurnedRows;
#pragma omp parallel if (bands > 1)
  {
    std::vector<std::uint32_t> own(amax.size(), 0u);
#pragma omp for schedule(static)
    for (std::int64_t b = 0; b < bands; ++b) {
      const std::int64_t end = std::min((b + 1) * kTurnedRows, source_.rows);
      for (std::int64_t r = b * kTurnedRows; r < end;) {
        const std::int64_t tile = r / tile_height_;
        const std::int64_t stop = std::min(end, (tile + 1) * tile_height_);
        SourceBlock part = block({r, stop, 0, source_.cols});
        part.tile_height = stop - r;
        kernels_.amax(&part, own.data() + tile * wide);
        r = stop;
      }
    }
#pragma omp critical(fp8lab_tall_tiles)
    for (std::size_t i = 0; i < amax.size(); ++i) amax[i] = std::max(amax[i], own[i]);
  }
  return amax;
}

void Quantizer::quantize_tall_tiles() {
  const Rectangle whole{0, source_.rows, 0, source_.cols};
  Scratch all;
  all.amax = amax_of_tall_tiles();
  TileScales scales(spec_, tensor_factor_);
  all.decode.resize(all.amax.size());
  all.factors.resize(all.amax.size());
  choose_scales(whole, scales, all.amax, all.decode.data(), all.factors.data());
  write_scales(whole, all.decode);
  const bool finite = is_finite(all.amax);
  const std::int64_t wide = tiles_across(whole);
  const std::vector<Rectangle> areas = rectangles(unit_of(1, tile_width_));
  const auto count = static_cast<std::int64_t>(areas.size());
#pragma omp parallel if (count > 1)
  {
    AlignedBuffer copy;
#pragma omp for schedule(static)
    for (std::int64_t i = 0; i < count; ++i) {
      const Rectangle& area = areas[static_cast<std::size_t>(i)];
      for (std::int64_t r = area.row_begin; r < area.row_end;) {
        const std::int64_t tile = r / tile_height_;
        Rectangle part = area;
        part.row_begin = r;
        part.row_end = std::min(area.row_end, (tile + 1) * tile_height_);
        SourceBlock block = block_nearby(part, copy);
        block.tile_height = part.rows();
        block.factors = all.factors.data() + tile * wide + area.col_begin / tile_width_;
        block.finite = finite;
        encode(part, block);
        r = part.row_end;
      }
    }
  }
}

}  // namespace fp8lab::cpu
