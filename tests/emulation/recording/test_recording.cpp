// What a recording and a stop watch say of operations, beside the backends that they stand for.
#include <catch2/catch.hpp>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "emulation/base/error.hpp"
#include "emulation/cpu/cpu_backend.hpp"
#include "emulation/ops/list.hpp"
#include "emulation/recording/operation_words.hpp"
#include "emulation/recording/recording_backend.hpp"
#include "emulation/recording/timing_backend.hpp"
#include "emulation/reference/truth_backend.hpp"
#include "emulation/spec/current_scaling.hpp"

using namespace fp8lab;

namespace {

const QuantSpec kBlocks = quantized(numerics::kE4M3, {1, 128});

QuantizedOperand allocate(Backend& backend, const QuantSpec& spec, std::int64_t rows,
                          std::int64_t k) {
  QuantizedOperand operand = QuantizedOperand::without_memory(spec, rows, k);
  operand.codes = backend.allocate(spec.storage(), rows, k);
  operand.scales = backend.allocate(DType::f32, spec.tile_rows(rows), spec.scale_cols(k));
  return operand;
}

/// A norm quantized in both orientations, a product of it, and memory cleared: the result.
TensorView run_some(Backend& backend) {
  constexpr std::int64_t kRows = 128, kCols = 256;
  std::vector<float> values(static_cast<std::size_t>(kRows * kCols));
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i * 37 % 101) - 50;
  const TensorView x = backend.allocate(DType::f32, kRows, kCols);
  const TensorView weight = backend.allocate(DType::f32, 1, kCols);
  const TensorView y = backend.allocate(DType::bf16, kRows, kCols);
  const TensorView rstd = backend.allocate(DType::f32, 1, kRows);
  backend.upload(x, values.data());
  backend.upload(weight, values.data());
  QuantizedOperand first = allocate(backend, kBlocks, kRows, kCols);
  QuantizedOperand second = allocate(backend, kBlocks, kCols, kRows);
  backend.run(ops::ProduceQuantize{.producer = ops::RmsNormForward{x, weight, 1e-6f, y, rstd},
                                   .first = first,
                                   .second = &second});
  GemmSpec spec;
  spec.accumulator = Accumulator::sm90_wgmma_fp8;
  spec.schedule = Schedule::promote;
  spec.output = DType::f32;
  const TensorView d = backend.allocate(DType::f32, kRows, kRows);
  backend.run(ops::Gemm{spec, first, first, {}, false, d});
  backend.fill_zero(x);
  backend.run(ops::Copy{y, x});
  return d;
}

}  // namespace

TEST_CASE("a recording counts memory as the backend does that it stands for") {
  for (const auto& backend : {cpu::make_cpu_backend(1), reference::make_truth_backend(1)}) {
    RecordingBackend recording(*backend);
    CHECK(recording.name() == backend->name());
    CHECK(recording.storage(DType::bf16) == backend->storage(DType::bf16));
    std::size_t mark = 0;
    std::vector<TensorView> views;
    for (const std::int64_t cols : {0, 1, 15, 16, 17, 1000}) {
      if (cols == 17) mark = recording.memory_mark();
      views.push_back(recording.allocate(DType::f32, 3, cols));
      backend->allocate(DType::f32, 3, cols);
      CHECK(recording.memory_bytes() == backend->memory_bytes());
      CHECK_FALSE(views.back().empty());
    }
    for (std::size_t i = 1; i < views.size(); ++i) {
      const auto* const end = static_cast<std::byte*>(views[i - 1].data) + 4 * views[i - 1].size();
      CHECK(static_cast<std::byte*>(views[i].data) >= end);
      CHECK(views[i].data != views[i - 1].data);
    }
    CHECK(recording.peak_bytes() == recording.memory_bytes());
    recording.release_to(mark);
    backend->release_to(mark);
    CHECK(recording.memory_bytes() == backend->memory_bytes());
    CHECK(recording.peak_bytes() > recording.memory_bytes());
  }
  const auto backend = cpu::make_cpu_backend(1);
  RecordingBackend recording(*backend);
  CHECK_THROWS_AS(recording.allocate(DType::f32, -1, 2), Error);
}

TEST_CASE("operations are recorded with their work, composites as themselves") {
  const auto backend = cpu::make_cpu_backend(1);
  RecordingBackend recording(*backend);
  run_some(recording);
  const WorkLog& log = recording.log();
  REQUIRE(log.size() == 4);
  const auto only = [&](std::string_view name) {
    for (const auto& [key, kind] : log) {
      if (kind.name == name) return kind;
    }
    FAIL("no " << name);
    return WorkOfKind{};
  };
  const double size = 128 * 256;
  CHECK(only("gemm").work == 128 * 128 * 256);
  CHECK(only("gemm").work_class == WorkClass::gemm);
  CHECK(only("produce_quantize").work == 2 * size + 2 * size);  // norm; both orientations
  CHECK(only("produce_quantize").work_class == WorkClass::quantization);
  CHECK(only("copy").work == 2 * size);
  CHECK(only("fill_zero").work == 4 * size);
  CHECK(only("fill_zero").work_class == WorkClass::optimizer);
  CHECK(only("gemm").calls == 1);
  CHECK(only("gemm").seconds == 0);
  run_some(recording);
  CHECK(log.size() == 4);
  CHECK(only("gemm").calls == 2);
  recording.clear_log();
  CHECK(log.empty());
}

