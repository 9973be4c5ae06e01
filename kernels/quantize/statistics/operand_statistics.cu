// Statistics of logged operands: from source, codes and scales to the record, on the device.
//
//   source (R, C)    codes, scales         (a source with a transform along K is transformed first)
//        |             |      |            of both orientations, if one kernel can read both
//        v             v      |
//   panel_kernel, one block for 128 x 256 elements (statistics_panel.cuh, statistics_careful.cuh)
//        |          |              |             |          |
//     Tally       totals         amax         nonzero       |      Layout, in memory
//    (counts)   of panels,   (C) FP32 bits  (tiles) flags   |      that persists
//        |        FP64             |             |          v
//        | <--- scan_kernel: scales, one a thread: hash, zero tiles, extremes
//        v          v              v
//   finish_kernel, for many operands at a time (statistics_records.cu)
//
// finish_kernel reads neither source, codes nor scales.
//
// Counts, amaxes and the hash are integers, combined by atomics in any order. Every FP64 addition
// has the order that ops/quantize/operand_statistics.hpp defines.
#include "kernels/quantize/statistics/operand_statistics.hpp"

#include <algorithm>
#include <limits>
#include <type_traits>
#include <utility>

#include "emulation/ops/quantize/operand_checks.hpp"
#include "kernels/plan/statistics_plan.hpp"
#include "kernels/pointwise/rows.cuh"
#include "kernels/quantize/statistics/statistics_panel.cuh"
#include "kernels/quantize/statistics/statistics_records.hpp"
#include "kernels/runtime/operations.hpp"
#include "kernels/transform/transform.hpp"

namespace fp8lab::cuda {
namespace {

/// Returns the value of Compared::qmax.
double largest_code(const QuantSpec& spec) {
  if (spec.transform.is<RangeExpansion>()) return std::numeric_limits<double>::infinity();
  return numerics::max_finite(spec.format);
}

/// Describes an operand to the kernels. `source` is the tensor that was quantized.
Compared comparison(const TensorView& source, bool transpose, const QuantizedOperand& operand) {
  const auto word = static_cast<std::int64_t>(sizeof(std::uint64_t) / size_of(operand.codes.dtype));
  return {source.rows,
          source.cols,
          transpose,
          transpose != operand.has_rows_contiguous(),
          (operand.k + word - 1) / word,
          tile_grid(source, operand.spec.scale_tile(), transpose),
          decoder_of(operand),
          largest_code(operand.spec),
          operand.spec.transform.is_compensated() ? operand.clamp_bounds.row<float>(0) : nullptr};
}

/// The results for an operand, and their offsets in memory.
class Layout {
 public:
  Layout(std::int64_t cols, std::int64_t tiles, std::int64_t panels)
      : amax_(sizeof(Tally)),
        nonzero_(amax_ + static_cast<std::size_t>(cols) * sizeof(std::uint32_t)),
        found_(aligned(nonzero_ + static_cast<std::size_t>(tiles), alignof(FoundOfOperand))),
        totals_(found_ + sizeof(FoundOfOperand)),
        end_(aligned(totals_ + static_cast<std::size_t>(panels) * sizeof(StatisticsTotals), 256)) {}

  std::size_t bytes() const { return end_; }
  PanelResults results(std::byte* memory) const {
    return {reinterpret_cast<StatisticsTotals*>(memory + totals_),
            reinterpret_cast<std::uint32_t*>(memory + amax_),
            reinterpret_cast<std::uint8_t*>(memory + nonzero_), reinterpret_cast<Tally*>(memory)};
  }
  FoundOfOperand* found(std::byte* memory) const {
    return reinterpret_cast<FoundOfOperand*>(memory + found_);
  }

 private:
  static std::size_t aligned(std::size_t bytes, std::size_t alignment) {
    return (bytes + alignment - 1) / alignment * alignment;
  }

