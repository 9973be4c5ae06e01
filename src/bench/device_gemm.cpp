#include "src/bench/device_gemm.hpp"

#include <algorithm>
#include <cmath>
#include <optional>

#include "emulation/spec/current_scaling.hpp"
#include "emulation/spec/slot.hpp"
#include "kernels/library/gemm_cublaslt.hpp"
#include "kernels/runtime/operations.hpp"
#include "src/bench/device_bench.hpp"

namespace fp8lab {
namespace {

using Bytes = cuda::DeviceArray<std::byte>;
constexpr StorageOrder kAlongK = StorageOrder::k_contiguous;

struct Shape {
  std::string layer;
  std::string pass;
  std::int64_t m, n, k;
  StorageOrder order_a = StorageOrder::k_contiguous,
               order_b = order_a;  ///< storage order of operands that are not copied
};

struct Mode {
  const char* name;
  GemmSpec gemm;
  QuantSpec a, b;
  bool wgrad;  ///< true if this mode computes weight gradients
  /// Second orientations are read with contiguous rows, as in training without quantizers.
  bool as_stored = false;
};

QuantSpec e4m3(TileShape tile) { return quantized(numerics::kE4M3, tile); }

GemmSpec fp8(Schedule schedule) {
  GemmSpec spec;
  spec.accumulator = Accumulator::sm90_wgmma_fp8;
  spec.schedule = schedule;
  return spec;
}

std::vector<Mode> modes() {
  const QuantSpec tensor = e4m3({0, 0}), row = e4m3({1, 0});
  const QuantSpec vector = e4m3({1, 128}), block = e4m3({128, 128});
  const QuantSpec group = quantized(numerics::kE2M1, {1, 16});
  const QuantSpec small_block = quantized(numerics::kE2M1, {16, 16});
  const QuantSpec int8 = quantized(numerics::kInt8, {1, 0});
  const GemmSpec fast = fp8(Schedule::fast), promote = fp8(Schedule::promote);
  GemmSpec every_16, exact;
  every_16.schedule = Schedule::promote;
  every_16.promote_interval = 16;
  exact.accumulator = Accumulator::ideal_exact;
  return {{"bf16", {}, {}, {}, true},
          {"bf16 as stored", {}, {}, {}, true, true},
          {"tensor fast", fast, tensor, tensor, true},
          {"tensor promote", promote, tensor, tensor, true},
          {"row fast", fast, row, row, true},
          {"row promote", promote, row, row, true},
          {"1x128 by 128x128", promote, vector, block, false},
          {"1x128 by 1x128", promote, vector, vector, true},
          {"e2m1 1x16 by 16x16", every_16, group, small_block, false},
          {"e2m1 1x16 by 1x16", every_16, group, group, true},
          {"int8 row", exact, int8, int8, true}};
}

StorageOrder stored_order(Slot slot) {
  return is_second_orientation(slot) ? StorageOrder::rows_contiguous : StorageOrder::k_contiguous;
}

StorageOrder order_of(const Mode& mode, StorageOrder stored) {
  return mode.as_stored ? stored : StorageOrder::k_contiguous;
}

std::vector<Shape> shapes() {
  struct Layer {
    const char* name;
    std::int64_t out, in;
    bool long_batch;  ///< also measured with 16384 tokens
  };
  const Layer layers[] = {{"1.5B.qkv", 2048, 1536, false},     {"1.5B.o", 1536, 1536, false},
                          {"1.5B.gate_up", 17920, 1536, true}, {"1.5B.down", 1536, 8960, true},
                          {"7B.qkv", 4608, 3584, false},       {"7B.o", 3584, 3584, false},
                          {"7B.gate_up", 37888, 3584, true},   {"7B.down", 3584, 18944, true}};
  std::vector<Shape> result = {{"8192", "square", 8192, 8192, 8192},
                               {"4096", "square", 4096, 4096, 4096}};
  for (const Layer& layer : layers) {
    for (const std::int64_t tokens : {8192, 16384}) {
      if (tokens == 16384 && !layer.long_batch) continue;
      const std::string name = std::string(layer.name) + ".T" + std::to_string(tokens);
      for (const GemmRole role : kGemmRoles) {
        const OperandShape a = operand_shape(a_slot(role), tokens, layer.in, layer.out);
        const OperandShape b = operand_shape(b_slot(role), tokens, layer.in, layer.out);
        result.push_back({name, gemm_role_name(role), a.rows, b.rows, a.k,
                          stored_order(a_slot(role)), stored_order(b_slot(role))});
      }
    }
  }
  return result;
}

std::size_t bytes_of(const TensorView& view) {
  return static_cast<std::size_t>(view.size()) * size_of(view.dtype);
}

/// A BF16 tensor and its quantized form.
class Operand {
 public:
  Operand(DeviceBench& device, std::int64_t rows, std::int64_t k)
      : source_view_{nullptr, DType::bf16, rows, k, k},
        source_(bytes_of(source_view_)),
        codes_(static_cast<std::size_t>(rows * k)),
        scales_(static_cast<std::size_t>(rows * ((k + 15) / 16)) * sizeof(float)) {
    source_view_.data = source_.data();
    device.fill(source_.data(), source_.size());
  }

