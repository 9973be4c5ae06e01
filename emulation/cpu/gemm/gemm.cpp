#include "emulation/cpu/gemm/gemm.hpp"

#include <omp.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "emulation/base/error.hpp"
#include "emulation/cpu/gemm/exact_chain.hpp"
#include "emulation/cpu/gemm/gemm_operand.hpp"
#include "emulation/cpu/simd/aligned_buffer.hpp"
#include "emulation/cpu/simd/gemm_kernels.hpp"
#include "emulation/numerics/codec.hpp"
#include "emulation/ops/gemm/gemm_plan.hpp"
#include "emulation/reference/gemm_reference.hpp"
#include "emulation/reference/multiplied_operand.hpp"

namespace fp8lab::cpu {
namespace {

// Block sizes; none of them affects the bits.
constexpr std::int64_t kRowBlock = 60;                // a multiple of the kernels' 3 or 4 rows
constexpr std::int64_t kSmallRowBlock = 30;           // for a K whose 60 rows leave the L2
constexpr std::int64_t kPackedRowBytes = 2 << 20;     // packed rows of one block
constexpr std::int64_t kPackedPanelBytes = 64 << 20;  // packed panels in memory at a time
constexpr std::int64_t kTasksPerThread = 4;
constexpr std::int64_t kSerialProducts = 1 << 18;  // below this waking threads costs too much

// One chain: a promotion chunk, or a whole split-K range.
struct Chunk {
  std::int64_t begin = 0;
  std::int64_t length = 0;
  std::int64_t behind = 0;  // products of its range after this chain
  std::int64_t group = 0;   // groups of the packed row before this chain
  std::int64_t scales = 0;  // index of its first gathered scales
};

// `k`: length of the packed operands along K.
std::vector<Chunk> list_chunks(const GemmPlan& plan, std::int64_t k, std::int64_t group) {
  std::vector<Chunk> chunks;
  std::int64_t groups = 0;
  for (const KRange& range : plan.ranges) {
    const std::int64_t range_end = range.end == plan.k ? k : range.end;
    const std::int64_t step = plan.promoted ? plan.chunk : range_end - range.begin;
    for (std::int64_t begin = range.begin; begin < range_end; begin += step) {
      const std::int64_t length = std::min(step, range_end - begin);
      const std::int64_t behind = range_end - begin - length;
      chunks.push_back({begin, length, behind, groups});
      groups += (length + group - 1) / group;
    }
  }
  return chunks;
}

// Scratch memory of one thread.
struct Scratch {
  AlignedBuffer rows, step, partial, accumulator, total, sums;
  ExponentsAhead ahead;
};

// What the GEMM stores of an element: d after the epilogue, or its accumulator (f32) before it.
enum class Store : std::uint8_t { output, accumulator };

class FastGemm {
 public:
  FastGemm(Store store, const FastMethod& method, const GemmPlan& plan, const QuantizedOperand& a,
           const QuantizedOperand& b, const TensorView& bias, bool accumulate, const TensorView& d)
      : store_(store),
        method_(specialise(method, plan, gemm_kernels())),
        plan_(plan),
        a_(a),
        b_(b),
        accumulate_(accumulate),
        d_(d),
        kernels_(gemm_kernels()),
        sizes_(packed_sizes(method_, kernels_)),
        codes_a_(method_, a, plan.format_a),
        codes_b_(method_, b, plan.format_b),
        chunks_(list_chunks(plan, codes_a_.k(), sizes_.group)),
        threads_(a.rows * b.rows * plan.k < kSerialProducts ? 1 : omp_get_max_threads()) {
    const Chunk& last = chunks_.back();
    groups_ = last.group + (last.length + sizes_.group - 1) / sizes_.group;
    const std::int64_t fitting = kPackedRowBytes / (groups_ * sizes_.group_bytes);
    row_block_ = sizes_.rows > 0 ? sizes_.rows : std::clamp(fitting, kSmallRowBlock, kRowBlock);
    // FP32 and FP64 rows are contiguous. Other rows are stored group by group: the parts of all
    // rows of one group follow each other.
    const bool exact = method_.carrier == Carrier::f64;
    const bool plain = method_.carrier == Carrier::f32 || exact;
    row_bytes_ = plain ? groups_ * sizes_.group_bytes : sizes_.group_bytes;
    group_bytes_ = plain ? sizes_.group_bytes : row_block_ * sizes_.group_bytes;
    if (!bias.empty()) widen_bias(bias);
    gather_scales();
    if (exact) gather_extents();
  }

