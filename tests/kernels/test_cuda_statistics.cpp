// Statistics of operands on the device give the record of the CPU backend, byte for byte, also of
// operands that take turns in one memory and in recorded launches, and do not wait for the stream.
#include <catch2/catch.hpp>

#include <atomic>
#include <chrono>
#include <cstring>
#include <list>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "emulation/cpu/operations.hpp"
#include "kernels/cuda_backend.hpp"
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

/// Operands that are made and measured one after the other, all in the same codes and scales.
class Turns {
 public:
  void add(const QuantSpec& spec, std::int64_t rows, std::int64_t cols, bool transpose) {
    QuantizedOperand form;
    form.spec = spec;
    form.rows = transpose ? cols : rows;
    form.k = transpose ? rows : cols;
    turns_.push_back({Twin(DType::f32, rows, cols, Fill::ordinary, ++seed_),
                      Twin(DType::u8, 1, kRecordBytes, Fill::any_bits, ++seed_), transpose, form});
    const std::int64_t scales = spec.tile_rows(form.rows) * spec.tile_cols(form.k);
    if (codes_ == nullptr || codes_->host().cols < rows * cols) {
      codes_ = std::make_unique<Twin>(DType::u8, 1, rows * cols, Fill::any_bits, 1);
    }
    if (scales_ == nullptr || scales_->host().cols < scales) {
      scales_ = std::make_unique<Twin>(DType::f32, 1, scales, Fill::any_bits, 2);
    }
  }
  /// Operands of a few shapes, tiles and orientations.
  void add_small(int count) {
    constexpr TileShape kTiles[] = {{1, 128}, {128, 128}, {0, 0}, {1, 0}, {3, 7}};
    for (int i = 0; i < count; ++i) {
      add(spec_of(kTiles[i % 5], numerics::ScaleFormat::fp32), 1 + i * 7 % 43, 1 + i * 31 % 290,
          i % 3 == 0);
    }
  }

  /// Other values, which both sides get; records get their former bytes again.
  void change() {
    for (Turn& turn : turns_) {
      const double factor = 1.0 + ++seed_ % 100;
      for (std::int64_t row = 0; row < turn.source.host().rows; ++row) {
        for (std::int64_t col = 0; col < turn.source.host().cols; ++col) {
          turn.source.set(row, col, factor / static_cast<double>(1 + (row * 37 + col * 11) % 101));
        }
      }
    }
    upload();
  }
  void upload() {
    for (Turn& turn : turns_) {
      turn.source.upload();
      turn.record.upload();
    }
  }
  /// Other bytes in the records on the device.
  void spoil() {
    for (Turn& turn : turns_) {
      cuda::check(cudaMemset(turn.record.device().data, 0x5A, kRecordBytes), "cudaMemset");
    }
    cuda::check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  }
  void on_cpu() {
    for (Turn& turn : turns_) {
      take(turn, turn.source.host(), codes_->host(), scales_->host(), turn.record.host(),
           [](const auto& op) { cpu::run(op); });
    }
  }
  /// Calls run(op) for each operation on device memory.
  template <class Run>
  void on_device(const Run& run) {
    for (Turn& turn : turns_) {
      take(turn, turn.source.device(), codes_->device(), scales_->device(), turn.record.device(),
           run);
    }
  }
  TensorView first_record() { return turns_.front().record.device(); }
  void check(const std::string& name) const {
    std::size_t number = 0;
    for (const Turn& turn : turns_) turn.record.check_equal(name + ", " + std::to_string(number++));
  }

 private:
  struct Turn {
    Twin source, record;
    bool transpose;
    QuantizedOperand form;
  };

  template <class Run>
  static void take(const Turn& turn, const TensorView& source, const TensorView& codes,
                   const TensorView& scales, const TensorView& record, const Run& run) {
    QuantizedOperand operand = turn.form;
    const std::int64_t rows = operand.spec.tile_rows(operand.rows),
                       cols = operand.spec.tile_cols(operand.k);
    operand.codes = {codes.data, DType::u8, operand.rows, operand.k, operand.k};
    operand.scales = {scales.data, DType::f32, rows, cols, cols};
    run(ops::Quantize{source, turn.transpose, {}, {}, operand});
    run(ops::MeasureOperand{source, turn.transpose, operand, record});
  }

  std::uint32_t seed_ = 100;
  std::list<Turn> turns_;
  std::unique_ptr<Twin> codes_, scales_;
};

std::string columns(std::int64_t cols) { return std::to_string(cols) + " columns"; }

/// Fewer columns than top channels, as many, more; less and more than a warp, a block, a pass of a
/// block; counts of 17 bits.
constexpr std::int64_t kColumns[] = {1,  2,    3,    7,    8,    9,    31,    32,    33,
                                     64, 1023, 1024, 1025, 4096, 8191, 65536, 65537, 200001};

/// How lines of elements lie: of aligned ones, groups of eight can be loaded at once, but for the
/// rest of a line.
enum class Lines : std::uint8_t { contiguous, unaligned, aligned };

