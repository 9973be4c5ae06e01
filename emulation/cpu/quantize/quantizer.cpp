#include "emulation/cpu/quantize/quantizer.hpp"

#include <omp.h>

#include <algorithm>

#include "emulation/numerics/codec.hpp"
#include "emulation/numerics/tile_deviation.hpp"

namespace fp8lab::cpu {
namespace {

using numerics::bits_float;
using numerics::TileScale;

/// Elements of one unit of work: few enough to stay in the L2 cache between the amax
/// pass and the encoding pass.
constexpr std::int64_t kUnitElements = 64 * 1024;
/// Columns of a unit with more than kTallUnit rows: at least one page of each row.
constexpr std::int64_t kTallUnit = 64, kTallCols = 2048;
constexpr std::int64_t kLineBytes = 64;
/// Rows of a unit with transposed codes: two cache lines of each row of codes, which take hardly
/// longer to write than one. Its columns span many cache lines of each row of the source.
constexpr std::int64_t kTransposedRows = 2 * kLineBytes;
constexpr std::int64_t kTransposedElements = 128 * 1024, kTransposedCols = 256;
/// Tiles of a group. With transposed codes the scales of neighbouring tiles lie in one row, and are
/// written two cache lines at a time.
constexpr std::int64_t kGroupTiles = 2 * kLineBytes / static_cast<std::int64_t>(sizeof(float));
/// Minimum number of groups per thread, to balance the work: groups hold fewer tiles if needed.
constexpr std::int64_t kGroupsOfThread = 4;
/// Tiles higher than this are measured before the units, each of which holds part of a tile.
constexpr std::int64_t kTallRows = 512;
/// Transposed codes of more bytes than this are written with non-temporal stores.
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

Quantizer::Quantizer(const TensorView& source, bool transpose, const QuantizedOperand& operand)
    : source_(source),
      transpose_(transpose),
      operand_(operand),
      spec_(operand.spec),
      kernels_(quantize_kernels()),
      random_{operand.key.seed, operand.key.step_number(), operand.key.tensor,
              operand.key.orientation},
      rule_(encode_rule(spec_)),
      streamed_(transpose && operand.codes.size() >= kStreamedBytes && is_on_lines(operand.codes)),
      tile_height_(extent(transpose ? spec_.tile.cols : spec_.tile.rows, source.rows)),
      tile_width_(extent(transpose ? spec_.tile.rows : spec_.tile.cols, source.cols)) {}

// --- rectangles of the source -------------------------------------------------------------------

/// Returns the rows and columns of a unit that holds whole tiles of height x width.
Quantizer::Extent Quantizer::unit_of(std::int64_t height, std::int64_t width) const {
  const std::int64_t wanted_rows =
      transpose_ ? kTransposedRows : std::max<std::int64_t>(1, kUnitElements / source_.cols);
  const std::int64_t rows = round_up(std::min(wanted_rows, source_.rows), height);
  const std::int64_t least_cols = transpose_         ? kTransposedCols
                                  : rows > kTallUnit ? kTallCols
                                                     : kLineBytes;
  const std::int64_t elements = transpose_ ? kTransposedElements : kUnitElements;
  const std::int64_t wanted_cols = std::max(least_cols, round_up(elements / rows, kLineBytes));
  return {rows, std::max<std::int64_t>(1, wanted_cols / width) * width};
}

/// Splits the source into rectangles, in memory order.
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

/// Returns a rectangle as a block of whole tiles; the caller sets its factors.
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
  const CodeBlock codes{operand_.codes.row<std::uint8_t>(area.row_begin) + area.col_begin,
                        operand_.codes.row_stride, false};
  kernels_.encode(&rule_, &random_, &block, &codes);
}

void Quantizer::encode_transposed(const Rectangle& area, const SourceBlock& block,
                                  const Prefetch& next) const {
  const CodeBlock codes{operand_.codes.row<std::uint8_t>(area.col_begin) + area.row_begin,
                        operand_.codes.row_stride, streamed_ && area.row_begin % kLineBytes == 0};
  kernels_.encode_transposed(&rule_, &random_, &block, &codes, &next);
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
  if (transpose_) return transpose_tensor(factor);
  const std::vector<Rectangle> areas = rectangles(unit_of(1, 1));
  const auto count = static_cast<std::int64_t>(areas.size());
  std::uint32_t amax = 0;
#pragma omp parallel for schedule(static) reduction(max : amax) if (count > 1)
  for (std::int64_t i = 0; i < count; ++i) {
    const Rectangle& area = areas[static_cast<std::size_t>(i)];
    SourceBlock all = block(area);
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
  return amax;
}

/// Returns the amax of each row of the operand: of the rows of the source, or of its columns.
std::vector<std::uint32_t> Quantizer::amax_of_rows() const {
  std::vector<std::uint32_t> amax(static_cast<std::size_t>(operand_.rows), 0u);
  const std::int64_t bands = (source_.rows + kTransposedRows - 1) / kTransposedRows;
#pragma omp parallel if (bands > 1)
  {
    std::vector<std::uint32_t> own(amax.size(), 0u);
#pragma omp for schedule(static)
    for (std::int64_t b = 0; b < bands; ++b) {
      const std::int64_t first = b * kTransposedRows;
      const std::int64_t end = std::min(first + kTransposedRows, source_.rows);
      SourceBlock part = block({first, end, 0, source_.cols});
      part.tile_height = transpose_ ? part.rows : 1;
      part.tile_width = transpose_ ? 1 : std::max<std::int64_t>(source_.cols, 2);
      part.tile_stride = transpose_ ? source_.cols : 1;
      kernels_.amax(&part, own.data() + (transpose_ ? 0 : first));
    }
#pragma omp critical(fp8lab_rows)
    for (std::size_t i = 0; i < amax.size(); ++i) amax[i] = std::max(amax[i], own[i]);
  }
  return amax;
}

// --- a scale for each tile ----------------------------------------------------------------------

void Quantizer::quantize_tiles() {
  const auto factor_of = [&](std::uint32_t amax) {
    return numerics::nv_tensor_factor(spec_.scale, spec_.format, bits_float(amax));
  };
  if (is_two_level(spec_) && spec_.scale.outer == numerics::OuterScale::row) {
    for (const std::uint32_t amax : amax_of_rows()) row_factors_.push_back(factor_of(amax));
  } else if (is_two_level(spec_)) {
    tensor_factor_ = factor_of(tensor_amax());
  }
  if (transpose_) return tile_height_ > kTallRows ? transpose_tall_tiles() : transpose_tiles();
  const std::vector<Rectangle> areas = rectangles(unit_of(tile_height_, tile_width_));
  const auto count = static_cast<std::int64_t>(areas.size());
#pragma omp parallel if (count > 1)
  {
    Scratch own = scratch();
#pragma omp for schedule(static)
    for (std::int64_t i = 0; i < count; ++i) {
      quantize_unit(areas[static_cast<std::size_t>(i)], own);
    }
  }
}

void Quantizer::quantize_unit(const Rectangle& area, Scratch& scratch) const {
  SourceBlock tiles = block(area);
  scratch.amax.assign(tiles_of(area), 0u);
  scratch.decode.resize(tiles_of(area));
  kernels_.amax(&tiles, scratch.amax.data());
  choose_scales(area, scratch, scratch.decode.data());
  write_scales(area, scratch.decode);
  tiles.finite = is_finite(scratch.amax);
  tiles.factors = scratch.factors.data();
  encode(area, tiles);
}

/// Chooses scales from the amaxes of the tiles of `area`, or from the deviations that replace them.
void Quantizer::choose_scales(const Rectangle& area, Scratch& scratch, float* decode) const {
  std::vector<std::uint32_t>& amax = scratch.amax;
  if (spec_.scale.deviations != 0.0f) {
    for (std::size_t i = 0; i < amax.size(); ++i) {
      amax[i] = deviation_of(tile_of(area, i), amax[i]);
    }
  }
  scratch.factors.resize(amax.size());
  float* const factors = scratch.factors.data();
  if (spec_.scale.four_over_six == numerics::FourOverSix::none && row_factors_.empty()) {
    scratch.scales.of_all(amax.data(), static_cast<std::int64_t>(amax.size()), decode, factors);
    return;
  }
  for (std::size_t i = 0; i < amax.size(); ++i) {
    const TileScale scale = two_level_scale(tile_of(area, i), amax[i]);
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
  float* const to = operand_.scales.row<float>(first_col) + first_row;
  const bool on_lines =
      reinterpret_cast<std::uintptr_t>(to) % kLineBytes == 0 &&
      static_cast<std::size_t>(operand_.scales.row_stride) * sizeof(float) % kLineBytes == 0;
  kernels_.turn_scales(scale, high, wide, to, operand_.scales.row_stride, streamed_ && on_lines);
}

Quantizer::Rectangle Quantizer::tile_of(const Rectangle& area, std::size_t index) const {
  const std::int64_t wide = tiles_across(area), tile = static_cast<std::int64_t>(index);
  const std::int64_t row = area.row_begin + tile / wide * tile_height_;
  const std::int64_t col = area.col_begin + tile % wide * tile_width_;
  return {row, std::min(row + tile_height_, area.row_end), col,
          std::min(col + tile_width_, area.col_end)};
}

/// Returns the value that replaces the amax of a tile; finite if the amax is.
std::uint32_t Quantizer::deviation_of(const Rectangle& tile, std::uint32_t amax) const {
  numerics::TileDeviation deviation(amax);
  for (std::int64_t r = tile.row_begin; r < tile.row_end; ++r) {
    for (std::int64_t c = tile.col_begin; c < tile.col_end; ++c) deviation.add(value_at(r, c));
  }
  return deviation.times(spec_.scale.deviations);
}

/// Returns the usual scale of a tile, or under a FourOverSix the one 1.5 times as large if that
/// gives a smaller error.
TileScale Quantizer::two_level_scale(const Rectangle& tile, std::uint32_t amax) const {
  const float factor = outer_factor(tile);
  const TileScale usual = numerics::nv_tile_scale(spec_.format, factor, bits_float(amax));
  if (spec_.scale.four_over_six == numerics::FourOverSix::none) return usual;
  const TileScale enlarged = numerics::nv_tile_scale(spec_.format, factor, bits_float(amax), true);
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

// --- transposed codes
// -------------------------------------------------------------------------------

/// Splits the source into groups of units. Units begin at multiples of unit.rows and, if tiles are
/// higher than a unit, also at the first row of each tile.
std::vector<Quantizer::Group> Quantizer::groups(const Extent& unit, std::int64_t group_rows) const {
  std::vector<Group> result;
  for (const Rectangle& group : rectangles({group_rows, unit.cols})) {
    result.emplace_back();
    Rectangle area = group;
    for (; area.row_begin < group.row_end; area.row_begin = area.row_end) {
      area.row_end = std::min((area.row_begin / unit.rows + 1) * unit.rows, group.row_end);
      if (tile_height_ > unit.rows) {
        area.row_end = std::min(area.row_end, (area.row_begin / tile_height_ + 1) * tile_height_);
      }
      result.back().push_back({area, group});
    }
  }
  return result;
}

/// Pads a row by one cache line, to avoid row distances that are powers of two.
std::int64_t Quantizer::staging_row_bytes(const Rectangle& area) const {
  const auto size = static_cast<std::int64_t>(size_of(source_.dtype));
  return round_up(area.cols() * size, kLineBytes) + kLineBytes;
}

/// Sets up the prefetch of a unit. Its amaxes are known once the prefetch has finished.
void Quantizer::start_prefetch(const Rectangle& area, StagingBuffer& staging) const {
  const std::int64_t bytes = staging_row_bytes(area);
  staging.block = block(area);
  staging.prefetch = {staging.block.data,
                      staging.block.bf16,
                      area.rows(),
                      source_.row_stride,
                      area.cols(),
                      tile_height_,
                      staging.memory,
                      bytes / static_cast<std::int64_t>(size_of(source_.dtype)),
                      staging.memory + area.rows() * bytes};
  staging.block.data = staging.prefetch.copy;
  staging.block.row_stride = staging.prefetch.copy_stride;
  staging.block.next = staging.block.data;  // the next unit is read, not prefetched
  staging.block.next_stride = staging.block.row_stride;
}

/// Transposes the units, each thread its own one after another, and prefetches each unit while the
/// codes of the previous one are written. prepare(unit, staging, scratch) sets the factors of a
/// unit that has been read. Returns the largest amax that `prepare` has recorded.
template <class Prepare>
std::uint32_t Quantizer::transpose_units(const std::vector<Group>& groups, Prepare prepare) const {
  const auto count = static_cast<std::int64_t>(groups.size());
  std::uint32_t largest = 0;
#pragma omp parallel reduction(max : largest) if (count > 1)
  {
    const std::int64_t threads = omp_get_num_threads(), thread = omp_get_thread_num();
    Group units;
    for (std::int64_t i = count * thread / threads; i < count * (thread + 1) / threads; ++i) {
      const Group& group = groups[static_cast<std::size_t>(i)];
      units.insert(units.end(), group.begin(), group.end());
    }
    Scratch own = scratch();
    if (!units.empty()) turn_units(units, prepare, own);
    largest = own.largest;
  }
  return largest;
}

template <class Prepare>
void Quantizer::turn_units(const Group& units, Prepare prepare, Scratch& scratch) const {
  std::int64_t bytes = 0;
  for (const Unit& unit : units) bytes = std::max(bytes, bytes_nearby(unit.area));
  AlignedBuffer memory;  // one allocation, which the allocator then keeps from call to call
  auto* const first = memory.reserve_as<std::byte>(static_cast<std::size_t>(2 * bytes));
  StagingBuffer staging[2] = {{first, {}, {}}, {first + bytes, {}, {}}};
  start_prefetch(units.front().area, staging[0]);
  kernels_.read(&staging[0].prefetch);
  for (std::size_t i = 0; i < units.size(); ++i) {
    StagingBuffer &here = staging[i % 2], &next = staging[(i + 1) % 2];
    next.prefetch = {};
    if (i + 1 < units.size()) start_prefetch(units[i + 1].area, next);
    prepare(units[i], here, scratch);
    encode_transposed(units[i].area, here.block, next.prefetch);
  }
}

/// Returns the largest magnitudes of the columns of each row of tiles, as a matrix.
SourceBlock Quantizer::measured(const Rectangle& area, const StagingBuffer& staging) const {
  SourceBlock result = staging.block;
  result.data = staging.prefetch.magnitudes;
  result.rows = tiles_down(area);
  result.tile_height = 1;
  return result;
}

std::uint32_t Quantizer::transpose_tensor(const float& factor) const {
  const Extent unit = unit_of(1, 1);
  return transpose_units(groups(unit, unit.rows),
                         [&](const Unit& part, StagingBuffer& staging, Scratch& scratch) {
                           SourceBlock magnitudes = measured(part.area, staging);
                           make_one_tile(magnitudes, nullptr);
                           std::uint32_t amax = 0;
                           kernels_.amax(&magnitudes, &amax);
                           scratch.largest = std::max(scratch.largest, amax);
                           make_one_tile(staging.block, &factor);
                           staging.block.finite = amax < numerics::kF32Infinity;
                         });
}

void Quantizer::transpose_tiles() const {
  const Extent unit = unit_of(tile_height_, tile_width_);
  const auto wanted = static_cast<std::size_t>(kGroupsOfThread * omp_get_max_threads());
  std::vector<Group> all;
  for (std::int64_t tiles = kGroupTiles; tiles > 0 && all.size() < wanted; tiles /= 2) {
    all = groups(unit, round_up(tiles * tile_height_, unit.rows));
  }
  transpose_units(all, [&](const Unit& part, StagingBuffer& staging, Scratch& scratch) {
    prepare_tiles(part, staging, scratch);
  });
}

void Quantizer::prepare_tiles(const Unit& unit, StagingBuffer& staging, Scratch& scratch) const {
  const SourceBlock magnitudes = measured(unit.area, staging);
  scratch.amax.assign(tiles_of(unit.area), 0u);
  kernels_.amax(&magnitudes, scratch.amax.data());
  if (unit.area.row_begin == unit.group.row_begin) {
    scratch.decode.resize(tiles_of(unit.group));
    scratch.decoded = 0;
  }
  choose_scales(unit.area, scratch, scratch.decode.data() + scratch.decoded);
  scratch.decoded += scratch.amax.size();
  if (unit.area.row_end == unit.group.row_end) write_scales(unit.group, scratch.decode);
  staging.block.finite = is_finite(scratch.amax);
  staging.block.factors = scratch.factors.data();
}

std::vector<std::uint32_t> Quantizer::amax_of_tall_tiles() const {
  const Rectangle whole{0, source_.rows, 0, source_.cols};
  const std::int64_t wide = tiles_across(whole);
  std::vector<std::uint32_t> amax(static_cast<std::size_t>(tiles_down(whole) * wide), 0u);
  const std::int64_t bands = (source_.rows + kTransposedRows - 1) / kTransposedRows;
#pragma omp parallel if (bands > 1)
  {
    std::vector<std::uint32_t> own(amax.size(), 0u);
#pragma omp for schedule(static)
    for (std::int64_t b = 0; b < bands; ++b) {
      const std::int64_t end = std::min((b + 1) * kTransposedRows, source_.rows);
      for (std::int64_t r = b * kTransposedRows; r < end;) {
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

void Quantizer::transpose_tall_tiles() const {
  const Rectangle whole{0, source_.rows, 0, source_.cols};
  Scratch all = scratch();
  all.amax = amax_of_tall_tiles();
  all.decode.resize(all.amax.size());
  choose_scales(whole, all, all.decode.data());
  write_scales(whole, all.decode);
  const bool finite = is_finite(all.amax);
  const std::int64_t wide = tiles_across(whole);
  const Extent unit = unit_of(1, tile_width_);
  transpose_units(groups(unit, unit.rows), [&](const Unit& part, StagingBuffer& staging, Scratch&) {
    const Rectangle& area = part.area;
    staging.block.tile_height = area.rows();
    staging.block.factors =
        all.factors.data() + area.row_begin / tile_height_ * wide + area.col_begin / tile_width_;
    staging.block.finite = finite;
  });
}

}  // namespace fp8lab::cpu
