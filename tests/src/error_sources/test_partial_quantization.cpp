// Operands that keep some of the errors of quantization.
#include <catch2/catch.hpp>

#include "src/backend/factory.hpp"
#include "src/error_sources/partial_quantization.hpp"
#include "src/model/linear/operand.hpp"
#include "tests/device_memory.hpp"

using namespace fp8lab;

namespace {

/// Copies host values to a tensor of the backend.
TensorView uploaded(Backend& backend, const std::vector<float>& values, std::int64_t rows) {
  const TensorView view =
      backend.allocate(DType::f32, rows, static_cast<std::int64_t>(values.size()) / rows);
  backend.upload(view, values.data());
  return view;
}

/// What `sums` adds to A times ones.
struct Extras {
  std::vector<float> bias = {};
  std::vector<float> before = {};  ///< D, to which the product is added
  QuantSpec spec = {numerics::kE4M3};
};

/// Rows of A times ones, where A is `values` quantized with `kept` on `original`, as e4m3fn without
/// a scale.
std::vector<float> sums_on(Backend& original, const std::vector<float>& values, std::int64_t rows,
                           ElementErrors kept, const Accumulator& accumulator,
                           const Extras& extras) {
  Switches switches = all_switches(2, true);
  switches.layers[1].operands[Slot::fprop_x] = kept;
  PartialQuantization backend(original, switches);
  const auto k = static_cast<std::int64_t>(values.size()) / rows;
  QuantizedOperand a = allocate_operand(backend, extras.spec, rows, k);
  QuantSpec of_ones{numerics::kE4M3};
  of_ones.transform = extras.spec.transform;
  QuantizedOperand b = allocate_operand(backend, of_ones, 1, k);
  a.key.tensor = 3;  // layer 1
  b.key.tensor = 4;
  const std::vector<float> ones(static_cast<std::size_t>(k), 1.0f);
  backend.run(ops::Quantize{.source = uploaded(backend, values, rows), .operand = a});
  backend.run(ops::Quantize{.source = uploaded(backend, ones, 1), .operand = b});
  GemmSpec gemm;
  gemm.accumulator = accumulator;
  gemm.output = DType::f32;
  const TensorView bias = extras.bias.empty() ? TensorView{} : uploaded(backend, extras.bias, 1);
  const bool accumulate = !extras.before.empty();
  const TensorView result =
      accumulate ? uploaded(backend, extras.before, rows) : backend.allocate(DType::f32, rows, 1);
  backend.run(ops::Product{{gemm, a, b, bias, accumulate, result}, {}, false, {}, false});
  std::vector<float> d(static_cast<std::size_t>(rows));
  backend.download(d.data(), result);
  return d;
}

/// On the CPU, and with the same bits on a device.
std::vector<float> sums(const std::vector<float>& values, std::int64_t rows, ElementErrors kept,
                        const Accumulator& accumulator, const Extras& extras = {}) {
  const auto cpu = make_backend("cpu", 1);
  const std::vector<float> result = sums_on(*cpu, values, rows, kept, accumulator, extras);
  test::DeviceMemory device(*cpu);
  CHECK(sums_on(device, values, rows, kept, accumulator, extras) == result);
  return result;
}

}  // namespace

TEST_CASE("each element has one kind of error") {
  // 1.03 is cast to 1, 0.0001 underflows, and 500 saturates at 448.
  const std::vector<float> values = {1.03f, 0, 0.0001f, 0, 500.0f, 0, 450.0f, 2.0f};
  const Accumulator& exact = Accumulator::ideal_exact;
  CHECK(sums(values, 4, {}, exact) == std::vector<float>{1, 0, 448, 450});
  CHECK(sums(values, 4, {false, true, true}, exact) == std::vector<float>{1.03f, 0, 448, 450});
  CHECK(sums(values, 4, {true, false, true}, exact) == std::vector<float>{1, 0.0001f, 448, 450});
  CHECK(sums(values, 4, {true, true, false}, exact) == std::vector<float>{1, 0, 500, 452});
  CHECK(sums(values, 4, {false, false, false}, exact) ==
        std::vector<float>{1.03f, 0.0001f, 500, 452});
}

TEST_CASE("the error of an accumulator is that of the quantized operands") {
  // Beside 256 the accumulator of 13 fraction bits loses 0.0078125; 1.03 is cast to 1.
  std::vector<float> values(32);
  values[0] = 256;
  values[1] = 0.0078125f;
  values[2] = 1.03f;
  const Accumulator& wgmma = Accumulator::sm90_wgmma_fp8;
  CHECK(sums(values, 1, {}, wgmma) == std::vector<float>{257});
  CHECK(sums(values, 1, {}, Accumulator::ideal_exact) == std::vector<float>{257.0078125f});
  CHECK(sums(values, 1, {false, true, true}, wgmma) == std::vector<float>{257.03f});
  CHECK(sums(values, 1, {false, true, true}, Accumulator::ideal_exact) ==
        std::vector<float>{static_cast<float>(257.0078125 + double{1.03f} - 1.0)});
}

TEST_CASE("a bias is added, and a transform goes with the values") {
  const std::vector<float> values = {1.03f, 3.3f};
  const ElementErrors none = {false, false, false};
  CHECK(sums(values, 1, none, Accumulator::ideal_exact, {.bias = {0.5f}}) ==
        std::vector<float>{static_cast<float>(double{1.03f} + double{3.3f} + 0.5)});
  CHECK(sums(values, 1, none, Accumulator::ideal_exact, {.bias = {0.5f}, .before = {2.0f}}) ==
        std::vector<float>{static_cast<float>(double{1.03f} + double{3.3f} + 2.5)});
  // Rotated, ones have a single element, which is large, and the others of A do not count.
  std::vector<float> many(32, 0.0f);
  many[0] = 1.03f;
  many[5] = 0.3f;
  Extras rotated;
  rotated.spec.transform = *transform_from_name("hadamard:32");
  const std::vector<float> exact = sums(many, 1, none, Accumulator::ideal_exact, rotated);
  CHECK(sums(many, 1, {}, Accumulator::ideal_exact, rotated) != exact);
}
