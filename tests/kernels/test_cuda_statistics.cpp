// Statistics of operands on the device give the record of the CPU backend, byte for byte, and do
// not wait for the stream.
#include <catch2/catch.hpp>

#include <atomic>
#include <chrono>
#include <cstring>
#include <string>
#include <thread>

#include "emulation/cpu/operations.hpp"
#include "kernels/runtime/operations.hpp"
#include "tests/kernels/device_test.hpp"

using namespace fp8lab;
using namespace fp8lab::test;

namespace {

constexpr std::int64_t kRecordBytes = sizeof(OperandStatistics);

QuantSpec spec_of(TileShape tile, numerics::ScaleFormat scale) {
  QuantSpec spec;
  spec.format = numerics::kE4M3;
  spec.tile = tile;
  spec.scale_source = ScaleSource::current;
  spec.scale.format = scale;
  return spec;
}

/// A tensor, its operand and the record of both, on host and device. The operand is that of the
/// CPU.
class Measured {
 public:
  Measured(const QuantSpec& spec, Twin& source, bool transpose, std::uint32_t seed,
           std::int64_t record_offset = 0)
      : source_(source),
        transpose_(transpose),
        form_(shaped(spec, source.host(), transpose)),
        codes_(DType::u8, form_.rows, form_.k, Fill::any_bits, seed),
        scales_(DType::f32, spec.tile_rows(form_.rows), spec.tile_cols(form_.k), Fill::any_bits,
                seed + 1),
        record_(DType::u8, 1, kRecordBytes, Fill::any_bits, seed + 2, {0, record_offset}) {
    QuantizedOperand operand = with(codes_.host(), scales_.host());
    cpu::run(ops::Quantize{source.host(), transpose, {}, {}, operand});
  }

  void upload() {
    for (Twin* tensor : {&source_, &codes_, &scales_, &record_}) tensor->upload();
  }
  void on_cpu() {
    cpu::run(ops::MeasureOperand{source_.host(), transpose_, with(codes_.host(), scales_.host()),
                                 record_.host()});
  }
  void on_device(cuda::Context& context) {
    cuda::run(context,
              ops::MeasureOperand{source_.device(), transpose_,
                                  with(codes_.device(), scales_.device()), record_.device()});
  }
  void check(const std::string& name) { record_.check_equal(name); }

 private:
  static QuantizedOperand shaped(const QuantSpec& spec, const TensorView& source, bool transpose) {
    QuantizedOperand operand;
    operand.spec = spec;
    operand.rows = transpose ? source.cols : source.rows;
    operand.k = transpose ? source.rows : source.cols;
    return operand;
  }
  QuantizedOperand with(const TensorView& codes, const TensorView& scales) const {
    QuantizedOperand operand = form_;
    operand.codes = codes;
    operand.scales = scales;
    return operand;
  }

  Twin& source_;
  bool transpose_;
  QuantizedOperand form_;
  Twin codes_, scales_, record_;
};

void check_record(cuda::Context& context, Measured& measured, const std::string& name) {
  measured.upload();
  measured.on_cpu();
  measured.on_device(context);
  context.synchronize();
  measured.check(name);
}

/// In tiles across rows, down columns and of both, in both orientations; the record at odd
/// addresses too.
void check_source(cuda::Context& context, Twin& source, const std::string& what) {
  std::uint32_t seed = 1;
  for (const TileShape tile : {TileShape{0, 0}, TileShape{1, 0}, TileShape{1, 128},
                               TileShape{128, 128}, TileShape{3, 7}}) {
    for (const auto scale : {numerics::ScaleFormat::fp32, numerics::ScaleFormat::e8m0}) {
      for (const bool transpose : {false, true}) {
        const QuantSpec spec = spec_of(tile, scale);
        Measured measured(spec, source, transpose, seed, seed % 8);
        seed += 3;
        check_record(context, measured,
                     what + " " + label(spec) + (transpose ? " transposed" : ""));
      }
    }
  }
}

std::string columns(std::int64_t cols) { return std::to_string(cols) + " columns"; }

/// Fewer columns than top channels, as many, more; less and more than a warp, a block, a pass of a
/// block; counts of 17 bits.
constexpr std::int64_t kColumns[] = {1,  2,    3,    7,    8,    9,    31,    32,    33,
                                     64, 1023, 1024, 1025, 4096, 8191, 65536, 65537, 200001};

/// Keeps a stream busy until it is released, 20 s at most.
struct Gate {
  std::atomic<bool> open{false}, abandoned{false};

