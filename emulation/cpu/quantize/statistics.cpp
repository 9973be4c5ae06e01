#include <algorithm>
#include <cstring>
#include <limits>
#include <optional>
#include <vector>

#include "emulation/cpu/simd/quantize_kernels.hpp"
#include "emulation/cpu/simd/statistics_kernels.hpp"
#include "emulation/numerics/codec.hpp"
#include "emulation/ops/quantize/describe_statistics.hpp"
#include "emulation/ops/quantize/operand_checks.hpp"
#include "emulation/reference/clamp.hpp"
#include "emulation/reference/operand_decode.hpp"
#include "emulation/reference/operand_hash.hpp"
#include "emulation/reference/transform.hpp"

namespace fp8lab::cpu {
namespace {

using numerics::bits_float;
using numerics::float_bits;

constexpr std::int64_t kBlockRows = StatisticsBlock::kRows, kBlockCols = StatisticsBlock::kCols;
constexpr std::int64_t kPanelRows = StatisticsOrder::kPanelRows;
constexpr std::int64_t kPanelCols = StatisticsOrder::kPanelCols;
constexpr int kBlocksDown = kPanelRows / kBlockRows, kBlocksAcross = kPanelCols / kBlockCols;
static_assert(kPanelRows % kBlockRows == 0 && kPanelCols % kBlockCols == 0);

/// Adds neighbours, then neighbouring sums, until one sum is left; `count` is a power of two.
template <class Sum>
Sum combine(Sum* lanes, int count) {
  for (; count > 1; count /= 2) {
    for (int l = 0; l < count / 2; ++l) {
      lanes[l] = lanes[2 * l];
      lanes[l] += lanes[2 * l + 1];
    }
  }
  return lanes[0];
}

StatisticsTotals combine(StatisticsSums& sums) {
  const auto of = [](double* lanes) { return combine(lanes, StatisticsSums::kLanes); };
  return {of(sums.xx), of(sums.xxxx), of(sums.yy), of(sums.ee), of(sums.e), of(sums.x)};
}

/// The counts of one thread; the order of merging does not matter.
struct Seen {
  StatisticsCounts counts{};
  std::vector<std::uint32_t> channel_amax;

  explicit Seen(std::int64_t channels) : channel_amax(static_cast<std::size_t>(channels), 0u) {}

  void merge(const Seen& other) {
    counts.nonfinite += other.counts.nonfinite;
    counts.underflow += other.counts.underflow;
    counts.saturated += other.counts.saturated;
    for (int i = 0; i < kExponentBins; ++i) counts.exponents[i] += other.counts.exponents[i];
    for (std::size_t i = 0; i < channel_amax.size(); ++i) {
      channel_amax[i] = std::max(channel_amax[i], other.channel_amax[i]);
    }
  }
};

/// The comparison of one source with one operand, in the orientation of the source.
class Comparison {
 public:
  Comparison(const TensorView& source, bool transpose, const QuantizedOperand& operand)
      : source_(source), transpose_(transpose), operand_(operand), decoder_(operand) {
    const TileShape& tile = operand.spec.tile;
    const bool scaled = operand.spec.has_scale();
    const std::int64_t height = !scaled ? 0 : transpose ? tile.cols : tile.rows;
    const std::int64_t width = !scaled ? 0 : transpose ? tile.rows : tile.cols;
    tile_height_ = height == 0 ? source.rows : std::min(height, source.rows);
    tile_width_ = width == 0 ? source.cols : std::min(width, source.cols);
    if (operand.spec.transform.is_compensated())
      compensation_ = reference::clamp_bounds_of(operand);
  }

  void compare(StatisticsTotals& totals, Seen& seen) const;
  void scan_tiles(StatisticsParts& parts) const;