TEST_CASE("kinds differ by quantizers and accumulators, not by shapes") {
  const TensorView x = TensorView::without_memory(DType::f32, 128, 128);
  const TensorView wide = TensorView::without_memory(DType::f32, 128, 256);
  QuantizedOperand a = QuantizedOperand::without_memory(kBlocks, 128, 128);
  QuantizedOperand b = QuantizedOperand::without_memory(QuantSpec{}, 128, 128);
  const auto kind = [](const TensorView& source, QuantizedOperand& operand, bool transpose) {
    return kind_of(ops::Quantize{.source = source, .transpose = transpose, .operand = operand});
  };
  CHECK(kind(x, a, false) == kind(wide, a, false));
  CHECK(kind(x, a, false) != kind(x, b, false));
  CHECK(kind(x, a, false) != kind(x, a, true));
  GemmSpec fast, promoted;
  promoted.schedule = Schedule::promote;
  const auto product = [&](const GemmSpec& spec, bool accumulate) {
    return kind_of(ops::Gemm{spec, a, b, {}, accumulate, x});
  };
  CHECK(product(fast, false) != product(promoted, false));
  CHECK(product(fast, false) == product(fast, true));  // added or written: one rate
  CHECK(kind_of(ops::Add{x, x, x}) == "add");
}

TEST_CASE("operations have names in words") {
  CHECK(operation_words("rmsnorm_forward and quantize") == "RMSNorm forward and quantization");
  CHECK(operation_words("product (fprop)") == "GEMM (fprop)");
  CHECK(operation_words("weighted_sum") == "weighted sum");
  CHECK(operation_words("adamw") == "AdamW");
#define FP8LAB_CHECK_WORDS(Name) \
  CHECK(operation_words(std::string(ops::Name::kName)).find('_') == std::string::npos);
  FP8LAB_FOR_EACH_OPERATION(FP8LAB_CHECK_WORDS)
  FP8LAB_FOR_EACH_COMPOSITE(FP8LAB_CHECK_WORDS)
#undef FP8LAB_CHECK_WORDS
}

TEST_CASE("a recording refuses what the backend would, and has no values") {
  const auto backend = cpu::make_cpu_backend(1);
  RecordingBackend recording(*backend);
  const TensorView a = recording.allocate(DType::f32, 4, 8);
  const TensorView b = recording.allocate(DType::f32, 4, 9);
  CHECK_THROWS_WITH(recording.run(ops::Add{a, b, a}), Catch::StartsWith("add: "));
  float value = 0;
  CHECK_THROWS_WITH(recording.download(&value, a.columns(0, 1).row_range(0, 1)),
                    Catch::Contains("no values"));
  recording.upload(a, nullptr);
  QuantSpec impossible = kBlocks;
  impossible.scale_source = ScaleSource::delayed;
  QuantizedOperand operand = QuantizedOperand::without_memory(impossible, 4, 8);
  const ops::Quantize quantize{.source = a, .operand = operand};
  CHECK_FALSE(recording.supports(quantize));
  CHECK(recording.supports(quantize).reason == backend->supports(quantize).reason);
  QuantizedOperand values = allocate(recording, kBlocks, 4, 8);
  CHECK_THROWS_WITH(recording.run(ops::Gemm{GemmSpec{}, values, values, {}, false, a}),
                    Catch::StartsWith("GEMM"));
  CHECK(recording.log().empty());
}

TEST_CASE("scales of a block-scaled instruction are not looked at in a recording") {
  const auto backend = cpu::make_cpu_backend(1);
  RecordingBackend recording(*backend);
  QuantSpec spec = kBlocks;
  spec.tile = {1, 32};
  spec.scale.format = numerics::ScaleFormat::e8m0;
  const QuantizedOperand a = allocate(recording, spec, 16, 64);
  GemmSpec gemm;
  gemm.accumulator = Accumulator::sm100_mxf8f6f4;
  const TensorView d = recording.allocate(DType::bf16, 16, 16);
  REQUIRE(recording.supports(ops::Gemm{gemm, a, a, {}, false, d}));
  recording.run(ops::Gemm{gemm, a, a, {}, false, d});
  CHECK(recording.log().size() == 1);
}

TEST_CASE("the truth path stores doubles, which no check of a recipe's types refuses") {
  const auto backend = reference::make_truth_backend(1);
  RecordingBackend recording(*backend);
  const TensorView a = recording.allocate(DType::f64, 4, 8);
  recording.run(ops::Add{a, a, a});
  CHECK(recording.log().at("add").work == 96);
}

TEST_CASE("a stop watch changes no bit and logs what a recording does") {
  const auto backend = cpu::make_cpu_backend(2);
  const auto bits_of = [](Backend& on, const TensorView& view) {
    std::vector<std::uint32_t> bits(static_cast<std::size_t>(view.size()));
    on.download(bits.data(), view);
    return bits;
  };
  const std::vector<std::uint32_t> expected = bits_of(*backend, run_some(*backend));
  TimingBackend timing(*backend);
  const std::size_t held = timing.memory_bytes();
  CHECK(held == backend->memory_bytes());
  CHECK(bits_of(timing, run_some(timing)) == expected);
  CHECK(timing.memory_bytes() == 2 * held);
  RecordingBackend recording(*backend);
  run_some(recording);
  REQUIRE(timing.log().size() == recording.log().size());
  for (const auto& [key, kind] : recording.log()) {
    const WorkOfKind& timed = timing.log().at(key);
    CHECK(timed.calls == kind.calls);
    CHECK(timed.work == kind.work);
    CHECK(timed.work_class == kind.work_class);
    CHECK(timed.seconds > 0);
  }
}
