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
#include "emulation/spec/current_scaling.hpp"
#include "kernels/cuda_backend.hpp"
#include "kernels/plan/statistics_plan.hpp"
#include "kernels/quantize/statistics/operand_statistics.hpp"
#include "kernels/runtime/operations.hpp"
#include "tests/kernels/device_test.hpp"

using namespace fp8lab;
using namespace fp8lab::test;

namespace {

constexpr std::int64_t kRecordBytes = sizeof(OperandStatistics);

/// The context of device_backend(); null where no device is.
cuda::Context* device_context() {
  DeviceBackend* const device = device_backend();
  return device == nullptr ? nullptr : &device->context();
}

Backend& cpu_backend() {
  static cpu::CpuBackend cpu(0);
  return cpu;
}

/// Frees what is allocated on both sides while it lives.
class MemoryScope {
 public:
  MemoryScope() : cpu_(cpu_backend().memory_mark()), device_(device_backend()->memory_mark()) {}
  ~MemoryScope() {
    cpu_backend().release_to(cpu_);
    device_backend()->release_to(device_);
  }
  MemoryScope(const MemoryScope&) = delete;
  MemoryScope& operator=(const MemoryScope&) = delete;

 private:
  std::size_t cpu_, device_;
};

/// A tensor in memory of both sides, for tests that choose when each one runs. Precondition: a
/// MemoryScope.
class Twin {
 public:
  Twin(DType dtype, std::int64_t rows, std::int64_t cols, Fill fill, std::uint32_t seed,
       RowLayout layout = {})
      : tensor_(std::make_unique<HostTensor>(filled(dtype, rows, cols, fill, seed, layout))),
        host_(cpu_backend(), *tensor_),
        device_(*device_backend(), *tensor_) {
    host_.upload();
  }

  /// Writes an element of the host's copy; to be called before upload().
  void set(std::int64_t row, std::int64_t col, double value) {
    const std::size_t size = size_of(tensor_->dtype);
    Matrix element(tensor_->dtype, 1, 1);
    element.set(0, value);
    std::memcpy(
        host().row<std::byte>(0) + static_cast<std::size_t>(row * host().row_stride + col) * size,
        element.bytes().data(), size);
  }
  /// Copies from the host to the device, and waits.
  void upload() {
    device_.upload(host_.download());
    device_backend()->synchronize();
  }
  const TensorView& host() const { return host_.view(); }
  const TensorView& device() const { return device_.view(); }

  void check_equal(const std::string& name) const {
    const auto mismatch = host_.difference(host_.download(), device_.download());
    if (mismatch) {
      UNSCOPED_INFO(name << ": at (" << mismatch->row << ", " << mismatch->col << "): cpu 0x"
                         << std::hex << mismatch->expected << ", device 0x" << mismatch->actual
                         << std::dec << "; " << mismatch->count << " differ");
    }
    CHECK_FALSE(mismatch);
  }

