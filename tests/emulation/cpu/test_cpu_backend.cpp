// Memory, transfers and identity of the CPU backend, and that it carries out what it dispatches.
#include <fmt/format.h>
#include <unistd.h>
#include <catch2/catch.hpp>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "emulation/base/default_threads.hpp"
#include "emulation/base/error.hpp"
#include "emulation/base/machine.hpp"
#include "emulation/cpu/cpu_backend.hpp"
#include "emulation/reference/truth_backend.hpp"
#include "tests/emulation/cpu/matrix.hpp"

using namespace fp8lab;

TEST_CASE("the CPU backend names itself and keeps the wanted storage") {
  const std::unique_ptr<Backend> backend = cpu::make_cpu_backend(2);
  CHECK(backend->name() == "cpu");
  CHECK_THAT(backend->device(), Catch::EndsWith(", 2 threads"));
  CHECK(backend->storage(DType::bf16) == DType::bf16);
  CHECK(backend->storage(DType::f32) == DType::f32);
  CHECK(backend->is_on_host());
  REQUIRE_THROWS_AS(cpu::make_cpu_backend(-1), Error);
}

TEST_CASE("a quota of the control group bounds the processors") {
  const std::filesystem::path root =
      std::filesystem::temp_directory_path() / fmt::format("fp8lab-groups-{}", ::getpid());
  const auto write = [&](const std::string& name, const std::string& text) {
    std::filesystem::create_directories((root / name).parent_path());
    std::ofstream(root / name) << text;
  };
  const auto processors = [&](const std::string& groups) {
    write("groups", groups);
    return processors_of_control_groups((root / "groups").string(), root.string(), 16);
  };
  CHECK(processors("0::/\n") == 16);
  write("cpu.max", "max 100000\n");
  write("a/cpu.max", "350000 100000\n");
  write("a/b/cpu.max", "max 100000\n");
  write("c/cpu.max", "50000 100000\n");
  CHECK(processors("0::/\n") == 16);
  CHECK(processors("0::/a\n") == 4);    // 3.5 processors
  CHECK(processors("0::/a/b\n") == 4);  // of the group around it
  CHECK(processors("0::/c\n") == 1);
  CHECK(processors("0::/gone\n") == 16);
  write("cpu/d/cpu.cfs_quota_us", "200000\n");
  write("cpu/d/cpu.cfs_period_us", "100000\n");
  write("cpu/e/cpu.cfs_quota_us", "-1\n");
  write("cpu/e/cpu.cfs_period_us", "100000\n");
  CHECK(processors("4:cpu,cpuacct:/d\n3:memory:/a\n") == 2);
  CHECK(processors("4:cpu,cpuacct:/e\n") == 16);
  CHECK(processors("1:name=systemd:/d\n") == 16);
  CHECK(processors("no group\n") == 16);
  std::filesystem::remove_all(root);
}

TEST_CASE("a tensor that is not given is told from one without memory") {
  const TensorView none, planned = TensorView::without_memory(DType::f32, 2, 4);
  CHECK(none.empty());
  CHECK_FALSE(planned.empty());
  CHECK_FALSE(none.has_memory());
  CHECK_FALSE(planned.has_memory());

  const auto backend = cpu::make_cpu_backend(1);
  const TensorView logits = backend->allocate(DType::f32, 2, 4);
  const TensorView losses = backend->allocate(DType::f32, 1, 2);
  ops::CrossEntropy loss{.logits = logits,
                         .targets = backend->allocate(DType::i32, 1, 2),
                         .weights = backend->allocate(DType::f32, 1, 2),
                         .scalars = backend->allocate(DType::f32, 1, StepScalar::kCount),
                         .token_loss = losses,
                         .dlogits = none};
  CHECK_NOTHROW(backend->run(loss));
  CHECK(outputs_of(loss).size() == 2);  // token losses and scalars
  CHECK(backend->allocate(DType::f32, 2, 4).has_memory());
  loss.dlogits = planned;
  CHECK_THROWS_WITH(backend->run(loss), Catch::Contains("dlogits is missing"));
}