 private:
  float scale_of(std::int64_t tile_row, std::int64_t tile_col) const {
    if (!operand_.spec.has_scale()) return 1.0f;
    return transpose_ ? operand_.scales.row<float>(tile_col)[tile_row]
                      : operand_.scales.row<float>(tile_row)[tile_col];
  }
  /// Returns the largest FP32 magnitude that does not count as saturated in a tile. An
  /// expanded tile has no such limit: its scale belongs to its powers, and its largest
  /// value has the code Qmax.
  float limit_of(std::int64_t tile_row, std::int64_t tile_col) const {
    if (operand_.spec.transform.is<RangeExpansion>()) return bits_float(numerics::kF32MaxFinite);
    return saturation_limit(numerics::max_finite(operand_.spec.format),
                            scale_of(tile_row, tile_col));
  }
  /// Returns the totals of one band of rows, panel by panel.
  StatisticsTotals band(std::int64_t row, StatisticsBlock& block, Seen& seen) const;
  StatisticsTotals panel(std::int64_t row, std::int64_t col, StatisticsBlock& block,
                         Seen& seen) const;
  void read(std::int64_t row, std::int64_t col, StatisticsBlock& block) const;
  void read_operand(std::int64_t row, std::int64_t rows, std::int64_t col, std::int64_t cols,
                    float* y) const;
  void read_source(std::int64_t row, std::int64_t col, std::int64_t cols, float* x) const;
  void read_limits(std::int64_t row, std::int64_t col, std::int64_t cols, float* limits) const;
  /// Adds to y the part of x that a compensated clamp removed.
  void add_residual(const float* x, float* y, std::int64_t cols) const;