 private:
  std::unique_ptr<HostTensor> tensor_;
  PlacedTensor host_, device_;
};

QuantSpec e4m3(TileShape tile, numerics::ScaleFormat scale = numerics::ScaleFormat::fp32) {
  return quantized(numerics::kE4M3, tile, scale);
}

QuantizedOperand shaped(const QuantSpec& spec, std::int64_t rows, std::int64_t cols,
                        bool transpose) {
  QuantizedOperand operand;
  operand.spec = spec;
  operand.rows = transpose ? cols : rows;
  operand.k = transpose ? rows : cols;
  return operand;
}

void run_on_cpu(const ops::MeasureBoth& op) {
  op.for_each_part([](const auto& part) { cpu::run(part); });
}
template <class Op>
void run_on_cpu(const Op& op) {
  cpu::run(op);
}
void run_on_device(cuda::Context& context, const ops::MeasureBoth& op) {
  if (cuda::is_one_pass(op)) return cuda::measure_both(context, op);
  op.for_each_part([&](const auto& part) { cuda::run(context, part); });
}
template <class Op>
void run_on_device(cuda::Context& context, const Op& op) {
  cuda::run(context, op);
}

/// A tensor, its operand and the record of both, on host and device. The operand is that of the
/// CPU.
class Measured {
 public:
  Measured(const QuantSpec& spec, Twin& source, bool transpose, std::uint32_t seed,
           std::int64_t record_offset = 0)
      : source_(source),
        transpose_(transpose),
        form_(shaped(spec, source.host().rows, source.host().cols, transpose)),
        codes_(DType::u8, form_.rows, form_.k, Fill::any_bits, seed),
        scales_(DType::f32, spec.tile_rows(form_.rows), spec.tile_cols(form_.k), Fill::any_bits,
                seed + 1),
        record_(DType::u8, 1, kRecordBytes, Fill::any_bits, seed + 2, {0, record_offset}) {
    QuantizedOperand operand = with(codes_.host(), scales_.host());
    cpu::run(ops::Quantize{.source = source.host(), .transpose = transpose, .operand = operand});
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

/// Both orientations of a tensor, measured in one reading.
class MeasuredBoth {
 public:
  MeasuredBoth(const QuantSpec& first, const QuantSpec& second, Twin& source, std::uint32_t seed)
      : source_(source) {
    for (const bool transpose : {false, true}) {
      const QuantSpec& spec = transpose ? second : first;
      QuantizedOperand form = shaped(spec, source.host().rows, source.host().cols, transpose);
      operands_.push_back(
          {form, Twin(DType::u8, form.rows, form.k, Fill::any_bits, ++seed, {8 - form.k % 8, 0}),
           Twin(DType::f32, spec.tile_rows(form.rows), spec.tile_cols(form.k), Fill::any_bits,
                ++seed),
           Twin(DType::u8, 1, kRecordBytes, Fill::any_bits, ++seed)});
      form = on_host(operands_.back());
      cpu::run(ops::Quantize{.source = source.host(), .transpose = transpose, .operand = form});
    }
  }

  Twin& codes(int which) { return operands_[static_cast<std::size_t>(which)].codes; }
  Twin& scales(int which) { return operands_[static_cast<std::size_t>(which)].scales; }
  void check(cuda::Context& context, const std::string& name) {
    source_.upload();
    for (Operand& operand : operands_) {
      for (Twin* tensor : {&operand.codes, &operand.scales, &operand.record}) tensor->upload();
    }
    Operand &first = operands_[0], &second = operands_[1];
    const QuantizedOperand of_cpu[] = {on_host(first), on_host(second)};
    run_on_cpu(ops::MeasureBoth{source_.host(), of_cpu[0], of_cpu[1], first.record.host(),
                                second.record.host()});
    const QuantizedOperand of_device[] = {on_device(first), on_device(second)};
    const ops::MeasureBoth both{source_.device(), of_device[0], of_device[1], first.record.device(),
                                second.record.device()};
    REQUIRE(cuda::is_one_pass(both));
    cuda::measure_both(context, both);
    context.synchronize();
    first.record.check_equal(name + ", first");
    second.record.check_equal(name + ", second");
  }

 private:
  struct Operand {
    QuantizedOperand form;
    Twin codes, scales, record;
  };
  static QuantizedOperand on_host(Operand& operand) {
    QuantizedOperand result = operand.form;
    result.codes = operand.codes.host();
    result.scales = operand.scales.host();
    return result;
  }
  static QuantizedOperand on_device(Operand& operand) {
    QuantizedOperand result = operand.form;
    result.codes = operand.codes.device();
    result.scales = operand.scales.device();
    return result;
  }

  Twin& source_;
  std::vector<Operand> operands_;
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
        const MemoryScope scope;
        const QuantSpec spec = e4m3(tile, scale);
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
    turns_.push_back({Twin(DType::f32, rows, cols, Fill::ordinary, ++seed_),
                      Twin(DType::u8, 1, kRecordBytes, Fill::any_bits, ++seed_), nullptr, transpose,
                      spec});
    const QuantizedOperand form = shaped(spec, rows, cols, transpose);
    const std::int64_t scales = spec.tile_rows(form.rows) * spec.tile_cols(form.k);
    for (Codes& codes : codes_) {
      if (codes.codes == nullptr || codes.codes->host().cols < rows * cols) {
        codes.codes = std::make_unique<Twin>(DType::u8, 1, rows * cols, Fill::any_bits, 1);
      }
      if (codes.scales == nullptr || codes.scales->host().cols < scales) {
        codes.scales = std::make_unique<Twin>(DType::f32, 1, scales, Fill::any_bits, 2);
      }
    }
  }
  /// Both orientations of one tensor at once.
  void add_both(const QuantSpec& spec, std::int64_t rows, std::int64_t cols) {
    add(spec, rows, cols, true);
    add(spec, rows, cols, false);
    turns_.pop_back();
    turns_.back().second_record =
        std::make_unique<Twin>(DType::u8, 1, kRecordBytes, Fill::any_bits, ++seed_);
  }
  /// Operands of a few shapes, tiles and orientations.
  void add_small(int count) {
    constexpr TileShape kTiles[] = {{1, 128}, {128, 128}, {0, 0}, {1, 0}, {3, 7}};
    for (int i = 0; i < count; ++i) {
      const QuantSpec spec = e4m3(kTiles[i % 5]);
      if (i % 4 == 1) {
        add_both(spec, 8 + i * 8 % 48, 8 + i * 32 % 288);
      } else {
        add(spec, 1 + i * 7 % 43, 1 + i * 31 % 290, i % 3 == 0);
      }
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
      for (Twin* record : turn.records()) record->upload();
    }
  }
  /// Other bytes in the records on the device.
  void spoil() {
    for (Turn& turn : turns_) {
      for (Twin* record : turn.records()) {
        cuda::check(cudaMemset(record->device().data, 0x5A, kRecordBytes), "cudaMemset");
      }
    }
    cuda::check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  }
  void on_cpu() {
    for (Turn& turn : turns_) {
      take(
          turn, [](Twin& tensor) { return tensor.host(); }, [](const auto& op) { run_on_cpu(op); });
    }
  }
  /// Calls run(op) for each operation on device memory.
  template <class Run>
  void on_device(const Run& run) {
    for (Turn& turn : turns_) {
      take(
          turn, [](Twin& tensor) { return tensor.device(); }, run);
    }
  }
  TensorView first_record() { return turns_.front().record.device(); }
  void check(const std::string& name) const {
    std::size_t number = 0;
    for (const Turn& turn : turns_) {
      for (const Twin* record : turn.records()) {
        record->check_equal(name + ", " + std::to_string(number));
      }
      ++number;
    }
  }

 private:
  struct Turn {
    Twin source, record;
    std::unique_ptr<Twin> second_record;  ///< null: of one orientation
    bool transpose;
    QuantSpec spec;

    std::vector<Twin*> records() const {
      std::vector<Twin*> all = {const_cast<Twin*>(&record)};
      if (second_record != nullptr) all.push_back(second_record.get());
      return all;
    }
  };
  struct Codes {
    std::unique_ptr<Twin> codes, scales;
  };

  /// Calls run(op) for the quantization and the measurement of a turn, where view(twin) is.
  template <class View, class Run>
  void take(Turn& turn, const View& view, const Run& run) {
    const TensorView source = view(turn.source);
    const auto made = [&](Codes& memory, bool transpose) {
      QuantizedOperand operand = shaped(turn.spec, source.rows, source.cols, transpose);
      const std::int64_t rows = turn.spec.tile_rows(operand.rows),
                         cols = turn.spec.tile_cols(operand.k);
      operand.codes = {view(*memory.codes).data, DType::u8, operand.rows, operand.k, operand.k};
      operand.scales = {view(*memory.scales).data, DType::f32, rows, cols, cols};
      run(ops::Quantize{.source = source, .transpose = transpose, .operand = operand});
      return operand;
    };
    if (turn.second_record == nullptr) {
      const QuantizedOperand operand = made(codes_[0], turn.transpose);
      run(ops::MeasureOperand{source, turn.transpose, operand, view(turn.record)});
    } else {
      const QuantizedOperand first = made(codes_[0], false), second = made(codes_[1], true);
      run(ops::MeasureBoth{source, first, second, view(turn.record), view(*turn.second_record)});
    }
  }

  std::uint32_t seed_ = 100;
  std::list<Turn> turns_;
  Codes codes_[2];
};

std::string columns(std::int64_t cols) { return std::to_string(cols) + " columns"; }

/// Fewer columns than top channels, as many, more; less and more than a warp, a block, a pass of a
/// block; counts of 17 bits.
constexpr std::int64_t kColumns[] = {1,  2,    3,    7,    8,    9,    31,    32,    33,
                                     64, 1023, 1024, 1025, 4096, 8191, 65536, 65537, 200001};

/// How lines of elements lie: of aligned ones, groups of eight can be loaded at once, but for the
/// rest of a line.
enum class Lines : std::uint8_t { contiguous, unaligned, aligned };

RowLayout layout_of(Lines lines, std::int64_t length) {
  switch (lines) {
    case Lines::contiguous: return {};
    case Lines::unaligned: return {3, 3};
    case Lines::aligned: break;
  }
  return {8 - length % 8, 0};
}

/// Keeps a stream busy until it is released, 20 s at most.
struct Latch {
  std::atomic<bool> open{false}, abandoned{false};

