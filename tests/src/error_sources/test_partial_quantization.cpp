// Operands that keep some of the errors of quantization.
#include <catch2/catch.hpp>

#include "src/backend/factory.hpp"
#include "src/error_sources/partial_quantization.hpp"
#include "src/model/linear/operand.hpp"

using namespace fp8lab;

namespace {

/// Rows of A times ones, where A is `values` quantized with `kept`, as e4m3fn without a scale.
std::vector<float> sums(std::vector<float> values, std::int64_t rows, ElementErrors kept,
                        const Accumulator& accumulator, TensorView bias = {},
                        const QuantSpec* spec_of = nullptr) {
  const auto cpu = make_backend("cpu", 1);
  Switches switches = all_switches(2, true);
  switches.layers[1].operands[Slot::fprop_x] = kept;
  PartialQuantization backend(*cpu, switches);
  const auto k = static_cast<std::int64_t>(values.size()) / rows;
  QuantSpec spec;
  spec.format = numerics::kE4M3;
  const QuantSpec& left = spec_of != nullptr ? *spec_of : spec;
  QuantizedOperand a = allocate_operand(backend, left, rows, k);
  QuantizedOperand b = allocate_operand(backend, spec, 1, k);
  std::vector<float> ones(static_cast<std::size_t>(k), 1.0f), d(static_cast<std::size_t>(rows));
  RandomKey x, w;
  x.tensor = 3;  // layer 1
  w.tensor = 4;
  a.key = x;
  backend.run(ops::Quantize{.source = {values.data(), DType::f32, rows, k, k}, .operand = a});
  b.key = w;
  backend.run(ops::Quantize{.source = {ones.data(), DType::f32, 1, k, k}, .operand = b});
  GemmSpec gemm;
  gemm.accumulator = accumulator;
  gemm.output = DType::f32;
  const TensorView result{d.data(), DType::f32, rows, 1, 1};
  backend.run(ops::Product{{gemm, a, b, bias, false, result}, {}, false, {}, false});
  return d;
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
  float bias = 0.5f;
  const std::vector<float> values = {1.03f, 3.3f};
  const TensorView row{&bias, DType::f32, 1, 1, 1};
  CHECK(sums(values, 1, {false, false, false}, Accumulator::ideal_exact, row) ==
        std::vector<float>{static_cast<float>(double{1.03f} + double{3.3f} + 0.5)});
}