  void run() {
    const std::int64_t panels = panel_count();
    const std::int64_t bytes = panel_bytes();
    const std::int64_t at_once = std::clamp<std::int64_t>(kPackedPanelBytes / bytes, 1, panels);
    auto* packed = packed_b_.reserve_as<std::byte>(static_cast<std::size_t>(at_once * bytes));
    for (std::int64_t first = 0; first < panels; first += at_once) {
      const std::int64_t count = std::min(at_once, panels - first);
#pragma omp parallel for schedule(static) num_threads(threads_)
      for (std::int64_t p = 0; p < count; ++p) {
        codes_b_.pack_panel(kernels_, (first + p) * sizes_.columns, packed + p * bytes);
      }
      multiply_panels(packed, first, count);
    }
  }

 private:
  void widen_bias(const TensorView& bias) {
    bias_.resize(static_cast<std::size_t>(bias.cols));
    for (std::int64_t n = 0; n < bias.cols; ++n) {
      bias_[static_cast<std::size_t>(n)] =
          bias.dtype == DType::bf16 ? numerics::from_bf16(bias.row<const std::uint16_t>(0)[n])
                                    : bias.row<const float>(0)[n];
    }
  }

  std::int64_t panel_count() const { return (b_.rows + sizes_.columns - 1) / sizes_.columns; }
  std::int64_t panel_bytes() const { return groups_ * sizes_.group * sizes_.step_bytes; }
  std::int64_t padded_columns() const { return panel_count() * sizes_.columns; }
  // Returns whether the epilogue multiplies by a scale of each row and column.
  bool outer() const { return plan_.order == ScaleOrder::epilogue && !plan_.scalar_scales; }

  // Gathers the scales that promotion, the epilogue or block sums look up for every tile.
  void gather_scales() {
    if (outer()) return gather_scales_at(0);
    const std::int64_t width = method_.exact_products;
    const bool packed = plan_.order == ScaleOrder::in_instruction && width == 0;
    if (plan_.order == ScaleOrder::epilogue || packed) return;
    std::int64_t places = 0;
    for (Chunk& chunk : chunks_) {
      const std::int64_t step = width > 0 ? width : chunk.length;
      chunk.scales = places;
      for (std::int64_t k = 0; k < chunk.length; k += step, ++places) {
        gather_scales_at(chunk.begin + k);
      }
    }
  }

  // Gathers, chunk by chunk, the extents that bound the errors of FP64 sums; zeros for
  // columns beyond the matrix.
  void gather_extents() {
    const auto gather = [&](const CarriedCodes& codes, std::int64_t rows, std::int64_t padded) {
      std::vector<numerics::ExactExtent> extents(chunks_.size() * static_cast<std::size_t>(padded));
#pragma omp parallel for schedule(static) num_threads(threads_)
      for (std::int64_t r = 0; r < rows; ++r) {
        std::size_t place = static_cast<std::size_t>(r);
        for (const Chunk& chunk : chunks_) {
          extents[place] = exact_extent(codes.values(r) + chunk.begin, chunk.length);
          place += static_cast<std::size_t>(padded);
        }
      }
      return extents;
    };
    extents_a_ = gather(codes_a_, a_.rows, a_.rows);
    extents_b_ = gather(codes_b_, b_.rows, padded_columns());
  }

  // Appends the scales of all rows and columns at k0; 1 for columns beyond the matrix.
  void gather_scales_at(std::int64_t k0) {
    append_scales(a_, k0, scales_a_);
    append_scales(b_, k0, scales_b_);
    scales_b_.insert(scales_b_.end(), static_cast<std::size_t>(padded_columns() - b_.rows), 1.0f);
  }
  static void append_scales(const QuantizedOperand& operand, std::int64_t k0,
                            std::vector<float>& scales) {
    const std::int64_t tile_rows = operand.spec.tile.rows;
    const std::int64_t step = tile_rows == 0 ? operand.rows : tile_rows;
    for (std::int64_t row = 0; row < operand.rows; row += step) {
      const auto count = static_cast<std::size_t>(std::min(step, operand.rows - row));
      scales.insert(scales.end(), count, scale_at(operand, row, k0));
    }
  }
  const float* row_scales(std::int64_t index, std::int64_t row) const {
    return scales_a_.data() + index * a_.rows + row;
  }
  const float* column_scales(std::int64_t index, std::int64_t column) const {
    return scales_b_.data() + index * padded_columns() + column;
  }

