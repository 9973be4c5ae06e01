// The library's GEMM, our kernels and the CPU emulator on the same operands: the same bytes.
#include <catch2/catch.hpp>

#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "emulation/ops/gemm/gemm_plan.hpp"
#include "kernels/gemm/gemm.hpp"
#include "kernels/library/gemm_cublaslt.hpp"
#include "tests/kernels/operand_case.hpp"

namespace fp8lab::test {
namespace {

using cuda::GemmCall;
using numerics::kE4M3;
using numerics::kE5M2;

struct Shape {
  std::int64_t m, n, k;
};

std::string name_of_case(const GemmSpec& spec, const QuantSpec& a, const QuantSpec& b,
                         const Shape& shape) {
  return label(spec) + " " + label(a) + " x " + label(b) + " " + std::to_string(shape.m) + "x" +
         std::to_string(shape.n) + "x" + std::to_string(shape.k);
}

/// Runs the library with its first algorithm, then the emulator and our kernel with its split.
/// Returns the split.
int compare_all(GemmSpec spec, const QuantSpec& qa, const QuantSpec& qb, const Shape& shape,
                bool with_bias = false, bool accumulate = false) {
  DeviceBackend& device = *device_backend();
  static const cuda::CublasLt library;
  static cpu::CpuBackend cpu(0);
  const OperandCase a(qa, shape.m, shape.k, 11), b(qb, shape.n, shape.k, 12);
  const HostTensor bias = filled(DType::bf16, 1, with_bias ? shape.n : 0, Fill::ordinary, 13);
  const HostTensor d = filled(spec.output, shape.m, shape.n, Fill::ordinary, 14, {16, 16});
  std::string algorithm;
  // The library first: the emulator follows its split.
  check_between(
      device, cpu, "cuBLASLt, then the emulator, " + name_of_case(spec, qa, qb, shape),
      {a.codes, a.scales, b.codes, b.scales, d, bias}, [&](Backend& backend, const Views& t) {
        const QuantizedOperand left = a.in(t[0], t[1]), right = b.in(t[2], t[3]);
        const TensorView added = with_bias ? t[5] : TensorView{};
        if (&backend == &cpu) {
          return cpu.run(ops::Gemm{spec, left, right, added, accumulate, t[4]});
        }
        cuda::CublasLtGemm gemm(library, GemmCall{spec, left, right, added, accumulate, t[4]},
                                cuda::library_a(plan_gemm(spec, qa, qb, shape.k)));
        const cuda::DeviceArray<std::byte> scratch(gemm.scratch_bytes());
        gemm.prepare(device.context(), scratch.data(), std::nullopt);
        gemm.run(device.context());
        device.synchronize();
        spec.split_k = gemm.split_k();
        algorithm = gemm.algorithm();
      });
  check_product("own kernel, " + name_of_case(spec, qa, qb, shape) + ", " + algorithm, spec, a, b,
                d, bias, accumulate);
  return spec.split_k;
}

const Shape kProducts[] = {{16, 16, 16},     {128, 128, 128}, {256, 384, 512},  {208, 144, 400},
                           {1024, 144, 336}, {48, 2064, 896}, {512, 1024, 1536}};
/// Few tiles and a long K, where the library's heuristic splits.
const Shape kSplitShape = {128, 128, 16384};

struct Mode {
  TileShape a, b;
  ScaleOrder order = ScaleOrder::automatic;
};
const Mode kScaledAlongK[] = {{{1, 128}, {1, 128}, ScaleOrder::automatic},
                              {{1, 128}, {1, 128}, ScaleOrder::a_then_b},
                              {{1, 128}, {128, 128}, ScaleOrder::automatic},
                              {{128, 128}, {1, 128}, ScaleOrder::automatic}};

}  // namespace

TEST_CASE("scales per tensor and per row") {
  if (device_backend() == nullptr) return;
  for (const TileShape tile : {TileShape{0, 0}, TileShape{1, 0}}) {
    for (const Schedule schedule : {Schedule::fast, Schedule::promote}) {
      for (const Shape& shape : kProducts) {
        const QuantSpec e4m3 = quantized(kE4M3, tile), e5m2 = quantized(kE5M2, tile);
        compare_all(fp8_gemm(schedule, DType::bf16), e4m3, e4m3, shape);
        compare_all(fp8_gemm(schedule, DType::f32), e5m2, e4m3, shape, false, true);
        compare_all(fp8_gemm(schedule, DType::f32), e4m3, e5m2, shape);
      }
    }
  }
}

TEST_CASE("scales that change along K") {
  if (device_backend() == nullptr) return;
  for (const Mode& mode : kScaledAlongK) {
    for (const Shape& shape : kProducts) {
      const QuantSpec a = quantized(kE4M3, mode.a), b = quantized(kE4M3, mode.b);
      compare_all(fp8_gemm(Schedule::promote, DType::bf16, mode.order), a, b, shape);
      compare_all(fp8_gemm(Schedule::promote, DType::f32, mode.order), quantized(kE5M2, mode.a), b,
                  shape, false, true);
    }
  }
}

TEST_CASE("bf16 operands") {
  if (device_backend() == nullptr) return;
  for (const DType output : {DType::bf16, DType::f32}) {
    GemmSpec spec;
    spec.output = output;
    for (const Shape& shape : kProducts) {
      compare_all(spec, {}, {}, shape, output == DType::bf16, output == DType::f32);
    }
  }
}

TEST_CASE("a bias where the library adds one along our columns") {
  if (device_backend() == nullptr) return;
  const QuantSpec tensor = quantized(kE4M3, {0, 0});
  const QuantSpec vectors = quantized(kE4M3, {1, 128}), blocks = quantized(kE4M3, {128, 128});
  for (const Shape& shape : kProducts) {
    compare_all(fp8_gemm(Schedule::fast, DType::bf16), tensor, tensor, shape, true);
    compare_all(fp8_gemm(Schedule::promote, DType::bf16), vectors, blocks, shape, true);
  }
}

TEST_CASE("the emulator follows the library's split of K") {
  if (device_backend() == nullptr) return;
  int splits = 0;
  for (const bool accumulate : {false, true}) {
    const DType output = accumulate ? DType::f32 : DType::bf16;
    const QuantSpec tensor = quantized(kE4M3, {0, 0});
    for (const Schedule schedule : {Schedule::fast, Schedule::promote}) {
      splits += compare_all(fp8_gemm(schedule, output), tensor, tensor, kSplitShape, false,
                            accumulate) > 1;
    }
    for (const Mode& mode : kScaledAlongK) {
      splits +=
          compare_all(fp8_gemm(Schedule::promote, output, mode.order), quantized(kE4M3, mode.a),
                      quantized(kE4M3, mode.b), kSplitShape, false, accumulate) > 1;
    }
    GemmSpec bf16;
    bf16.output = output;
    splits += compare_all(bf16, {}, {}, kSplitShape, false, accumulate) > 1;
  }
  INFO("cases in which the library split K; none would leave the split untested");
  CHECK(splits > 0);
}

TEST_CASE("a split that the library does not offer is refused") {
  DeviceBackend* const device = device_backend();
  if (device == nullptr) return;
  const std::size_t mark = device->memory_mark();
  const QuantSpec tensor = quantized(kE4M3, {0, 0});
  const QuantizedOperand a = OperandCase(tensor, 128, 8192, 1).on(*device);
  const QuantizedOperand b = OperandCase(tensor, 128, 8192, 2).on(*device);
  const GemmSpec spec = fp8_gemm(Schedule::fast, DType::bf16);
  const cuda::CublasLt library;
  const GemmCall call{spec, a, b, {}, false, device->allocate(DType::bf16, 128, 128)};
  cuda::CublasLtGemm gemm(library, call, cuda::LibraryA::ours_b);
  const cuda::DeviceArray<std::byte> scratch(gemm.scratch_bytes());
  gemm.prepare(device->context(), scratch.data(), 1);
  CHECK(gemm.split_k() == 1);
  CHECK_THROWS_WITH(gemm.prepare(device->context(), scratch.data(), 63),
                    Catch::Contains("accepted here: split_k:"));
  device->release_to(mark);
}

TEST_CASE("shapes, rows and biases that the library does not take are refused") {
  DeviceBackend* const device = device_backend();
  if (device == nullptr) return;
  const std::size_t mark = device->memory_mark();
  const QuantSpec row = quantized(kE4M3, {1, 0});
  const auto operand = [&](std::int64_t rows, std::int64_t k) {
    return OperandCase(row, rows, k, 1).on(*device);
  };
  const QuantizedOperand a = operand(64, 64), b = operand(32, 64), odd = operand(40, 64);
  const QuantizedOperand short_k = operand(64, 40), short_b = operand(32, 40);
  const TensorView d = device->allocate(DType::bf16, 64, 32);
  const TensorView odd_d = device->allocate(DType::bf16, 40, 32);
  const TensorView bias = device->allocate(DType::bf16, 1, 32);
  const HostTensor unaligned = filled(DType::bf16, 64, 32, Fill::ordinary, 6, {0, 1});
  const PlacedTensor shifted(*device, unaligned);
  const cuda::CublasLt library;
  const GemmSpec spec = fp8_gemm(Schedule::fast, DType::bf16);
  const auto refused = [&](const GemmCall& call, const char* words) {
    CHECK_THROWS_WITH(cuda::CublasLtGemm(library, call, cuda::LibraryA::ours_a),
                      Catch::Contains(words));
  };
  refused({spec, odd, b, {}, false, odd_d}, "multiples of 16");
  refused({spec, short_k, short_b, {}, false, d}, "multiples of 16");
  refused({spec, a, b, {}, false, shifted.view()}, "those of D are not");
  refused({spec, a, b, bias, false, d}, "adds a bias along");
  device->release_to(mark);
}

TEST_CASE("what the library computes in no shape is refused, no device needed") {
  const auto reason = [](const GemmSpec& spec, const QuantSpec& a, const QuantSpec& b) {
    return cuda::cublaslt_refusal(spec, a, b);
  };
  using Catch::Contains;
  const TileShape tensor{0, 0}, row{1, 0}, vector{1, 128}, block{128, 128};
  const GemmSpec fast = fp8_gemm(Schedule::fast, DType::bf16);
  const GemmSpec promoted = fp8_gemm(Schedule::promote, DType::bf16);
  const auto e4m3 = [](TileShape tile) { return quantized(kE4M3, tile); };

  CHECK(reason(fast, e4m3(tensor), e4m3(tensor)).empty());
  CHECK(reason(fast, e4m3(row), quantized(kE5M2, row)).empty());
  CHECK(reason(promoted, e4m3(vector), e4m3(block)).empty());
  CHECK(reason({}, {}, {}).empty());
  CHECK_THAT(reason(fast, quantized(kE5M2, tensor), quantized(kE5M2, tensor)),
             Contains("does not multiply e5m2 by e5m2"));
  CHECK_THAT(reason(fast, e4m3(tensor), e4m3(row)), Contains("does not combine"));
  CHECK_THAT(reason(promoted, e4m3(block), e4m3(block)), Contains("does not combine"));
  CHECK_THAT(reason(promoted, e4m3(vector), e4m3(tensor)), Contains("does not combine"));
  CHECK_THAT(reason(fast, quantized(numerics::kE2M1, tensor), e4m3(tensor)),
             Contains("other formats are refused"));
  CHECK_THAT(reason({}, e4m3(tensor), {}), Contains("quantized operands are refused"));
  GemmSpec spec = promoted;
  spec.promote_interval = 64;
  CHECK_THAT(reason(spec, e4m3(row), e4m3(row)), Contains("promotes every 128 of K, not 64"));
  spec = promoted;
  spec.scale_order = ScaleOrder::product_first;
  CHECK_THAT(reason(spec, e4m3(vector), e4m3(vector)), Contains("one after the other"));
  CHECK_THAT(reason(spec, e4m3(tensor), e4m3(tensor)), Contains("constant along K"));
  spec.scale_order = ScaleOrder::b_then_a;
  CHECK_THAT(reason(spec, e4m3(vector), e4m3(block)), Contains("scales first"));
  spec = {};
  spec.schedule = Schedule::promote;
  CHECK_THAT(reason(spec, {}, {}), Contains("accepted: fast"));
  spec = {};
  spec.accumulator = Accumulator::ideal_fp32;
  CHECK_THAT(reason(spec, {}, {}), Contains("has no accumulator ideal_fp32"));
}

}  // namespace fp8lab::test