  static void wait(void* data) {
    auto& gate = *static_cast<Gate*>(data);
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (!gate.open) {
      if (std::chrono::steady_clock::now() > end) {
        gate.abandoned = true;
        return;
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }
};

}  // namespace

TEST_CASE("cuda statistics of every number of columns", "[long]") {
  cuda::Context* context = device_context();
  if (context == nullptr) return;
  std::uint32_t seed = 1;
  for (const std::int64_t cols : kColumns) {
    for (const DType type : {DType::bf16, DType::f32}) {
      const std::int64_t rows = cols > 10000 ? 2 : 67;
      for (const Fill fill : {Fill::ordinary, Fill::difficult, Fill::any_bits}) {
        Twin source(type, rows, cols, fill, seed += 7, {3, 0});
        check_source(*context, source, columns(cols));
      }
    }
  }
}

TEST_CASE("cuda statistics of more bands than one pass of additions") {
  cuda::Context* context = device_context();
  if (context == nullptr) return;
  for (const std::int64_t rows : {31, 32, 33, 127, 128, 129, 128 * 128, 128 * 129 + 1}) {
    Twin source(DType::f32, rows, 17, Fill::ordinary, 11);
    check_source(*context, source, std::to_string(rows) + " rows");
  }
}

TEST_CASE("cuda statistics of zeros, of equal columns and of columns without a number") {
  cuda::Context* context = device_context();
  if (context == nullptr) return;
  for (const std::int64_t cols : {1, 2, 7, 9, 1000, 70001}) {
    Twin source(DType::f32, 3, cols, Fill::ordinary, 5);
    const auto fill = [&](const auto& value) {
      for (std::int64_t i = 0; i < 3 * cols; ++i) source.set(i / cols, i % cols, value(i % cols));
    };
    fill([](std::int64_t col) { return col % 2 == 0 ? 0.0 : -0.0; });
    check_source(*context, source, columns(cols) + " of zeros");
    fill([](std::int64_t) { return -1.25; });
    check_source(*context, source, columns(cols) + ", equal");
    fill([](std::int64_t col) { return static_cast<double>(col % 3); });
    check_source(*context, source, columns(cols) + " of three values");
    fill([](std::int64_t col) { return col % 2 == 0 ? NAN : HUGE_VAL; });
    check_source(*context, source, columns(cols) + " of NaN and infinity");
    fill([](std::int64_t col) {
      return col % 5 == 0 ? HUGE_VAL : 1.0 + 1e-3 * static_cast<double>(col % 100);
    });
    check_source(*context, source, columns(cols) + ", some infinite");
  }
}

TEST_CASE("cuda statistics of panels of which one is not finite") {
  cuda::Context* context = device_context();
  if (context == nullptr) return;
  for (const double value : {static_cast<double>(NAN), HUGE_VAL, -HUGE_VAL}) {
    Twin source(DType::bf16, 300, 800, Fill::ordinary, 21);
    source.set(140, 299, value);
    check_source(*context, source, std::to_string(value));
  }
}

TEST_CASE("cuda statistics of values in either order of storage") {
  cuda::Context* context = device_context();
  if (context == nullptr) return;
  struct Shape {
    std::int64_t rows, cols;
  };
  for (const Shape shape : {Shape{1, 1}, Shape{5, 9}, Shape{128, 256}, Shape{333, 700}}) {
    for (const DType type : {DType::bf16, DType::f32}) {
      for (const StorageOrder order : {StorageOrder::k_contiguous, StorageOrder::rows_contiguous}) {
        for (const bool transpose : {false, true}) {
          for (const std::int64_t padding : {0, 3}) {
            Twin source(DType::bf16, shape.rows, shape.cols, Fill::ordinary, 31,
                        {padding, padding});
            const bool lies_like_source = transpose == (order == StorageOrder::rows_contiguous);
            Twin values(type, lies_like_source ? shape.rows : shape.cols,
                        lies_like_source ? shape.cols : shape.rows, Fill::ordinary, 32,
                        {padding, padding});
            Twin record(DType::u8, 1, kRecordBytes, Fill::any_bits, 33);
            QuantizedOperand operand;
            operand.spec.format = type == DType::bf16 ? numerics::kBF16 : numerics::kFP32;
            operand.rows = transpose ? shape.cols : shape.rows;
            operand.k = transpose ? shape.rows : shape.cols;
            operand.order = order;
            for (Twin* tensor : {&source, &values, &record}) tensor->upload();
            operand.codes = values.host();
            cpu::run(ops::MeasureOperand{source.host(), transpose, operand, record.host()});
            operand.codes = values.device();
            cuda::run(*context,
                      ops::MeasureOperand{source.device(), transpose, operand, record.device()});
            context->synchronize();
            record.check_equal(std::to_string(shape.cols) + " columns" +
                               (lies_like_source ? "" : ", turned") +
                               (transpose ? ", transposed" : ""));
          }
        }
      }
    }
  }
}

TEST_CASE("cuda statistics are enqueued behind what the stream still has to do", "[asynchronous]") {
  cuda::Context* context = device_context();
  if (context == nullptr) return;
  const QuantSpec spec = spec_of({1, 128}, numerics::ScaleFormat::fp32);
  Twin first_source(DType::bf16, 300, 1001, Fill::difficult, 1);
  Twin second_source(DType::f32, 70, 5000, Fill::ordinary, 2);
  // The first time loads kernels and gives the workspace its size.
  for (Twin* source : {&first_source, &second_source}) {
    Measured measured(spec, *source, source == &second_source, 3);
    check_record(*context, measured, "alone");
  }
  Measured first(spec, first_source, false, 6), second(spec, second_source, true, 9);
  for (Measured* measured : {&first, &second}) {
    measured->upload();
    measured->on_cpu();
  }
  Gate gate;
  cuda::check(cudaLaunchHostFunc(context->stream(), Gate::wait, &gate), "cudaLaunchHostFunc");
  for (Measured* measured : {&first, &second}) measured->on_device(*context);
  const bool waited = gate.abandoned;
  const cudaError_t state = cudaStreamQuery(context->stream());
  gate.open = true;
  context->synchronize();
  CHECK_FALSE(waited);
  CHECK(state == cudaErrorNotReady);
  for (Measured* measured : {&first, &second}) measured->check("one behind the other");
}