  // Multiplies all rows by `count` packed panels, beginning with panel `first`.
  void multiply_panels(const std::byte* packed, std::int64_t first, std::int64_t count) {
    const std::int64_t blocks = (a_.rows + row_block_ - 1) / row_block_;
    const std::int64_t wanted = kTasksPerThread * threads_;
    const std::int64_t pieces =
        threads_ == 1 ? 1 : std::clamp<std::int64_t>(wanted / blocks, 1, count);
#pragma omp parallel num_threads(threads_)
    {
      Scratch scratch;
#pragma omp for schedule(dynamic)
      for (std::int64_t task = 0; task < blocks * pieces; ++task) {
        const std::int64_t row = task / pieces * row_block_;
        const std::int64_t rows = std::min(row_block_, a_.rows - row);
        const std::int64_t piece = task % pieces;
        pack_rows(row, rows, scratch);
        for (std::int64_t p = count * piece / pieces; p < count * (piece + 1) / pieces; ++p) {
          multiply_tile(row, rows, packed + p * panel_bytes(), (first + p) * sizes_.columns,
                        scratch);
        }
      }
    }
  }

  void pack_rows(std::int64_t row, std::int64_t rows, Scratch& scratch) const {
    const std::int64_t bytes = row_block_ * groups_ * sizes_.group_bytes;
    auto* out = scratch.rows.reserve_as<std::byte>(static_cast<std::size_t>(bytes));
    for (std::int64_t r = 0; r < rows; ++r) {
      for (const Chunk& chunk : chunks_) {
        codes_a_.pack_row(kernels_, row + r, chunk.begin, chunk.length,
                          out + r * row_bytes_ + chunk.group * group_bytes_, group_bytes_);
      }
    }
  }

  void multiply_tile(std::int64_t row, std::int64_t rows, const std::byte* panel,
                     std::int64_t column, Scratch& scratch) const {
    const auto elements = static_cast<std::size_t>(rows * sizes_.columns);
    float* partial = scratch.partial.reserve_as<float>(elements);
    float* accumulator = scratch.accumulator.reserve_as<float>(elements);
    float* total = plan_.split() ? scratch.total.reserve_as<float>(elements) : accumulator;
    bool range_begins = true;
    bool first_range = true;
    for (const Chunk& chunk : chunks_) {
      // A partial sum is never -0, so the first one of a range is stored without an addition to +0.
      const bool direct = range_begins && (plan_.order == ScaleOrder::epilogue ||
                                           plan_.order == ScaleOrder::in_instruction);
      run_chain(chunk, row, rows, column, panel, direct ? accumulator : partial, scratch);
      if (!direct) add_partial(chunk, row, rows, column, partial, range_begins, accumulator);
      range_begins = chunk.behind == 0;
      if (!range_begins || !plan_.split()) continue;
      if (first_range) {
        std::copy_n(accumulator, elements, total);
        first_range = false;
      } else {
        const PromotionTile sum{ScaleOrder::epilogue, false, rows,    sizes_.columns,
                                accumulator,          total, nullptr, nullptr};
        kernels_.promote(&sum);
      }
    }
    if (store_ == Store::accumulator) return store_tile(row, rows, column, total);
    finish_tile(row, rows, column, total);
  }

  void store_tile(std::int64_t row, std::int64_t rows, std::int64_t column,
                  const float* tile) const {
    const std::int64_t columns = std::min(sizes_.columns, b_.rows - column);
    for (std::int64_t r = 0; r < rows; ++r) {
      std::copy_n(tile + r * sizes_.columns, columns, d_.row<float>(row + r) + column);
    }
  }

  void run_chain(const Chunk& chunk, std::int64_t row, std::int64_t rows, std::int64_t column,
                 const std::byte* panel, float* c, Scratch& scratch) const {
    ChainTile tile{};
    tile.a = static_cast<const std::byte*>(scratch.rows.data()) + chunk.group * group_bytes_;
    tile.a_row_bytes = row_bytes_;
    tile.a_group_bytes = group_bytes_;
    tile.rows = rows;
    tile.b = panel + chunk.begin * sizes_.step_bytes;
    tile.k = chunk.length;
    tile.c = c;
    tile.from_zero = true;
    tile.last_column = sizes_.columns;
    tile.ahead = &scratch.ahead;
    tile.k_behind = chunk.behind;
    if (method_.exact_products > 0) return run_block_sums(chunk, tile, row, column, scratch);
    if (method_.carrier == Carrier::f32) return kernels_.f32_chain(&tile);
    if (method_.carrier == Carrier::f64) return run_exact_sums(chunk, tile, row, column, scratch);
    if (method_.mma_sync) return run_mma_sync(tile, scratch);
    const TowardZero rounding;
    kernels_.chain(method_.kind, tile);
  }