  std::size_t amax_, nonzero_, found_, totals_, end_;
};

/// An operand that is being measured. `source` is the tensor that was quantized.
class Measurement {
 public:
  Measurement(const TensorView& source, bool transpose, const QuantizedOperand& operand,
              const TensorView& record)
      : source_(source),
        operand_(operand),
        record_(record),
        compared_(comparison(source, transpose, operand)),
        reader_(plan_measure(source, transpose, operand)),
        bands_((source.rows + StatisticsOrder::kPanelRows - 1) / StatisticsOrder::kPanelRows),
        across_((source.cols + StatisticsOrder::kPanelCols - 1) / StatisticsOrder::kPanelCols),
        layout_(source.cols, compared_.grid.count(), bands_ * across_) {}

  const TensorView& source() const { return source_; }
  const QuantizedOperand& operand() const { return operand_; }
  StatisticsReader reader() const { return reader_; }
  bool is_e4m3() const { return operand_.spec.format == numerics::kE4M3; }
  std::size_t bytes() const { return layout_.bytes(); }
  unsigned panels() const { return static_cast<unsigned>(bands_ * across_); }
  unsigned panels_across() const { return static_cast<unsigned>(across_); }

  template <class Bits>
  PanelOperand<Bits> panel_operand(std::byte* memory) const {
    return {lines_of<Bits>(operand_.codes), compared_, layout_.results(memory)};
  }
  ScaleScan scan(std::byte* memory) const {
    const TensorView& scales = operand_.scales;
    const PanelResults results = layout_.results(memory);
    return {compared_.grid, compared_.transpose, compared_.decoder.scales,       scales.rows,
            scales.cols,    scales.row_stride,   compared_.decoder.tiles_across, results.nonzero,
            results.tally};
  }
  UnfinishedRecord unfinished(std::byte* memory) const {
    return {source_.size(),
            source_.cols,
            compared_.grid.count(),
            bands_,
            across_,
            layout_.results(memory),
            layout_.found(memory),
            static_cast<std::uint8_t*>(record_.data)};
  }