TEST_CASE("an operation is refused with its reason before there is memory") {
  const auto cpu = cpu::make_cpu_backend(1);
  const auto truth = reference::make_truth_backend(1);
  const TensorView source = TensorView::without_memory(DType::f32, 32, 64);
  const TensorView d = TensorView::without_memory(DType::bf16, 32, 32);
  QuantizedOperand values = QuantizedOperand::without_memory(QuantSpec{}, 32, 64);
  CHECK(cpu->supports(ops::Quantize{.source = source, .operand = values}));
  CHECK(cpu->supports(ops::Gemm{GemmSpec{}, values, values, {}, false, d}));
  CHECK(cpu->supports(ops::Add{source, source, source}));
  CHECK(cpu->supports(ops::MeasureOperand{source, false, values, {}}));

  QuantizedOperand unscaled = values;  // e4m3fn by row, but nothing says where scales come from
  unscaled.spec.format = numerics::kE4M3;
  unscaled.spec.scale_source = ScaleSource::delayed;
  unscaled.spec.tile = {1, 0};
  const ops::Quantize refused{.source = source, .operand = unscaled};
  const std::string reason = supports_quantization(unscaled.spec).reason;
  REQUIRE_FALSE(reason.empty());
  CHECK(cpu->supports(refused).reason == reason);
  // A composite is refused as its parts are.
  CHECK(cpu->supports(ops::QuantizeBoth{.source = source, .first = values, .second = values}));
  CHECK(cpu->supports(ops::QuantizeBoth{.source = source, .first = values, .second = unscaled})
            .reason == reason);
  CHECK(cpu->supports(ops::QuantizeBoth{.source = source, .first = unscaled, .second = values})
            .reason == reason);
  const ops::GatedForward swiglu{Gate::silu, source, d};
  CHECK(cpu->supports(ops::ProduceQuantize{.producer = swiglu, .first = unscaled}).reason ==
        reason);
  CHECK(
      cpu->supports(ops::ProduceQuantize{.producer = swiglu, .first = values, .second = &unscaled})
          .reason == reason);
  // A product of FP8 codes in a chain for bf16.
  QuantizedOperand codes = values;
  codes.spec.format = numerics::kE4M3;
  GemmSpec wgmma;
  wgmma.accumulator = Accumulator::sm90_wgmma_fp8;
  CHECK_FALSE(cpu->supports(ops::Gemm{wgmma, values, codes, {}, false, d}));

  // The truth path applies no recipe, so that only statistics mean nothing.
  CHECK(truth->supports(refused));
  CHECK(truth->supports(ops::Gemm{wgmma, values, codes, {}, false, d}));
  CHECK_FALSE(truth->supports(ops::MeasureOperand{source, false, values, {}}));
}

TEST_CASE("threads are bounded by the processors, and by 1024") {
  CHECK(thread_limit() >= 64);
  CHECK(thread_limit() <= 1024);
  CHECK(checked_threads(thread_limit(), "x") == thread_limit());
  CHECK_NOTHROW(cpu::make_cpu_backend(thread_limit()));
  for (const int threads : {-1, thread_limit() + 1, 30000, 100000}) {
    CHECK_THROWS_WITH(cpu::make_cpu_backend(threads),
                      Catch::StartsWith("threads: " + std::to_string(threads) + "; accepted: 0"));
    CHECK_THROWS_AS(reference::make_truth_backend(threads), Error);
  }
}

TEST_CASE("more memory than the machine has is refused before it is touched") {
  const std::int64_t there = machine_memory();
  CHECK(there > 0);
  for (const auto& backend : {cpu::make_cpu_backend(1), reference::make_truth_backend(1)}) {
    backend->allocate(DType::u8, 1, 1000);
    const std::size_t held = backend->memory_bytes();
    CHECK_THROWS_WITH(backend->allocate(DType::f32, there / 4 + 1, 1),
                      Catch::Contains("needs ") && Catch::Contains("this machine has"));
    CHECK_THROWS_AS(backend->allocate(DType::f32, std::int64_t{1} << 40, std::int64_t{1} << 40),
                    Error);
    CHECK(backend->memory_bytes() == held);
    backend->release_to(0);
    CHECK(backend->memory_bytes() == 0);
  }
  CHECK(memory_text(0) == "0 bytes");
  CHECK(memory_text(1536) == "1.5 KiB");
  CHECK(memory_text(0x1p50) == "1 PiB");
}