  const TensorView& source_;
  bool transpose_;
  const QuantizedOperand& operand_;
  reference::OperandDecoder decoder_;
  std::int64_t tile_height_ = 0, tile_width_ = 0;
  std::optional<numerics::ClampBounds> compensation_;
};

void Comparison::read_operand(std::int64_t row, std::int64_t rows, std::int64_t col,
                              std::int64_t cols, float* y) const {
  if (!transpose_) return decoder_.block(row, rows, col, cols, y, kBlockCols);
  float transposed[kBlockCols * kBlockRows];
  decoder_.block(col, cols, row, rows, transposed, kBlockRows);
  for (std::int64_t i = 0; i < rows; ++i) {
    for (std::int64_t j = 0; j < cols; ++j) y[i * kBlockCols + j] = transposed[j * kBlockRows + i];
  }
}

void Comparison::read_source(std::int64_t row, std::int64_t col, std::int64_t cols,
                             float* x) const {
  if (source_.dtype == DType::f32) {
    std::copy_n(source_.row<float>(row) + col, cols, x);
  } else {
    const std::uint16_t* values = source_.row<std::uint16_t>(row) + col;
    for (std::int64_t j = 0; j < cols; ++j) x[j] = numerics::from_bf16(values[j]);
  }
}

void Comparison::add_residual(const float* x, float* y, std::int64_t cols) const {
  for (std::int64_t j = 0; j < cols; ++j) y[j] += numerics::clamp_residual(*compensation_, x[j]);
}

void Comparison::read_limits(std::int64_t row, std::int64_t col, std::int64_t cols,
                             float* limits) const {
  for (std::int64_t j = 0; j < cols;) {
    const std::int64_t tile_col = (col + j) / tile_width_;
    const std::int64_t end = std::min(cols, (tile_col + 1) * tile_width_ - col);
    const float limit = limit_of(row / tile_height_, tile_col);
    for (; j < end; ++j) limits[j] = limit;
  }
}

void Comparison::read(std::int64_t row, std::int64_t col, StatisticsBlock& block) const {
  block.rows = std::min(kBlockRows, source_.rows - row);
  block.cols = std::min(kBlockCols, source_.cols - col);
  if (block.cols < kBlockCols) {
    for (float* values : {block.x, block.y, block.limits}) {
      std::fill_n(values, kBlockRows * kBlockCols, 0.0f);
    }
  }
  read_operand(row, block.rows, col, block.cols, block.y);
  for (std::int64_t i = 0; i < block.rows; ++i) {
    float* x = block.x + i * kBlockCols;
    float* limits = block.limits + i * kBlockCols;
    read_source(row + i, col, block.cols, x);
    if (compensation_) add_residual(x, block.y + i * kBlockCols, block.cols);
    if (i == 0 || (row + i) % tile_height_ == 0) {
      read_limits(row + i, col, block.cols, limits);
    } else {
      std::copy_n(limits - kBlockCols, block.cols, limits);
    }
  }
}

StatisticsTotals Comparison::panel(std::int64_t row, std::int64_t col, StatisticsBlock& block,
                                   Seen& seen) const {
  const StatisticsKernels& kernels = statistics_kernels();
  StatisticsTotals blocks[kBlocksDown * kBlocksAcross] = {};
  for (int i = 0; i < kBlocksDown && row + i * kBlockRows < source_.rows; ++i) {
    for (int j = 0; j < kBlocksAcross && col + j * kBlockCols < source_.cols; ++j) {
      const std::int64_t first = col + j * kBlockCols;
      read(row + i * kBlockRows, first, block);
      StatisticsSums sums;
      kernels.compare(&block, &sums, &seen.counts, seen.channel_amax.data() + first);
      blocks[i * kBlocksAcross + j] = combine(sums);
    }
  }
  return combine(blocks, kBlocksDown * kBlocksAcross);
}

StatisticsTotals Comparison::band(std::int64_t row, StatisticsBlock& block, Seen& seen) const {
  StatisticsTotals totals{};
  for (std::int64_t col = 0; col < source_.cols; col += kPanelCols) {
    totals += panel(row, col, block, seen);
  }
  return totals;
}

void Comparison::compare(StatisticsTotals& totals, Seen& seen) const {
  const std::int64_t bands = (source_.rows + kPanelRows - 1) / kPanelRows;
  std::vector<StatisticsTotals> band_totals(static_cast<std::size_t>(bands));
#pragma omp parallel if (bands > 1)
  {
    Seen mine(source_.cols);
    StatisticsBlock block;
#pragma omp for schedule(static)
    for (std::int64_t b = 0; b < bands; ++b) {
      band_totals[static_cast<std::size_t>(b)] = band(b * kPanelRows, block, mine);
    }
#pragma omp critical(fp8lab_statistics)
    seen.merge(mine);
  }
  for (const StatisticsTotals& part : band_totals) totals += part;
}

void Comparison::scan_tiles(StatisticsParts& parts) const {
  const QuantizeKernels& kernels = quantize_kernels();
  const std::int64_t high = (source_.rows + tile_height_ - 1) / tile_height_;
  const std::int64_t wide = (source_.cols + tile_width_ - 1) / tile_width_;
  std::int64_t zero_tiles = 0;
  float smallest = std::numeric_limits<float>::infinity(), largest = 0.0f;
#pragma omp parallel for schedule(static) reduction(+ : zero_tiles) \
    reduction(min : smallest) reduction(max : largest) if (high > 1)
  for (std::int64_t i = 0; i < high; ++i) {
    std::vector<std::uint32_t> amax(static_cast<std::size_t>(wide), 0u);
    const std::int64_t end = std::min(source_.rows, (i + 1) * tile_height_);
    SourceBlock tiles{};
    tiles.data = source_.row_range(i * tile_height_, end - i * tile_height_).data;
    tiles.next = tiles.data;
    tiles.bf16 = source_.dtype == DType::bf16;
    tiles.rows = end - i * tile_height_;
    tiles.row_stride = source_.row_stride;
    tiles.cols = source_.cols;
    tiles.tile_height = tile_height_;
    tiles.tile_width = tile_width_;
    kernels.amax(&tiles, amax.data());
    for (std::int64_t j = 0; j < wide; ++j) {
      if (amax[static_cast<std::size_t>(j)] == 0) {
        ++zero_tiles;
        continue;
      }
      const float scale = scale_of(i, j);
      if (scale == 0.0f) continue;
      smallest = std::min(smallest, scale);
      largest = std::max(largest, scale);
    }
  }
  parts.tiles = high * wide;
  parts.zero_tiles = zero_tiles;
  parts.smallest_scale = smallest;
  parts.largest_scale = largest;
}

}  // namespace

void run(const ops::MeasureOperand& op) {
  op.check();
  const TensorView& original = op.source;
  const QuantizedOperand& operand = op.operand;
  const bool transpose = op.transpose;
  std::optional<reference::FloatMatrix> values;
  if (operand.spec.transform.is_linear() || operand.source_space) {
    values = reference::transformed_whole(original, transpose, operand);
  }
  const TensorView source = values ? values->view() : original;
  const Comparison comparison(source, transpose, operand);
  Seen seen(source.cols);
  StatisticsParts parts{};
  comparison.compare(parts.sums, seen);
  comparison.scan_tiles(parts);
  parts.elements = source.size();
  parts.counts = seen.counts;
  parts.channels = rank_channels(seen.channel_amax.data(), source.cols);
  parts.hash = reference::operand_hash(operand);
  const OperandStatistics statistics = describe_statistics(parts);
  std::memcpy(op.record.data, &statistics, sizeof statistics);
}

}  // namespace fp8lab::cpu
