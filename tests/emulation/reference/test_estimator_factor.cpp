// The gradient of a quantized tensor, by the estimator of its quantizer.
#include <catch2/catch.hpp>

#include <cmath>
#include <string>
#include <vector>

#include "emulation/base/error.hpp"
#include "emulation/cpu/cpu_backend.hpp"
#include "emulation/cpu/operations.hpp"
#include "emulation/spec/current_scaling.hpp"
#include "emulation/spec/estimator.hpp"
#include "tests/emulation/reference/transform_case.hpp"

namespace fp8lab {
namespace {

using namespace test;

QuantSpec quantizer(const numerics::FormatSpec& format, TileShape tile,
                    const std::string& estimator, const std::string& transform = "none") {
  QuantSpec spec = quantized(format, tile);
  spec.transform = named(transform);
  spec.estimator = estimator_from_name(estimator).value();
  return spec;
}

TEST_CASE("names of estimators and statistics survive being read, and others are refused") {
  for (const char* name : {"ste", "clip_mask", "dge:5:3", "dge:2.5:1.25", "dge:1:1024"}) {
    CHECK(estimator_name(estimator_from_name(name).value()) == name);
  }
  CHECK(estimator_from_name("dge:5:3")->steepness == 5.0f);
  CHECK(estimator_from_name("dge:5:3")->cap == 3.0f);
  for (const char* name :
       {"", "dge", "dge:5", "dge:5:", "dge::3", "dge:0.5:3", "dge:65:3", "dge:5:0", "dge:5:-1",
        "dge:5:2000", "dge:5:3:1", "dge:nan:3", "clip_mask:6", "STE"}) {
    INFO(name);
    CHECK(!estimator_from_name(name));
  }
  for (const char* name : {"amax", "std:2.9224787", "std:3", "std:64"}) {
    CHECK(statistic_name(statistic_from_name(name).value()) == name);
  }
  for (const char* name : {"", "std", "std:", "std:0", "std:-1", "std:65", "std:nan", "std:3x"}) {
    INFO(name);
    CHECK(!statistic_from_name(name));
  }
}

/// As it lies in memory.
float stored(Matrix& matrix, DType dtype, std::int64_t r, std::int64_t c) {
  return dtype == DType::f32 ? matrix.view().row<float>(r)[c]
                             : numerics::from_bf16(matrix.view().row<std::uint16_t>(r)[c]);
}

TEST_CASE("each element of the gradient is multiplied by the factor of its scaled value") {
  const TileShape tile = GENERATE(TileShape{1, 32}, TileShape{5, 9}, TileShape{1, 0}, TileShape{});
  const std::string estimator = GENERATE("clip_mask", "dge:5:3");
  const std::string transform = GENERATE("none", "hadamard:16:drawn", "hadamard:full");
  const DType dtype = GENERATE(DType::bf16, DType::f32);
  const std::int64_t rows = 21, k = 64;
  Matrix x(dtype, rows, k), gradient(dtype, rows, k), before(dtype, rows, k);
  fill_wide(x, 1);
  fill_wide(gradient, 2);
  fill_wide(before, 2);
  QuantSpec spec = quantizer(numerics::kE2M1, tile, estimator, transform);
  spec.scale.format = numerics::ScaleFormat::pow2;
  spec.scale.rounding = numerics::ScaleRounding::ocp_floor;
  Operand operand(spec, rows, k);
  operand.key = kKey;
  cpu::run(ops::Quantize{.source = x.view(), .operand = operand});
  const std::vector<std::uint8_t> codes = operand.memory;
  cpu::run(ops::EstimatorFactor{operand, x.view(), gradient.view()});
  reference::FloatMatrix turned = spec.transform
                                      ? test::transformed(x.view(), false, spec.transform, kKey)
                                      : reference::FloatMatrix(rows, k);
  std::int64_t wrong = 0, cut = 0;
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t c = 0; c < k; ++c) {
      const float value = spec.transform ? at(turned.view(), r, c) : x.at(r, c);
      const std::int64_t i = tile.rows == 0 ? 0 : r / tile.rows;
      const std::int64_t j = tile.cols == 0 ? 0 : c / tile.cols;
      const float factor =
          numerics::estimator_factor(spec.estimator, spec.format, value / operand.scale(i, j));
      Matrix rounded(dtype, 1, 1);
      rounded.set(0, 0, before.at(r, c) * factor);
      wrong += numerics::float_bits(stored(gradient, dtype, r, c)) !=
               numerics::float_bits(rounded.at(0, 0));
      cut += factor == 0.0f;
    }
  }
  CHECK(wrong == 0);
  CHECK(operand.memory == codes);
  // floor(log2 amax) leaves the largest of half of the groups above 6.
  if (estimator == "clip_mask" && tile.cols == 32) CHECK(cut > 5);
}