TEST_CASE("memory is zeroed and aligned; views transfer row by row") {
  const std::unique_ptr<Backend> backend = cpu::make_cpu_backend(1);
  const TensorView matrix = backend->allocate(DType::f32, 3, 7);
  CHECK(reinterpret_cast<std::uintptr_t>(matrix.data) % 64 == 0);
  CHECK(matrix.contiguous());
  CHECK_FALSE(backend->allocate(DType::u8, 0, 5).empty());
  std::vector<float> all(21, 1.0f);
  backend->download(all.data(), matrix);
  for (const float value : all) CHECK(value == 0.0f);

  const std::vector<float> part = {1, 2, 3, 4};
  const TensorView middle = matrix.columns(2, 2).row_range(1, 2);
  backend->upload(middle, part.data());
  backend->download(all.data(), matrix);
  CHECK(all[7 + 2] == 1.0f);
  CHECK(all[14 + 3] == 4.0f);
  CHECK(all[7 + 4] == 0.0f);
  std::vector<float> back(4);
  backend->download(back.data(), middle);
  CHECK(back == part);
  backend->fill_zero(matrix.columns(2, 1));
  backend->download(all.data(), matrix);
  CHECK(all[7 + 2] == 0.0f);
  CHECK(all[7 + 3] == 2.0f);
  REQUIRE_THROWS_AS(backend->allocate(DType::f32, -1, 2), Error);
}

TEST_CASE("a product of identity and a matrix passes through quantize and gemm") {
  const std::unique_ptr<Backend> backend = cpu::make_cpu_backend(2);
  const std::int64_t n = 16;
  std::vector<float> identity(256, 0.0f), values(256);
  for (std::size_t i = 0; i < 256; ++i) {
    identity[i] = i % 17 == 0 ? 1.0f : 0.0f;
    values[i] = static_cast<float>(i) / 16.0f;  // at most 8 significant bits: exact in bf16
  }
  const TensorView source = backend->allocate(DType::f32, n, n);
  QuantizedOperand a{QuantSpec{}, n, n, backend->allocate(DType::bf16, n, n), {}};
  QuantizedOperand b{QuantSpec{}, n, n, backend->allocate(DType::bf16, n, n), {}};
  backend->upload(source, identity.data());
  backend->run(ops::Quantize{.source = source, .operand = a});
  backend->upload(source, values.data());
  backend->run(ops::Quantize{.source = source, .transpose = true, .operand = b});
  GemmSpec spec;
  spec.output = DType::f32;
  const TensorView d = backend->allocate(DType::f32, n, n);
  backend->run(ops::Gemm{spec, a, b, {}, false, d});
  std::vector<float> result(256);
  backend->download(result.data(), d);
  CHECK(result == values);
}

TEST_CASE("quantize_both is quantize in both orientations, each with its own random bits") {
  const std::unique_ptr<Backend> backend = cpu::make_cpu_backend(1);
  const std::int64_t rows = 24, cols = 40;
  std::vector<float> values(static_cast<std::size_t>(rows * cols));
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i * 37 % 101) - 50;
  const TensorView source = backend->allocate(DType::f32, rows, cols);
  backend->upload(source, values.data());
  QuantSpec spec;
  spec.format = numerics::kE4M3;
  spec.tile = {1, 16};
  spec.scale_source = ScaleSource::current;
  spec.rounding = numerics::Rounding::stochastic;
  const auto operand = [&](std::int64_t n, std::int64_t k) {
    return QuantizedOperand{spec, n, k, backend->allocate(DType::u8, n, k),
                            backend->allocate(DType::f32, n, spec.tile_cols(k))};
  };
  QuantizedOperand both[] = {operand(rows, cols), operand(cols, rows)};
  QuantizedOperand single[] = {operand(rows, cols), operand(cols, rows)};
  both[0].key = {.seed = 3, .step = 4, .tensor = 5};
  both[1].key = {.seed = 3, .step = 4, .tensor = 5, .orientation = 1};
  backend->run(ops::QuantizeBoth{.source = source, .first = both[0], .second = both[1]});
  for (const std::uint32_t turned : {0u, 1u}) {
    const RandomKey key{.seed = 3, .step = 4, .tensor = 5, .orientation = turned};
    single[turned].key = key;
    backend->run(
        ops::Quantize{.source = source, .transpose = turned == 1, .operand = single[turned]});
    std::vector<std::uint8_t> codes(values.size()), expected(values.size());
    backend->download(codes.data(), both[turned].codes);
    backend->download(expected.data(), single[turned].codes);
    CHECK(codes == expected);
    std::vector<float> scales(static_cast<std::size_t>(single[turned].scales.size()));
    std::vector<float> expected_scales(scales.size());
    backend->download(scales.data(), both[turned].scales);
    backend->download(expected_scales.data(), single[turned].scales);
    CHECK(scales == expected_scales);
  }
}

