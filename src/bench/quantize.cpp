#include "src/bench/quantize.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <limits>
#include <optional>
#include <type_traits>
#include <utility>

#include "emulation/cpu/operations.hpp"
#include "emulation/cpu/simd/aligned_buffer.hpp"
#include "emulation/cpu/simd/target.hpp"
#include "emulation/spec/current_scaling.hpp"
#include "src/bench/bell_values.hpp"
#include "src/bench/simd/peer_transpose.hpp"

namespace fp8lab {
namespace {

template <class Action>
double seconds_of(const Action& action) {
  const auto start = std::chrono::steady_clock::now();
  action();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

QuantSpec spec_of(const numerics::FormatSpec& format, TileShape tile,
                  numerics::ScaleFormat scale_format) {
  QuantSpec spec = quantized(format, tile, scale_format);
  spec.scale.rounding = numerics::ScaleRounding::enc_floor;
  return spec;
}

/// One tensor, its codes and scales, and a buffer to copy it to.
class Bench {
 public:
  Bench(std::int64_t rows, std::int64_t cols)
      : values_(bell_values(rows * cols)),
        copy_(values_.size()),
        scales_(values_.size()),
        source_{values_.data(), DType::bf16, rows, cols, cols} {
    codes_.reserve(values_.size());
  }

  QuantizeBenchRow measure(const QuantSpec& spec, bool transpose, int repetitions) {
    QuantizedOperand operand = operand_for(spec, transpose);
    const auto work = [&] {
      cpu::run(ops::Quantize{.source = source_, .transpose = transpose, .operand = operand});
    };
    double quantize_seconds = std::numeric_limits<double>::infinity();
    double copy_seconds = quantize_seconds;
    for (int i = 0; i < repetitions; ++i) {
      quantize_seconds = std::min(quantize_seconds, seconds_of(work));
      copy_seconds = std::min(copy_seconds, seconds_of([this] { copy(); }));
    }
    const double elements = static_cast<double>(source_.size());
    const double bytes = 3.0 * elements + 4.0 * static_cast<double>(operand.scales.size());
    QuantizeBenchRow row;
    row.operation = label(spec) + (transpose ? " transposed" : "");
    row.target = std::string(cpu::name_of(cpu::active_target()));
    row.gigabytes_per_second = bytes / quantize_seconds * 1e-9;
    row.copy_gigabytes_per_second = 4.0 * elements / copy_seconds * 1e-9;
    row.ratio = row.gigabytes_per_second / row.copy_gigabytes_per_second;
    return row;
  }

 private:
  QuantizedOperand operand_for(const QuantSpec& spec, bool transpose) {
    QuantizedOperand operand;
    operand.spec = spec;
    operand.rows = transpose ? source_.cols : source_.rows;
    operand.k = transpose ? source_.rows : source_.cols;
    operand.codes = {codes_.data(), DType::u8, operand.rows, operand.k, operand.k};
    const std::int64_t tiles = spec.tile_cols(operand.k);
    operand.scales = {scales_.data(), DType::f32, spec.tile_rows(operand.rows), tiles, tiles};
    return operand;
  }

  void copy() {
    const std::int64_t chunk = 1 << 15;
    const auto count = static_cast<std::int64_t>(values_.size());
#pragma omp parallel for schedule(static)
    for (std::int64_t i = 0; i < count; i += chunk) {
      std::memcpy(copy_.data() + i, values_.data() + i,
                  static_cast<std::size_t>(std::min(chunk, count - i)) * sizeof(std::uint16_t));
    }
  }

  std::vector<std::uint16_t> values_, copy_;
  cpu::AlignedBuffer codes_;  // cache-line aligned like a backend's memory
  std::vector<float> scales_;
  TensorView source_;
};

/// Returns the minimum number of passes over the source for quantization by
/// `spec`; see bench_quantize.
int readings(const QuantSpec& spec, bool turned) {
  const bool late = spec.tile.is_tensor() || (spec.tile.is_row() && turned) ||
                    spec.scale.format == numerics::ScaleFormat::nv_two_level;
  return spec.scale_source == ScaleSource::current && late ? 2 : 1;
}

/// One tensor in the memory of a backend, and operands of both orientations.
class BackendBench {
 public:
  BackendBench(Backend& backend, std::int64_t rows, std::int64_t cols)
      : backend_(backend), source_(backend.allocate(DType::bf16, rows, cols)) {
    backend_.upload(source_, bell_values(rows * cols).data());
    copy_ = backend_.allocate(DType::bf16, rows, cols);
  }

  QuantizeBenchRow measure(const QuantSpec& spec, bool row, bool turned, int repetitions) {
    const std::size_t mark = backend_.memory_mark();
    QuantizedOperand first = operand_for(spec, source_.rows, source_.cols, row);
    QuantizedOperand second = operand_for(spec, source_.cols, source_.rows, turned);
    TensorView state;
    if (spec.scale_source == ScaleSource::delayed) {
      state = backend_.allocate(DType::f32, 1, DelayedState::length(spec));
    }
    const double elements = static_cast<double>(source_.size());
    const auto work = [&] {
      if (row && turned)
        return backend_.run(
            ops::QuantizeBoth{.source = source_, .state = state, .first = first, .second = second});
      backend_.run(ops::Quantize{
          .source = source_, .transpose = turned, .state = state, .operand = row ? first : second});
    };
    const double read = 2.0 * elements * readings(spec, turned);
    QuantizeBenchRow result = time(work, read + bytes_of(first) + bytes_of(second), repetitions);
    result.operation = label(spec) + (row && turned ? " both" : turned ? " transposed" : "");
    result.readings = readings(spec, turned);
    backend_.release_to(mark);
    return result;
  }

  /// Measures other operations of recipes: the estimator's factor of a gradient, the inverse
  /// Hadamard transform of a product, and cosines of rows.
  std::vector<QuantizeBenchRow> measure_others(const QuantSpec& estimated, int repetitions) {
    const std::size_t mark = backend_.memory_mark();
    const double elements = static_cast<double>(source_.size());
    std::vector<QuantizeBenchRow> results;
    const auto add = [&](std::string name, double bytes, const auto& work) {
      results.push_back(time(work, bytes, repetitions));
      results.back().operation = std::move(name);
    };
    QuantizedOperand operand = operand_for(estimated, source_.rows, source_.cols, true);
    backend_.run(ops::Quantize{.source = source_, .operand = operand});
    add("estimator_factor " + label(estimated), 6.0 * elements + 4.0 * scales_of(operand), [&] {
      backend_.run(ops::EstimatorFactor{.operand = operand, .source = source_, .d = copy_});
    });
    for (const bool down : {true, false}) {
      QuantizedOperand a = QuantizedOperand::without_memory(estimated, source_.rows, 1);
      QuantizedOperand b = QuantizedOperand::without_memory(estimated, source_.cols, 1);
      (down ? a : b).source_space.transform = transform_from_name("hadamard:32").value();
      add(down ? "rotate_back hadamard:32 of a" : "rotate_back hadamard:32 of b", 4.0 * elements,
          [&] { backend_.run(ops::RotateBack{.a = a, .b = b, .d = copy_}); });
    }
    const TensorView cosines = backend_.allocate(DType::f32, 1, source_.rows);
    add("row_cosines", 4.0 * elements,
        [&] { backend_.run(ops::RowCosines{.a = source_, .b = copy_, .cosines = cosines}); });
    backend_.release_to(mark);
    return results;
  }

  /// Measures the statistics of operands, each orientation separately and both at once; without a
  /// quantizer, the statistics of the source itself.
  std::vector<QuantizeBenchRow> measure_statistics(const std::optional<QuantSpec>& spec,
                                                   int repetitions) {
    const std::size_t mark = backend_.memory_mark();
    const auto operand = [&](bool transpose) {
      const std::int64_t rows = transpose ? source_.cols : source_.rows;
      const std::int64_t k = transpose ? source_.rows : source_.cols;
      if (spec) {
        QuantizedOperand made = operand_for(*spec, rows, k, true);
        backend_.run(ops::Quantize{.source = source_, .transpose = transpose, .operand = made});
        return made;
      }
      QuantSpec bf16;
      bf16.format = numerics::kBF16;
      QuantizedOperand itself = QuantizedOperand::without_memory(bf16, rows, k);
      itself.codes = source_;
      if (transpose) itself.order = StorageOrder::rows_contiguous;
      return itself;
    };
    const QuantizedOperand first = operand(false), second = operand(true);
    const TensorView records = backend_.allocate(DType::u8, 2, sizeof(OperandStatistics));
    const TensorView record = records.row_range(0, 1), second_record = records.row_range(1, 1);
    const auto added = [&](const QuantizedOperand& o) { return spec ? bytes_of(o) : 0.0; };
    const double read = 2.0 * static_cast<double>(source_.size());
    std::vector<QuantizeBenchRow> results;
    const auto add = [&](const char* orientation, double bytes, const auto& op) {
      results.push_back(time([&] { backend_.run(op); }, bytes, repetitions));
      results.back().operation =
          fmt::format("statistics {}{}", spec ? label(*spec) : "of the source", orientation);
    };
    add("", read + added(first),
        ops::MeasureOperand{.source = source_, .operand = first, .record = record});
    add(" transposed", read + added(second),
        ops::MeasureOperand{
            .source = source_, .transpose = true, .operand = second, .record = record});
    add(" both", read + added(first) + added(second),
        ops::MeasureBoth{.source = source_,
                         .first = first,
                         .second = second,
                         .first_record = record,
                         .second_record = second_record});
    backend_.release_to(mark);
    return results;
  }

  /// Measures Eigen's transposed copy of the source, in strips of its rows for the threads.
  QuantizeBenchRow measure_transposed_copy(int repetitions) {
    constexpr std::int64_t kStrip = 64;
    const std::size_t mark = backend_.memory_mark();
    const TensorView turned = backend_.allocate(DType::bf16, source_.cols, source_.rows);
    const PeerTranspose transpose = eigen_transpose();
    const auto work = [&] {
#pragma omp parallel for schedule(static)
      for (std::int64_t r = 0; r < source_.rows; r += kStrip) {
        transpose(source_.row<std::uint16_t>(r), std::min(kStrip, source_.rows - r), source_.cols,
                  source_.row_stride, turned.row<std::uint16_t>(0) + r, turned.row_stride);
      }
    };
    QuantizeBenchRow result = time(work, 4.0 * static_cast<double>(source_.size()), repetitions);
    result.operation = "Eigen's copy transposed";
    backend_.release_to(mark);
    return result;
  }

  /// Measures norms at the residual stream, in one call and as their parts, and separate norms.
  std::vector<QuantizeBenchRow> measure_norms(int repetitions) {
    const std::size_t mark = backend_.memory_mark();
    const Norms norms(*this);
    const ops::RmsNormForward forward = norms.forward(source_);
    const ops::AddRmsNormForward of_sum{
        .a = source_, .b = norms.branch, .norm = norms.forward(norms.sum)};
    const ops::RmsNormBackward backward = norms.backward();
    const ops::RmsNormBackwardAdd added{.norm = backward, .gradient = norms.sum};
    const double bytes = 2.0 * static_cast<double>(source_.size());
    std::vector<QuantizeBenchRow> results;
    const auto add = [&](const std::string& name, int moved, const auto& work) {
      results.push_back(time(work, moved * bytes, repetitions));
      results.back().operation = name;
    };
    Backend& b = backend_;
    add("rmsnorm_forward", 2, [&] { b.run(forward); });
    add("add_rmsnorm_forward", 4, [&] { b.run(of_sum); });
    add("add_rmsnorm_forward in parts", 4, [&] { b.Backend::run(of_sum); });
    b.run(forward);  // computes an rstd for the gradient
    add("rmsnorm_backward", 3, [&] { b.run(backward); });
    add("rmsnorm_backward_add", 4, [&] { b.run(added); });
    add("rmsnorm_backward_add in parts", 4, [&] { b.Backend::run(added); });
    backend_.release_to(mark);
    return results;
  }

  /// Measures the operations that quantize their result, in one call and as their parts.
  std::vector<QuantizeBenchRow> measure_results(const QuantSpec& spec, int repetitions) {
    const std::size_t mark = backend_.memory_mark();
    const std::int64_t rows = source_.rows, cols = source_.cols / 2;
    const TensorView half = backend_.allocate(DType::bf16, rows, cols);
    const Norms norms(*this);
    TensorView state;
    if (spec.scale_source == ScaleSource::delayed) {
      state = backend_.allocate(DType::f32, 1, DelayedState::length(spec));
    }
    QuantizedOperand whole = operand_for(spec, rows, source_.cols, true);
    QuantizedOperand narrow = operand_for(spec, rows, cols, true);
    const double elements = static_cast<double>(source_.size());
    std::vector<QuantizeBenchRow> results;
    Backend& b = backend_;
    const auto add = [&](const char* name, double bytes, const ops::ProduceQuantize& op,
                         int readings = 1) {
      results.push_back(time([&] { b.run(op); }, bytes, repetitions));
      results.back().operation = std::string(name) + " " + label(spec);
      results.push_back(time([&] { run_in_parts(op); }, bytes, repetitions));
      results.back().operation = std::string(name) + " " + label(spec) + " in parts";
      for (std::size_t i = results.size() - 2; i < results.size(); ++i) {
        results[i].readings = readings;
      }
    };
    QuantizedOperand turned = operand_for(spec, source_.cols, rows, true);
    const double of_codes = bytes_of(whole), of_both = of_codes + bytes_of(turned);
    const ops::RmsNormForward norm = norms.forward(source_);
    const ops::AddRmsNormForward of_sum{
        .a = source_, .b = norms.branch, .norm = norms.forward(norms.sum)};
    const auto in_one = [&](const ops::Producer& producer, const QuantizedOperand& operand) {
      return ops::ProduceQuantize{.producer = producer, .state = state, .first = operand};
    };
    const auto in_both = [&](const ops::Producer& producer, const QuantizedOperand& first,
                             const QuantizedOperand& second) {
      return ops::ProduceQuantize{.producer = producer,
                                  .state = state,
                                  .first = first,
                                  .second = &second,
                                  .keeps_output = false};
    };
    add("rmsnorm", 4.0 * elements + of_codes, in_one(norm, whole));
    add("add_rmsnorm", 8.0 * elements + of_codes, in_one(of_sum, whole));
    // A row's rstd requires the whole row, and a block of columns requires all rows.
    add("rmsnorm both", 4.0 * elements + of_both, in_both(norm, whole, turned), 2);
    add("add_rmsnorm both", 8.0 * elements + of_both, in_both(of_sum, whole, turned), 2);
    const ops::GatedForward swiglu{.gate = Gate::silu, .gate_up = source_, .out = half};
    add("swiglu", 3.0 * elements + bytes_of(narrow), in_one(swiglu, narrow));
    QuantizedOperand narrow_turned = operand_for(spec, cols, rows, true);
    add("swiglu both", 2.0 * elements + bytes_of(narrow) + bytes_of(narrow_turned),
        in_both(swiglu, narrow, narrow_turned));
    const ops::GatedBackward swiglu_backward{
        .gate = Gate::silu, .gate_up = source_, .dout = half, .dgate_up = copy_};
    add("swiglu backward both", 3.0 * elements + of_both, in_both(swiglu_backward, whole, turned));
    backend_.release_to(mark);
    return results;
  }

 private:
  /// Tensors of the residual stream and its norms, besides the source and its copy.
  struct Norms {
    TensorView x, y, branch, sum, weight, rstd, dweight;

    explicit Norms(const BackendBench& bench) : x(bench.source_), y(bench.copy_) {
      Backend& backend = bench.backend_;
      branch = backend.allocate(DType::bf16, x.rows, x.cols);
      sum = backend.allocate(DType::bf16, x.rows, x.cols);
      backend.run(ops::Copy{x, branch});
      weight = x.row_range(0, 1);
      rstd = backend.allocate(DType::f32, 1, x.rows);
      dweight = backend.allocate(DType::f32, 1, x.cols);
    }
    ops::RmsNormForward forward(const TensorView& of) const { return {of, weight, 1e-6f, y, rstd}; }
    ops::RmsNormBackward backward() const { return {branch, x, weight, rstd, y, dweight}; }
  };

  /// Runs the norm of a sum as two operations, and both orientations separately.
  void run_in_parts(const ops::ProduceQuantize& op) {
    op.for_each_part([this](const auto& part) {
      if constexpr (std::is_same_v<std::decay_t<decltype(part)>, ops::AddRmsNormForward>) {
        backend_.Backend::run(part);
      } else {
        backend_.run(part);
      }
    });
  }

  static double scales_of(const QuantizedOperand& operand) {
    return static_cast<double>(operand.scales.size());
  }
  static double bytes_of(const QuantizedOperand& operand) {
    return static_cast<double>(operand.codes.size()) + 4.0 * scales_of(operand);
  }

  /// Times `work`, which moves `bytes` bytes, alternately with a copy of the source.
  template <class Work>
  QuantizeBenchRow time(const Work& work, double bytes, int repetitions) {
    double seconds = std::numeric_limits<double>::infinity(), copy_seconds = seconds;
    for (int i = 0; i < repetitions; ++i) {
      seconds = std::min(seconds, seconds_of_calls(work));
      copy_seconds = std::min(copy_seconds, seconds_of_calls([this] {
                                backend_.run(ops::Copy{source_, copy_});
                              }));
    }
    QuantizeBenchRow result;
    result.target = backend_.name();
    result.gigabytes_per_second = bytes / seconds * 1e-9;
    result.copy_gigabytes_per_second =
        4.0 * static_cast<double>(source_.size()) / copy_seconds * 1e-9;
    result.ratio = result.gigabytes_per_second / result.copy_gigabytes_per_second;
    return result;
  }

  QuantizedOperand operand_for(const QuantSpec& spec, std::int64_t rows, std::int64_t k,
                               bool wanted) {
    QuantizedOperand operand;
    if (!wanted) return operand;
    operand.spec = spec;
    operand.rows = rows;
    operand.k = k;
    operand.codes = backend_.allocate(DType::u8, rows, k);
    operand.scales = backend_.allocate(DType::f32, spec.tile_rows(rows), spec.scale_cols(k));
    return operand;
  }

  template <class Action>
  double seconds_of_calls(const Action& action) {
    constexpr int kCalls = 10;
    backend_.synchronize();
    return seconds_of([&] {
             for (int i = 0; i < kCalls; ++i) action();
             backend_.synchronize();
           }) /
           kCalls;
  }

  Backend& backend_;
  TensorView source_, copy_;
};

}  // namespace

std::vector<QuantizeBenchRow> bench_quantize(Backend& backend, std::int64_t rows, std::int64_t cols,
                                             int repetitions) {
  using numerics::ScaleFormat;
  QuantSpec delayed = spec_of(numerics::kE4M3, {}, ScaleFormat::fp32);
  delayed.scale_source = ScaleSource::delayed;
  QuantSpec expanded = quantized(numerics::kE4M3, {1, 128});
  expanded.transform.kind = RangeExpansion{};
  QuantSpec estimated = spec_of(numerics::kE2M1, {1, 32}, ScaleFormat::e8m0);
  QuantSpec deviations = estimated, rotated = estimated;
  estimated.estimator.kind = numerics::EstimatorKind::clip_mask;
  deviations.scale.deviations = 2.92247856f;  // QuEST's factor for E2M1
  rotated.transform = transform_from_name("hadamard:32").value();
  QuantSpec stochastic = spec_of(numerics::kE2M1, {1, 16}, ScaleFormat::nv_two_level);
  stochastic.rounding = numerics::Rounding::stochastic;
  const QuantSpec specs[] = {
      delayed,
      spec_of(numerics::kE4M3, {}, ScaleFormat::fp32),
      spec_of(numerics::kE4M3, {1, 0}, ScaleFormat::fp32),
      spec_of(numerics::kE4M3, {1, 128}, ScaleFormat::fp32),
      spec_of(numerics::kE5M2, {1, 128}, ScaleFormat::pow2),
      spec_of(numerics::kE4M3, {128, 128}, ScaleFormat::fp32),
      spec_of(numerics::kE4M3, {1, 32}, ScaleFormat::e8m0),
      spec_of(numerics::kE4M3, {1, 16}, ScaleFormat::fp32),
      spec_of(numerics::kE2M1, {1, 16}, ScaleFormat::nv_two_level),
      stochastic,
      spec_of(numerics::kE2M1, {16, 16}, ScaleFormat::nv_two_level),
      spec_of(numerics::kE2M1, {1, 32}, ScaleFormat::e8m0),
      deviations,
      rotated,
      spec_of(numerics::kInt8, {1, 0}, ScaleFormat::fp32),
      expanded,
  };
  BackendBench bench(backend, rows, cols);
  std::vector<QuantizeBenchRow> results;
  const auto add_all = [&results](const std::vector<QuantizeBenchRow>& rows_of_one) {
    results.insert(results.end(), rows_of_one.begin(), rows_of_one.end());
  };
  for (const QuantSpec& spec : specs) {
    results.push_back(bench.measure(spec, true, false, repetitions));
    results.push_back(bench.measure(spec, false, true, repetitions));
    results.push_back(bench.measure(spec, true, true, repetitions));
  }
  add_all(bench.measure_others(estimated, repetitions));
  for (const QuantSpec& spec : {spec_of(numerics::kE4M3, {}, ScaleFormat::fp32),
                                spec_of(numerics::kE4M3, {1, 0}, ScaleFormat::fp32),
                                spec_of(numerics::kE4M3, {1, 128}, ScaleFormat::fp32),
                                spec_of(numerics::kE4M3, {128, 128}, ScaleFormat::fp32),
                                spec_of(numerics::kE4M3, {1, 32}, ScaleFormat::e8m0),
                                spec_of(numerics::kE4M3, {1, 16}, ScaleFormat::fp32),
                                spec_of(numerics::kE5M2, {1, 128}, ScaleFormat::pow2)}) {
    add_all(bench.measure_statistics(spec, repetitions));
  }
  add_all(bench.measure_statistics(std::nullopt, repetitions));
  if (backend.name() == "cpu") results.push_back(bench.measure_transposed_copy(repetitions));
  for (QuantizeBenchRow& row : bench.measure_norms(repetitions)) results.push_back(std::move(row));
  if (cols % 2 != 0) return results;  // SwiGLU halves the columns
  for (const QuantSpec& spec : {delayed, spec_of(numerics::kE4M3, {1, 0}, ScaleFormat::fp32),
                                spec_of(numerics::kE4M3, {1, 128}, ScaleFormat::fp32),
                                spec_of(numerics::kE4M3, {1, 32}, ScaleFormat::e8m0)}) {
    add_all(bench.measure_results(spec, repetitions));
  }
  return results;
}

std::vector<QuantizeBenchRow> bench_quantize(std::int64_t rows, std::int64_t cols,
                                             int repetitions) {
  using numerics::ScaleFormat;
  const TileShape tensor{0, 0}, row{1, 0}, group{1, 128}, block{128, 128}, mx{1, 32};
  const struct {
    QuantSpec spec;
    bool transpose;
  } cases[] = {
      {spec_of(numerics::kE4M3, group, ScaleFormat::fp32), false},
      {spec_of(numerics::kE4M3, group, ScaleFormat::pow2), false},
      {spec_of(numerics::kE4M3, group, ScaleFormat::pow2), true},
      {spec_of(numerics::kE4M3, block, ScaleFormat::pow2), false},
      {spec_of(numerics::kE4M3, block, ScaleFormat::pow2), true},
      {spec_of(numerics::kE4M3, tensor, ScaleFormat::fp32), false},
      {spec_of(numerics::kE5M2, tensor, ScaleFormat::fp32), false},
      {spec_of(numerics::kE5M2, tensor, ScaleFormat::fp32), true},
      {spec_of(numerics::kE4M3, row, ScaleFormat::fp32), false},
      {spec_of(numerics::kE4M3, mx, ScaleFormat::e8m0), false},
      {spec_of(numerics::kE2M1, mx, ScaleFormat::e8m0), false},
  };
  Bench bench(rows, cols);
  std::vector<QuantizeBenchRow> results;
  const cpu::SimdTarget before = cpu::active_target();
  for (const cpu::SimdTarget target : cpu::available_targets()) {
    cpu::set_active_target(target);
    for (const auto& c : cases) results.push_back(bench.measure(c.spec, c.transpose, repetitions));
  }
  cpu::set_active_target(before);
  return results;
}

}  // namespace fp8lab