 private:
  TensorView source_;
  const QuantizedOperand& operand_;
  TensorView record_;
  Compared compared_;
  StatisticsReader reader_;
  std::int64_t bands_, across_;
  Layout layout_;
};

/// Calls launch(kStored) with the kind of codes as a type. Precondition:
/// statistics_panel.cuh can read them.
template <class Launch>
void with_stored(const Measurement& measurement, const Launch& launch) {
  if (measurement.is_e4m3()) {
    launch(std::integral_constant<Stored, Stored::e4m3>{});
  } else {
    launch(std::integral_constant<Stored, Stored::codes>{});
  }
}

template <class T, class First, class Second>
void launch_panels(Context& context, const Measurement& measured,
                   const PanelOperand<typename First::Bits>& first,
                   const PanelOperand<typename Second::Bits>& second) {
  panel_kernel<T, First, Second><<<measured.panels(), kPanelThreads, 0, context.stream()>>>(
      lines_of<T>(measured.source()), first, second, measured.panels_across());
  check_launch("operand_statistics: panels");
}
template <class T, class First>
void launch_panels(Context& context, const Measurement& measured, std::byte* memory) {
  launch_panels<T, First, NoOperand>(context, measured,
                                     measured.panel_operand<typename First::Bits>(memory), {});
}

template <class T, Stored kStored>
void launch_careful(Context& context, const Measurement& measured, std::byte* memory) {
  using Bits = StoredBits<kStored>;
  careful_kernel<T, kStored><<<measured.panels(), kPanelThreads, 0, context.stream()>>>(
      lines_of<T>(measured.source()), measured.panel_operand<Bits>(memory),
      measured.panels_across());
  check_launch("operand_statistics: panels with care");
}
template <class T>
void launch_careful(Context& context, const Measurement& measured, std::byte* memory) {
  const QuantizedOperand& operand = measured.operand();
  if (operand.codes.dtype == DType::bf16) {
    launch_careful<T, Stored::bf16>(context, measured, memory);
  } else if (operand.codes.dtype == DType::f32) {
    launch_careful<T, Stored::f32>(context, measured, memory);
  } else if (codebooks_of(operand.spec) != Codebooks::none) {
    launch_careful<T, Stored::codebooks>(context, measured, memory);
  } else {
    launch_careful<T, Stored::codes>(context, measured, memory);
  }
}

template <class T>
void launch_one(Context& context, const Measurement& measured, std::byte* memory) {
  switch (measured.reader()) {
    case StatisticsReader::careful: return launch_careful<T>(context, measured, memory);
    case StatisticsReader::source_rows:
      return launch_panels<T, SourceHash<T, false>>(context, measured, memory);
    case StatisticsReader::source_columns:
      return launch_panels<T, SourceHash<T, true>>(context, measured, memory);
    default: break;
  }
  with_stored(measured, [&](auto stored) {
    if (measured.reader() == StatisticsReader::turned) {
      launch_panels<T, TurnedCodes<T, stored>>(context, measured, memory);
    } else if (measured.reader() == StatisticsReader::straight) {
      launch_panels<T, StraightCodes<T, stored>>(context, measured, memory);
    } else {
      launch_panels<T, TiledRows<T, stored>>(context, measured, memory);
    }
  });
}

template <class T>
void launch_both(Context& context, const Measurement& first, std::byte* first_memory,
                 const Measurement& second, std::byte* second_memory) {
  const auto launch = [&](auto first_kind, auto second_kind) {
    using First = typename decltype(first_kind)::type;
    using Second = typename decltype(second_kind)::type;
    launch_panels<T, First, Second>(context, first,
                                    first.panel_operand<typename First::Bits>(first_memory),
                                    second.panel_operand<typename Second::Bits>(second_memory));
  };
  if (first.reader() == StatisticsReader::source_rows) {
    return launch(std::type_identity<SourceHash<T, false>>{},
                  std::type_identity<SourceHash<T, true>>{});
  }
  with_stored(first, [&](auto stored) {
    const std::type_identity<TurnedCodes<T, stored>> turned;
    if (first.reader() == StatisticsReader::straight) {
      launch(std::type_identity<StraightCodes<T, stored>>{}, turned);
    } else {
      launch(std::type_identity<TiledRows<T, stored>>{}, turned);
    }
  });
}

}  // namespace

void run(Context& context, const ops::MeasureOperand& op) {
  op.check();
  const QuantizedOperand& operand = op.operand;
  const TensorView source =
      is_moved(operand) ? transformed_whole(context, op.source, op.transpose, operand) : op.source;
  if (operand.spec.transform.is_compensated()) check_transform(operand, operand.rows, operand.k);
  const Measurement measured(source, op.transpose, operand, op.record);
  UnfinishedRecords& records = UnfinishedRecords::of(context);
  std::byte* const memory = records.memory(context, measured.bytes(), 1);
  with_rows([&]<class T>(const Rows<T>&) { launch_one<T>(context, measured, memory); }, source);
  const ScaleScan scan = measured.scan(memory);
  scan_scales(context, &scan, 1);
  records.add(measured.unfinished(memory));
}

void measure_both(Context& context, const ops::MeasureBoth& op) {
  op.check();
  const Measurement first(op.source, false, op.first, op.first_record);
  const Measurement second(op.source, true, op.second, op.second_record);
  UnfinishedRecords& records = UnfinishedRecords::of(context);
  std::byte* const memory = records.memory(context, first.bytes() + second.bytes(), 2);
  std::byte* const second_memory = memory + first.bytes();
  const auto launch = [&]<class T>(const Rows<T>&) {
    launch_both<T>(context, first, memory, second, second_memory);
  };
  with_rows(launch, op.source);
  const ScaleScan scans[] = {first.scan(memory), second.scan(second_memory)};
  scan_scales(context, scans, 2);
  records.add(first.unfinished(memory));
  records.add(second.unfinished(second_memory));
}

}  // namespace fp8lab::cuda