  QuantizedOperand quantized(cuda::Context& context, const QuantSpec& spec, StorageOrder order) {
    const std::int64_t rows = source_view_.rows, k = source_view_.cols;
    QuantizedOperand operand{spec, rows, k, source_view_, {}};
    if (order == StorageOrder::rows_contiguous) {
      operand.order = order;
      operand.codes = {source_.data(), DType::bf16, k, rows, rows};
    }
    if (!spec.is_quantized()) return operand;
    const std::int64_t tiles = spec.tile_cols(k);
    operand.codes = {codes_.data(), DType::u8, rows, k, k};
    operand.scales = {scales_.data(), DType::f32, spec.tile_rows(rows), tiles, tiles};
    cuda::run(context, ops::Quantize{.source = source_view_, .operand = operand});
    return operand;
  }

 private:
  TensorView source_view_;
  Bytes source_, codes_, scales_;
};

/// The tensors of one shape.
class Bench {
 public:
  Bench(DeviceBench& device, const cuda::CublasLt& library, const Shape& shape, int repeats)
      : device_(device),
        context_(device.context()),
        library_(library),
        shape_(shape),
        repeats_(repeats),
        a_(device, shape.m, shape.k),
        b_(device, shape.n, shape.k),
        d_(static_cast<std::size_t>(shape.m * shape.n) * size_of(DType::bf16)) {}

  DeviceGemmRow measure(const Mode& mode) {
    const QuantizedOperand a = a_.quantized(context_, mode.a, order_of(mode, shape_.order_a));
    const QuantizedOperand b = b_.quantized(context_, mode.b, order_of(mode, shape_.order_b));
    const TensorView d{d_.data(), DType::bf16, shape_.m, shape_.n, shape_.n};
    const bool refused = !cuda::cublaslt_refusal(mode.gemm, mode.a, mode.b).empty();
    const GemmSpec gemm = refused ? GemmSpec{} : mode.gemm;
    const QuantizedOperand their_a = refused ? a_.quantized(context_, {}, kAlongK) : a;
    const QuantizedOperand their_b = refused ? b_.quantized(context_, {}, kAlongK) : b;
    cuda::CublasLtGemm library(library_, {gemm, their_a, their_b, {}, false, d},
                               cuda::LibraryA::ours_b);
    const Bytes scratch(library.scratch_bytes());
    library.prepare(context_, scratch.data(), std::nullopt);
    const auto run_library = [&] { library.run(context_); };
    const auto run_own = [&] {
      cuda::run(context_, ops::Gemm{.spec = mode.gemm, .a = a, .b = b, .bias = {}, .d = d});
    };
    std::vector<double> own, theirs;
    for (int i = -kBenchWarmUps; i < repeats_; ++i) {
      const double own_seconds = device_.seconds_of(run_own);
      const double library_seconds = device_.seconds_of(run_library);
      if (i < 0) continue;
      own.push_back(own_seconds);
      theirs.push_back(library_seconds);
    }
    const double own_speed = speed(own), library_speed = speed(theirs);
    return {mode.name,
            shape_.layer,
            shape_.pass,
            shape_.m,
            shape_.n,
            shape_.k,
            own_speed,
            library_speed,
            own_speed / library_speed,
            library.split_k(),
            library.algorithm(),
            refused};
  }

 private:
  double speed(const std::vector<double>& seconds) const {
    return 2e-12 * static_cast<double>(shape_.m * shape_.n) * static_cast<double>(shape_.k) /
           median(seconds);
  }

  DeviceBench& device_;
  cuda::Context& context_;
  const cuda::CublasLt& library_;
  Shape shape_;
  int repeats_;
  Operand a_, b_;
  Bytes d_;
};

}  // namespace

DeviceGemmBench bench_device_gemm(int repeats) {
  DeviceBench device;
  const cuda::CublasLt library;
  DeviceGemmBench result{device.context().description(), cuda::cublaslt_version(), {}};
  const std::vector<Mode> all = modes();
  for (const Shape& shape : shapes()) {
    Bench bench(device, library, shape, repeats);
    for (const Mode& mode : all) {
      if (shape.pass != "wgrad" || mode.wgrad) result.rows.push_back(bench.measure(mode));
    }
  }
  std::stable_sort(result.rows.begin(), result.rows.end(), [&](const auto& x, const auto& y) {
    const auto place = [&](const DeviceGemmRow& row) {
      return std::find_if(all.begin(), all.end(),
                          [&](const Mode& mode) { return mode.name == row.mode; });
    };
    return place(x) < place(y);
  });
  return result;
}

double mean_ratio(const DeviceGemmBench& bench, const std::string& mode) {
  double sum = 0;
  int count = 0;
  for (const DeviceGemmRow& row : bench.rows) {
    if (row.mode != mode) continue;
    sum += std::log(row.ratio);
    ++count;
  }
  return std::exp(sum / count);
}

}  // namespace fp8lab