TEST_CASE("an operand without a scale is in units of 1") {
  Matrix x(DType::f32, 1, 3), gradient(DType::f32, 1, 3);
  const float values[] = {5.5f, 6.0f, -70.0f};
  for (std::int64_t i = 0; i < 3; ++i) {
    x.set(0, i, values[i]);
    gradient.set(0, i, 2.0f);
  }
  QuantSpec spec = quantizer(numerics::kE2M1, {}, "clip_mask");
  spec.scale_source = ScaleSource::none;
  Operand operand(spec, 1, 3);
  cpu::run(ops::EstimatorFactor{operand, x.view(), gradient.view()});
  CHECK(stored(gradient, DType::f32, 0, 0) == 2.0f);
  CHECK(stored(gradient, DType::f32, 0, 1) == 0.0f);
  CHECK(stored(gradient, DType::f32, 0, 2) == 0.0f);
}

TEST_CASE("a product is multiplied by the factors in the space of its columns, then taken back") {
  const std::int64_t m = 8, n = 32, k = 16;
  Matrix a = whole_numbers(m, k, 1, 3), b = whole_numbers(n, k, 2, 3), x(DType::f32, m, n);
  fill_wide(x, 3);
  QuantSpec plain = quantizer(numerics::kInt8, {}, "ste");
  plain.scale_source = ScaleSource::static_scale;
  QuantSpec masked = quantizer(numerics::kE2M1, {1, 32}, "clip_mask", "hadamard:16:drawn");
  masked.scale.format = numerics::ScaleFormat::e8m0;
  masked.scale.rounding = numerics::ScaleRounding::ocp_floor;
  Operand left(plain, m, k), right(plain, n, k), estimated(masked, m, n);
  left.key = kKey;
  cpu::run(ops::Quantize{.source = a.view(), .operand = left});
  right.key = kKey;
  cpu::run(ops::Quantize{.source = b.view(), .operand = right});
  estimated.key = kKey;
  cpu::run(ops::Quantize{.source = x.view(), .operand = estimated});
  right.source_space = estimated.own_space();
  GemmSpec gemm;
  gemm.accumulator = Accumulator::ideal_exact;
  gemm.output = DType::f32;
  Matrix product(DType::f32, m, n), apart(DType::f32, m, n), sum = whole_numbers(m, n, 4, 9);
  Matrix expected(DType::f32, m, n), added = whole_numbers(m, n, 4, 9);
  cpu::CpuBackend backend(1);
  ops::Product op{{gemm, left, right, {}, false, product.view()}};
  op.estimated = &estimated;
  op.estimated_source = x.view();
  backend.run(op);
  op.gemm.accumulate = true;
  op.gemm.d = sum.view();
  op.apart = apart.view();
  CHECK(op.is_apart());
  backend.run(op);
  cpu::run(ops::Gemm{gemm, left, right, {}, false, expected.view()});
  cpu::run(ops::EstimatorFactor{estimated, x.view(), expected.view()});
  cpu::run(ops::RotateBack{left, right, expected.view()});
  std::int64_t wrong = 0, nonzero = 0;
  for (std::int64_t i = 0; i < m; ++i) {
    for (std::int64_t j = 0; j < n; ++j) {
      const float value = at(expected.view(), i, j);
      wrong += at(product.view(), i, j) != value;
      wrong += at(sum.view(), i, j) != added.at(i, j) + value;
      nonzero += value != 0.0f;
    }
  }
  CHECK(wrong == 0);
  CHECK(nonzero > m * n / 2);
}

TEST_CASE("what has no factor is refused") {
  Matrix x(DType::f32, 4, 32), d(DType::f32, 4, 32), small(DType::f32, 4, 31);
  const auto refusal = [&](const QuantSpec& spec, Matrix& source, Matrix& gradient,
                           const char* reason) {
    Operand operand(spec, 4, 32);
    CHECK_THROWS_WITH((cpu::run(ops::EstimatorFactor{operand, source.view(), gradient.view()})),
                      Catch::Contains("estimator_factor") && Catch::Contains(reason));
  };
  const QuantSpec plain = quantizer(numerics::kE2M1, {1, 32}, "clip_mask");
  refusal(quantizer(numerics::kE2M1, {1, 32}, "ste"), x, d, "needs an estimator");
  refusal(plain, small, d, "source");
  refusal(plain, x, small, "D");
  refusal(quantizer(numerics::kE2M1, {1, 32}, "clip_mask", "clamp:0.9"), x, d, "clamp");
  refusal(quantizer(numerics::kLogFmt8, {1, 32}, "clip_mask"), x, d, "codebooks");
  Operand unscaled(plain, 4, 32);
  unscaled.scales = {};
  CHECK_THROWS_WITH((cpu::run(ops::EstimatorFactor{unscaled, x.view(), d.view()})),
                    Catch::Contains("needs its scales"));
}

}  // namespace
}  // namespace fp8lab