Layout layout_of(Lines lines, std::int64_t length) {
  switch (lines) {
    case Lines::contiguous: return {};
    case Lines::unaligned: return {3, 3};
    case Lines::aligned: break;
  }
  return {8 - length % 8, 0};
}

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
  for (const Shape shape :
       {Shape{1, 1}, Shape{5, 9}, Shape{8, 15}, Shape{15, 8}, Shape{128, 256}, Shape{333, 700}}) {
    for (const DType type : {DType::bf16, DType::f32}) {
      for (const StorageOrder order : {StorageOrder::k_contiguous, StorageOrder::rows_contiguous}) {
        for (const bool transpose : {false, true}) {
          for (const Lines lines : {Lines::contiguous, Lines::unaligned, Lines::aligned}) {
            const bool lies_like_source = transpose == (order == StorageOrder::rows_contiguous);
            const std::int64_t length = lies_like_source ? shape.cols : shape.rows;
            Twin source(DType::bf16, shape.rows, shape.cols, Fill::ordinary, 41,
                        layout_of(lines, shape.cols));
            Twin values(type, lies_like_source ? shape.rows : shape.cols, length, Fill::ordinary,
                        32, layout_of(lines, length));
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

TEST_CASE("cuda statistics of operands that take turns in one memory") {
  cuda::Context* context = device_context();
  if (context == nullptr) return;
  for (const int count : {1, 39, 40, 41, 95}) {
    Turns turns;
    turns.add_small(count);
    turns.upload();
    turns.on_cpu();
    turns.on_device([&](const auto& op) { cuda::run(*context, op); });
    context->synchronize();
    turns.check(std::to_string(count) + " operands");
  }
}

TEST_CASE("cuda statistics in launches that repeat") {
  if (device_context() == nullptr) return;
  for (const auto launches : {cuda::Launches::graphs, cuda::Launches::single}) {
    cuda::CudaBackend backend(0, launches);
    const auto run = [&](const auto& op) { backend.run(op); };
    Turns apart, repeated;
    apart.add_small(3);
    repeated.add_small(50);
    apart.upload();
    std::unique_ptr<Recorded> recorded;
    for (int round = 0; round < 5; ++round) {
      // The recording is made in round 1, without what is measured apart.
      if (round > 1) {
        apart.change();
        apart.on_cpu();
        apart.on_device(run);
      }
      repeated.change();
      repeated.on_cpu();
      backend.repeat(recorded, [&] { repeated.on_device(run); });
      backend.synchronize();
      const std::string name = "round " + std::to_string(round);
      repeated.check(name);
      apart.check(name + ", apart");
    }
  }
}

TEST_CASE("cuda statistics of a recording that is broken off are forgotten") {
  if (device_context() == nullptr) return;
  cuda::CudaBackend backend(0);
  const auto run = [&](const auto& op) { backend.run(op); };
  Turns turns, never;
  turns.add_small(5);
  turns.change();
  never.add(spec_of({0, 0}, numerics::ScaleFormat::fp32), 1, 300'000, false);
  never.add_small(2);  // which get memory that holds zeros
  never.upload();
  std::unique_ptr<Recorded> recorded;
  bool breaks_off = false;
  const auto enqueue = [&] {
    turns.on_device(run);
    if (!breaks_off) return;
    never.on_device(run);
    throw std::runtime_error("broken off");
  };
  turns.on_cpu();
  backend.repeat(recorded, enqueue);
  backend.synchronize();
  turns.check("before");
  breaks_off = true;
  CHECK_THROWS_AS(backend.repeat(recorded, enqueue), std::runtime_error);
  backend.synchronize();
  turns.check("broken off");
  never.check("never measured");
  breaks_off = false;
  turns.change();
  turns.on_cpu();
  backend.repeat(recorded, enqueue);
  backend.synchronize();
  turns.check("again");
}

TEST_CASE("cuda statistics are there for whatever reads or writes a record") {
  if (device_context() == nullptr) return;
  cuda::CudaBackend backend(0);
  const auto run = [&](const auto& op) { backend.run(op); };
  Turns turns;
  turns.add_small(2);
  turns.upload();
  turns.on_cpu();
  turns.spoil();
  const TensorView sum = backend.allocate(DType::u8, 1, sizeof(std::uint64_t));
  const auto hash_of = [&](const TensorView& record) {
    std::uint64_t hash = 0;
    backend.run(ops::HashTensor{record, {}, 0, sum});
    backend.download(&hash, sum);
    return hash;
  };
  turns.on_device(run);
  const TensorView first = turns.first_record();
  std::vector<std::uint8_t> bytes(kRecordBytes), zeros(kRecordBytes);
  backend.download(bytes.data(), first);
  turns.check("downloaded");
  const std::uint64_t expected = hash_of(first);

  turns.spoil();
  backend.fill_zero(sum);
  turns.on_device(run);
  CHECK(hash_of(first) == expected);

  turns.on_device(run);
  backend.fill_zero(first);
  backend.download(bytes.data(), first);
  CHECK(bytes == zeros);

  turns.on_device(run);
  backend.upload(first, zeros.data());
  backend.download(bytes.data(), first);
  CHECK(bytes == zeros);
}

TEST_CASE("cuda statistics of operands that fill the memory for what is found", "[long]") {
  if (device_context() == nullptr) return;
  cuda::CudaBackend backend(0);
  Turns turns;
  for (const std::int64_t cols : {300, 4'500'000, 4'500'001, 300, 8'900'001, 301}) {
    turns.add(spec_of({0, 0}, numerics::ScaleFormat::fp32), 1, cols, false);
  }
  std::unique_ptr<Recorded> recorded;
  for (int round = 0; round < 3; ++round) {
    turns.change();
    turns.on_cpu();
    backend.repeat(recorded, [&] { turns.on_device([&](const auto& op) { backend.run(op); }); });
    backend.synchronize();
    turns.check("round " + std::to_string(round));
  }
}