TEST_CASE("produce_quantize is each producer, then quantize of its stored output") {
  const std::unique_ptr<Backend> backend = cpu::make_cpu_backend(1);
  const std::int64_t rows = 24, cols = 40;
  const auto random = [&](std::int64_t r, std::int64_t c, std::uint32_t seed) {
    const TensorView view = backend->allocate(DType::bf16, r, c);
    backend->upload(view, test::Matrix::random(DType::bf16, r, c, seed).bytes().data());
    return view;
  };
  const auto empty = [&](DType dtype, std::int64_t r, std::int64_t c) {
    return backend->allocate(dtype, r, c);
  };
  const auto bytes = [&](const TensorView& view) {
    std::vector<std::byte> values(static_cast<std::size_t>(view.size()) * size_of(view.dtype));
    backend->download(values.data(), view);
    return values;
  };
  const TensorView x = random(rows, cols, 1), wide = random(rows, 2 * cols, 2);
  const TensorView dout = random(rows, cols, 3), weight = random(1, cols, 4);
  const TensorView bias = random(1, cols, 5), out = empty(DType::bf16, rows, cols);
  const TensorView dwide = empty(DType::bf16, rows, 2 * cols), sum = empty(DType::bf16, rows, cols);
  const TensorView mean = empty(DType::f32, 1, rows), rstd = empty(DType::f32, 1, rows);
  const TensorView number = random(1, 1, 6), terms = empty(DType::f32, rows, 2);
  const std::pair<ops::Producer, TensorView> producers[] = {
      {ops::RmsNormForward{x, weight, 1e-5f, out, rstd}, out},
      {ops::LayerNormForward{x, weight, bias, 1e-5f, out, mean, rstd}, out},
      {ops::AddRmsNormForward{x, dout, {sum, weight, 1e-5f, out, rstd}}, out},
      {ops::AddLayerNormForward{x, dout, {sum, weight, bias, 1e-5f, out, mean, rstd}}, out},
      {ops::GatedForward{Gate::silu, wide, out}, out},
      {ops::GatedBackward{Gate::silu, wide, dout, dwide}, dwide},
      {ops::ActivationForward{Activation::relu2, x, out}, out},
      {ops::ActivationBackward{Activation::gelu_tanh, x, dout, out}, out},
      {ops::XieluForward{x, number, number, out}, out},
      {ops::XieluBackward{x, number, number, dout, out, terms}, out},
  };
  static_assert(std::size(producers) == std::variant_size_v<ops::Producer>);
  QuantSpec spec;
  spec.format = numerics::kE4M3;
  spec.tile = {1, 8};
  spec.scale_source = ScaleSource::current;
  for (const auto& [producer, output] : producers) {
    INFO("producer " << producer.index());
    const std::int64_t k = output.cols;
    const auto operand = [&, k] {
      return QuantizedOperand{spec, rows, k, empty(DType::u8, rows, k),
                              empty(DType::f32, rows, spec.tile_cols(k))};
    };
    QuantizedOperand fused = operand(), single = operand();
    backend->fill_zero(output);
    backend->run(ops::ProduceQuantize{.producer = producer, .first = fused});
    const std::vector<std::byte> stored = bytes(output);
    backend->fill_zero(output);
    std::visit([&](const auto& op) { backend->run(op); }, producer);
    backend->run(ops::Quantize{.source = output, .operand = single});
    CHECK(stored == bytes(output));
    CHECK(bytes(fused.codes) == bytes(single.codes));
    CHECK(bytes(fused.scales) == bytes(single.scales));
  }
}