  // Computes FP64 sums and rounds them to FP32 as exact sums.
  void run_exact_sums(const Chunk& chunk, const ChainTile& tile, std::int64_t row,
                      std::int64_t column, Scratch& scratch) const {
    const std::int64_t columns = sizes_.columns;
    auto* sums = scratch.sums.reserve_as<double>(static_cast<std::size_t>(tile.rows * columns));
    kernels_.f64_chain(&tile, sums);
    const auto index = static_cast<std::size_t>(&chunk - chunks_.data());
    const numerics::ExactExtent* left =
        extents_a_.data() + index * static_cast<std::size_t>(a_.rows) + row;
    const numerics::ExactExtent* right =
        extents_b_.data() + index * static_cast<std::size_t>(padded_columns()) + column;
    std::vector<double> errors(static_cast<std::size_t>(columns));
    for (std::int64_t r = 0; r < tile.rows; ++r) {
      for (std::int64_t j = 0; j < columns; ++j) {
        errors[static_cast<std::size_t>(j)] =
            numerics::exact_error_bound(left[r], right[j], tile.k);
      }
      round_exactly({reinterpret_cast<const double*>(tile.a + r * tile.a_row_bytes),
                     reinterpret_cast<const double*>(tile.b), columns, tile.k, columns,
                     sums + r * columns, errors.data()},
                    tile.c + r * columns);
    }
  }

  // Runs a chain of groups, each of up to kBlockSums exact sums.
  void run_block_sums(const Chunk& chunk, const ChainTile& tile, std::int64_t row,
                      std::int64_t column, Scratch& scratch) const {
    const std::int64_t width = method_.exact_products, elements = tile.rows * sizes_.columns;
    auto* sums = scratch.step.reserve_as<float>(static_cast<std::size_t>(kBlockSums * elements));
    BlockSumTile group{};
    group.rows = tile.rows;
    group.columns = sizes_.columns;
    group.sums = sums;
    group.scale_a_stride = a_.rows;
    group.scale_b_stride = padded_columns();
    group.scale_exponent = plan_.scale_format.min_exponent();
    group.accumulator = tile.c;
    group.from_zero = true;
    std::int64_t scales = chunk.scales;
    for (std::int64_t k = 0; k < tile.k; k += width) {
      ChainTile block = tile;
      block.a = tile.a + k * tile.a_group_bytes;
      block.b = tile.b + k * sizes_.step_bytes;
      block.k = std::min(width, tile.k - k);
      block.c = sums + group.blocks * elements;
      kernels_.f32_chain(&block);
      ++group.blocks;
      if (group.blocks < kBlockSums && k + width < tile.k) continue;
      group.scale_a = row_scales(scales, row);
      group.scale_b = column_scales(scales, column);
      const TowardZero rounding;
      kernels_.add_block_sums(&group);
      scales += group.blocks;
      group.blocks = 0;
      group.from_zero = false;
    }
  }

  // Runs a chain of mma.sync instructions. Each instruction is a chain of two groups from zero,
  // whose sum is then added.
  void run_mma_sync(const ChainTile& tile, Scratch& scratch) const {
    ChainTile step = tile;
    step.k = 2 * method_.group;
    auto* sums =
        scratch.step.reserve_as<float>(static_cast<std::size_t>(tile.rows * sizes_.columns));
    for (std::int64_t k = 0; k < tile.k; k += step.k) {
      step.c = k == 0 ? tile.c : sums;
      step.a = tile.a + k / method_.group * tile.a_group_bytes;
      step.b = tile.b + k * sizes_.step_bytes;
      {
        const TowardZero rounding;
        kernels_.chain(method_.kind, step);
      }
      if (k == 0) continue;
      const PromotionTile sum{ScaleOrder::epilogue,
                              method_.f16_promotion,
                              tile.rows,
                              sizes_.columns,
                              sums,
                              tile.c,
                              nullptr,
                              nullptr};
      kernels_.promote(&sum);
    }
  }

