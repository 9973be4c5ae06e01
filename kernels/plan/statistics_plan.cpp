#include "kernels/plan/statistics_plan.hpp"

#include <algorithm>
#include <limits>

#include "kernels/plan/limits.hpp"
#include "kernels/plan/tile_grid.hpp"

namespace fp8lab::cuda {
namespace {

/// Returns true if the groups of every row can be read whole.
bool has_whole_groups(const TensorView& view) {
  const auto size = static_cast<std::int64_t>(size_of(view.dtype));
  return has_aligned_rows(view, std::min(kWidestAccess, kGroup * size));
}

/// Returns true if threads can compute these distances in 32 bits: over that many rows, or over the
/// lanes of a warp.
bool is_short(std::int64_t elements) {
  return elements * static_cast<std::int64_t>(sizeof(float)) * kGroup <=
         std::numeric_limits<int>::max();
}

}  // namespace

bool is_moved(const QuantizedOperand& operand) {
  return operand.spec.transform.is_linear() || operand.source_space;
}

StatisticsReader plan_measure(const TensorView& source, bool transpose,
                              const QuantizedOperand& operand) {
  const TensorView& codes = operand.codes;
  const bool turned = transpose != operand.has_rows_contiguous();
  const bool whole = is_short(source.rows) && is_short(source.cols) && source.rows % kGroup == 0 &&
                     source.cols % kGroup == 0 && has_whole_groups(source) &&
                     has_whole_groups(codes) && is_short(source.row_stride) &&
                     is_short(codes.row_stride) && is_short(operand.scales.row_stride);
  if (!whole || operand.spec.transform.is_compensated()) return StatisticsReader::careful;
  if (codes.dtype != DType::u8) {
    const bool is_source = codes.data == source.data && codes.dtype == source.dtype &&
                           codes.row_stride == source.row_stride && !turned;
    if (!is_source) return StatisticsReader::careful;
    return transpose ? StatisticsReader::source_columns : StatisticsReader::source_rows;
  }
  if (operand.spec.has_codebooks() || transpose != turned) return StatisticsReader::careful;
  const TileGrid grid = tile_grid(source, operand.spec.scale_tile(), transpose);
  const bool wide_tiles = grid.wide == 1 || grid.width % kGroup == 0;
  const bool high_tiles = grid.high == 1 || grid.height % kGroup == 0;
  if (turned) return high_tiles ? StatisticsReader::turned : StatisticsReader::careful;
  if (high_tiles && wide_tiles) return StatisticsReader::straight;
  // A panel begins at a tile border if tiles have 16 columns.
  const bool few = grid.wide == 1 || grid.width * kMostRowTiles >= StatisticsOrder::kPanelCols;
  return grid.height == 1 && wide_tiles && few ? StatisticsReader::tiled_rows
                                               : StatisticsReader::careful;
}

bool is_one_pass(const ops::MeasureBoth& op) {
  if (op.source.size() == 0 || is_moved(op.first) || is_moved(op.second)) return false;
  const StatisticsReader first = plan_measure(op.source, false, op.first);
  const StatisticsReader second = plan_measure(op.source, true, op.second);
  if (first == StatisticsReader::source_rows) return second == StatisticsReader::source_columns;
  return (first == StatisticsReader::tiled_rows || first == StatisticsReader::straight) &&
         second == StatisticsReader::turned && op.first.spec.format == op.second.spec.format;
}

}  // namespace fp8lab::cuda