  static void wait(void* data) {
    auto& gate = *static_cast<Latch*>(data);
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
        const MemoryScope scope;
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
    const MemoryScope scope;
    Twin source(DType::f32, rows, 17, Fill::ordinary, 11);
    check_source(*context, source, std::to_string(rows) + " rows");
  }
}

TEST_CASE("cuda statistics of zeros, of equal columns and of columns without a number") {
  cuda::Context* context = device_context();
  if (context == nullptr) return;
  for (const std::int64_t cols : {1, 2, 7, 9, 1000, 70001}) {
    const MemoryScope scope;
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
    const MemoryScope scope;
    Twin source(DType::bf16, 300, 800, Fill::ordinary, 21);
    source.set(140, 299, value);
    check_source(*context, source, std::to_string(value));
  }
}

TEST_CASE("cuda statistics of both orientations in one reading") {
  cuda::Context* context = device_context();
  if (context == nullptr) return;
  struct Shape {
    std::int64_t rows, cols;
  };
  const QuantSpec rows = e4m3({1, 128}, numerics::ScaleFormat::pow2);
  const QuantSpec blocks = e4m3({128, 128});
  const QuantSpec tensor = e4m3({0, 0});
  const std::pair<QuantSpec, QuantSpec> kinds[] = {
      {rows, rows},
      {blocks, blocks},
      {tensor, rows},
      {e4m3({1, 0}), tensor},
      {e4m3({1, 48}, numerics::ScaleFormat::e8m0), e4m3({16, 16})},
      {e4m3({8, 8}), e4m3({5, 8})}};
  std::uint32_t seed = 7;
  for (const Shape shape :
       {Shape{8, 8}, Shape{8, 264}, Shape{128, 256}, Shape{136, 24}, Shape{168, 528}}) {
    for (const DType type : {DType::bf16, DType::f32}) {
      for (const auto& [first, second] : kinds) {
        for (const Fill fill : {Fill::ordinary, Fill::difficult}) {
          const MemoryScope scope;
          Twin source(type, shape.rows, shape.cols, fill, seed += 11, {8, 0});
          MeasuredBoth measured(first, second, source, seed);
          measured.check(*context,
                         columns(shape.cols) + " of " + label(first) + " and " + label(second));
        }
      }
    }
  }
}

TEST_CASE("cuda statistics of both orientations, one of which is not finite or not ordinary") {
  cuda::Context* context = device_context();
  if (context == nullptr) return;
  const QuantSpec rows = e4m3({1, 128});
  const auto check = [&](const std::string& name, const auto& change) {
    for (const int which : {0, 1}) {
      const MemoryScope scope;
      Twin source(DType::bf16, 160, 272, Fill::ordinary, 91);
      MeasuredBoth measured(rows, rows, source, 5);
      change(source, measured, which);
      measured.check(*context, name + " in " + std::to_string(which));
    }
  };
  check("nothing", [](Twin&, MeasuredBoth&, int) {});
  check("NaN",
        [](Twin&, MeasuredBoth& measured, int which) { measured.codes(which).set(3, 100, 127.0); });
  for (const double scale :
       {0.0, 0x1p-149, 0x1p-127, 0x1p-126, 0x1p-130, 0x1p120, HUGE_VAL, static_cast<double>(NAN)}) {
    check("a scale of " + std::to_string(scale), [=](Twin&, MeasuredBoth& measured, int which) {
      measured.scales(which).set(3, 1, scale);
    });
  }
  check("tiny values", [](Twin& source, MeasuredBoth& measured, int which) {
    for (std::int64_t i = 0; i < 128; ++i) {
      source.set(which == 0 ? 3 : i, which == 0 ? i : 3, 0x1p-130 * static_cast<double>(i));
    }
    measured.scales(which).set(3, 0, 0x1p-139);
  });
  check("values above what tiles hold", [](Twin& source, MeasuredBoth&, int which) {
    for (std::int64_t i = 0; i < 9; ++i) {
      source.set(which == 0 ? 7 : i, which == 0 ? i : 7, 17.0 * static_cast<double>(i));
    }
  });
  check("zero rows and columns", [](Twin& source, MeasuredBoth&, int which) {
    for (std::int64_t i = 0; i < 160; ++i) {
      for (std::int64_t j = 0; j < 272; ++j) {
        if ((which == 0 ? i : j) % 5 < 3) source.set(i, j, i % 2 == 0 ? 0.0 : -0.0);
      }
    }
  });
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
            const MemoryScope scope;
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
  const MemoryScope scope;
  const QuantSpec spec = e4m3({1, 128});
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
  Latch gate;
  cuda::check(cudaLaunchHostFunc(context->stream(), Latch::wait, &gate), "cudaLaunchHostFunc");
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
    const MemoryScope scope;
    Turns turns;
    turns.add_small(count);
    turns.upload();
    turns.on_cpu();
    turns.on_device([&](const auto& op) { run_on_device(*context, op); });
    context->synchronize();
    turns.check(std::to_string(count) + " operands");
  }
}

TEST_CASE("cuda statistics in launches that repeat") {
  if (device_context() == nullptr) return;
  for (const auto launches : {cuda::Launches::graphs, cuda::Launches::single}) {
    cuda::CudaBackend backend(0, launches);
    const auto run = [&](const auto& op) { backend.run(op); };
    const MemoryScope scope;
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
  const MemoryScope scope;
  Turns turns, never;
  turns.add_small(5);
  turns.change();
  never.add(e4m3({0, 0}), 1, 300'000, false);
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
  const MemoryScope scope;
  Turns turns;
  turns.add_small(2);
  turns.upload();
  turns.on_cpu();
  turns.spoil();
  const TensorView sum = backend.allocate(DType::u8, 1, sizeof(std::uint64_t));
  const auto hash_of = [&](const TensorView& record) {
    std::uint64_t hash = 0;
    backend.run(ops::HashTensors{{&record, 1}, {}, 0, sum});
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
  const MemoryScope scope;
  Turns turns;
  for (const std::int64_t cols : {300, 4'500'000, 4'500'001, 300, 8'900'001, 301}) {
    turns.add(e4m3({0, 0}), 1, cols, false);
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