  void add_partial(const Chunk& chunk, std::int64_t row, std::int64_t rows, std::int64_t column,
                   const float* partial, bool from_zero, float* accumulator) const {
    PromotionTile tile{plan_.order, false,   rows,    sizes_.columns, partial,
                       accumulator, nullptr, nullptr, from_zero};
    if (numerics::scales_promotion(plan_.order)) {
      tile.scale_a = row_scales(chunk.scales, row);
      tile.scale_b = column_scales(chunk.scales, column);
    }
    kernels_.promote(&tile);
  }

  void finish_tile(std::int64_t row, std::int64_t rows, std::int64_t column, float* tile) const {
    EpilogueRow out{};
    out.columns = std::min(sizes_.columns, b_.rows - column);
    out.split_k = plan_.split();
    out.bias = bias_.empty() ? nullptr : bias_.data() + column;
    out.bf16 = d_.dtype == DType::bf16;
    out.factor = plan_.alpha;
    out.outer = outer();
    const bool scaled = plan_.order == ScaleOrder::epilogue;
    if (scaled && plan_.scalar_scales) {
      out.factor = (plan_.alpha * scale_at(a_, 0, 0)) * scale_at(b_, 0, 0);
    }
    if (out.outer) out.scale_b = column_scales(0, column);
    for (std::int64_t r = 0; r < rows; ++r) {
      if (out.outer) out.scale_a = row_scales(0, row)[r];
      out.accumulator = tile + r * sizes_.columns;
      out.c = accumulate_ ? d_.row<const float>(row + r) + column : nullptr;
      out.output = out.bf16 ? static_cast<void*>(d_.row<std::uint16_t>(row + r) + column)
                            : static_cast<void*>(d_.row<float>(row + r) + column);
      kernels_.finish_row(&out);
    }
  }

  Store store_;
  FastMethod method_;
  const GemmPlan& plan_;
  const QuantizedOperand& a_;
  const QuantizedOperand& b_;
  bool accumulate_;
  TensorView d_;
  const GemmKernels& kernels_;
  PackedSizes sizes_;
  CarriedCodes codes_a_, codes_b_;
  std::vector<Chunk> chunks_;
  int threads_;
  std::vector<float> bias_;
  std::vector<float> scales_a_, scales_b_;  // (places along K, rows); (places, padded columns)
  std::vector<numerics::ExactExtent> extents_a_,
      extents_b_;                 // (chunks, rows); (chunks, padded columns)
  std::int64_t groups_ = 0;       // groups of a packed row
  std::int64_t row_bytes_ = 0;    // bytes between packed rows
  std::int64_t group_bytes_ = 0;  // bytes between the groups of a packed row
  std::int64_t row_block_ = 0;
  AlignedBuffer packed_b_;
};

}  // namespace

void run(const ops::Gemm& op) {
  using reference::MultipliedOperand;
  if (MultipliedOperand::is_copy(op.a) || MultipliedOperand::is_copy(op.b)) {
    const std::string reason = gemm_refusal(op.spec, op.a.spec, op.b.spec);
    if (!reason.empty()) throw Error(reason);
    const MultipliedOperand x(op.spec.accumulator, op.a), y(op.spec.accumulator, op.b);
    return run(ops::Gemm{.spec = op.spec,
                         .a = x.get(),
                         .b = y.get(),
                         .bias = op.bias,
                         .accumulate = op.accumulate,
                         .d = op.d});
  }
  const GemmPlan plan = plan_gemm(op.spec, op.a.spec, op.b.spec, op.a.k);
  check_gemm_operands(op.spec, plan, op.a, op.b, op.bias, op.accumulate, op.d);
  check_block_scales(plan, op.a, op.b);
  if (op.a.rows == 0 || op.b.rows == 0) return;
  const std::optional<FastMethod> method = fast_method(op.spec.accumulator);
  if (!method) return reference::gemm(op);
  FastGemm(Store::output, *method, plan, op.a, op.b, op.bias, op.accumulate, op.d).run();
}

void gemm_accumulators(const GemmPlan& plan, const QuantizedOperand& a, const QuantizedOperand& b,
                       const TensorView& accumulators) {
  if (a.rows == 0 || b.rows == 0) return;
  const std::optional<FastMethod> method = fast_method(plan.accumulator);
  if (!method) return reference::gemm_accumulators(plan, a, b, accumulators);
  FastGemm(Store::accumulator, *method, plan, a, b, {}, false, accumulators).run();
}

}  // namespace fp8lab::cpu
