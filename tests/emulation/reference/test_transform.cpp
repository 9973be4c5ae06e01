// Hadamard transforms along K: matrices, their written product, and operands quantized after one.
#include <catch2/catch.hpp>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "emulation/base/error.hpp"
#include "emulation/cpu/gemm/gemm.hpp"
#include "emulation/cpu/operations.hpp"
#include "emulation/numerics/hadamard.hpp"
#include "emulation/ops/gemm/product.hpp"
#include "emulation/reference/operand_decode.hpp"
#include "emulation/reference/transform.hpp"
#include "tests/emulation/cpu/quantize/measure.hpp"
#include "tests/emulation/reference/transform_case.hpp"

namespace fp8lab {
namespace {

using namespace test;
using numerics::float_bits;

constexpr const char* kNvSigns = "hadamard:16:+++-+------+-+--";

/// Entry of H_n by its definition, the core given.
int entry(const std::vector<int>& core, std::int64_t order, std::int64_t i, std::int64_t j) {
  const auto common = static_cast<std::uint64_t>((i / order) & (j / order));
  const int sylvester = std::popcount(common) % 2 == 0 ? 1 : -1;
  return sylvester * core[static_cast<std::size_t>(i % order * order + j % order)];
}

std::vector<int> core_of(int order) {
  std::vector<int> core(static_cast<std::size_t>(order) * static_cast<std::size_t>(order));
  numerics::write_hadamard_core(order, core.data());
  return core;
}

TEST_CASE("every core up to the limit is a Hadamard matrix: H H^T = n I in integers") {
  int cores = 0;
  for (int n = 4; n <= numerics::kMaxHadamardCore; n += 4) {
    if (!numerics::is_core_order(n)) continue;
    ++cores;
    const std::vector<int> core = core_of(n);
    const int words = (n + 63) / 64;
    std::vector<std::uint64_t> minus(static_cast<std::size_t>(n * words));
    bool signs = true;
    for (int i = 0; i < n; ++i) {
      for (int j = 0; j < n; ++j) {
        const int value = core[static_cast<std::size_t>(i * n + j)];
        signs = signs && (value == 1 || value == -1);
        const std::uint64_t bit = std::uint64_t{value < 0} << (j % 64);
        minus[static_cast<std::size_t>(i * words + j / 64)] |= bit;
      }
    }
    int wrong = 0;
    for (int i = 0; i < n; ++i) {
      for (int j = 0; j <= i; ++j) {
        int differing = 0;
        for (int w = 0; w < words; ++w) {
          differing += std::popcount(minus[static_cast<std::size_t>(i * words + w)] ^
                                     minus[static_cast<std::size_t>(j * words + w)]);
        }
        if (n - 2 * differing != (i == j ? n : 0)) ++wrong;
      }
    }
    INFO("order " << n);
    CHECK(signs);
    CHECK(wrong == 0);
  }
  CHECK(cores > 120);
}

TEST_CASE("the orders of model dimensions have a core, others have none") {
  struct Row {
    std::int64_t n;
    int core;
  };
  const Row rows[] = {{1, 1},       {2, 1},     {16, 1},      {4096, 1},  {12, 12},     {20, 20},
                      {28, 28},     {36, 36},   {40, 20},     {52, 52},   {60, 60},     {108, 108},
                      {140, 140},   {896, 28},  {4864, 76},   {1536, 12}, {8960, 140},  {3584, 28},
                      {18944, 148}, {156, 156}, {11008, 172}, {312, 156}, {13824, 108}, {14336, 28},
                      {28672, 28},  {0, 0},     {3, 0},       {6, 0},     {14, 0},      {92, 0}};
  for (const Row& row : rows) {
    INFO(row.n);
    CHECK(numerics::hadamard_core(row.n) == row.core);
  }
}

TEST_CASE("the written product is x H / sqrt(n), H the Kronecker product of Sylvester and core") {
  for (const std::int64_t n : {2, 16, 12, 28, 36, 40, 52, 56, 112, 156, 172, 344}) {
    for (const bool transposed : {false, true}) {
      INFO("n " << n << " transposed " << transposed);
      const int order = numerics::hadamard_core(n);
      const std::vector<int> core = core_of(order);
      const std::vector<float> signs(core.begin(), core.end());
      const std::int64_t width = 3;
      const Matrix x = whole_numbers(n, width, 5, 100);
      std::vector<float> values, scratch(static_cast<std::size_t>(order * width));
      for (std::int64_t i = 0; i < n * width; ++i) values.push_back(x.at(i / width, i % width));
      numerics::hadamard_multiply(values.data(), n, width, signs.data(), order, transposed,
                                  scratch.data());
      int wrong = 0;
      for (std::int64_t j = 0; j < n; ++j) {
        for (std::int64_t w = 0; w < width; ++w) {
          std::int64_t sum = 0;
          for (std::int64_t i = 0; i < n; ++i) {
            sum += static_cast<std::int64_t>(x.at(i, w)) *
                   (transposed ? entry(core, order, j, i) : entry(core, order, i, j));
          }
          const float expected = static_cast<float>(sum) * numerics::hadamard_factor(n);
          if (values[static_cast<std::size_t>(j * width + w)] != expected) ++wrong;
        }
      }
      CHECK(wrong == 0);
    }
  }
}

TEST_CASE("butterflies and core sums add in the written order") {
  // (a + b) + (c + d) with a + b = 2^24 + 1 rounded to even, and the core's sum term by term.
  const float big = 0x1p24f;
  std::vector<float> butterfly = {big, 1.0f, 1.0f, 1.0f};
  const float one = 1.0f;
  numerics::hadamard_multiply(butterfly.data(), 4, 1, &one, 1, false, nullptr);
  CHECK(butterfly[0] == (big + 2.0f) * 0.5f);
  CHECK(butterfly[2] == (big - 2.0f) * 0.5f);
  std::vector<float> core(144), scratch(12), sum(12, 1.0f);
  numerics::write_hadamard_core(12, core.data());
  sum[0] = big;
  numerics::hadamard_multiply(sum.data(), 12, 1, core.data(), 12, false, scratch.data());
  float expected = big;
  for (std::size_t i = 1; i < 12; ++i) expected += core[12 * i + 3];
  CHECK(sum[3] == expected * numerics::hadamard_factor(12));
}

const char* const kTransforms[] = {
    "hadamard:16",           kNvSigns,        "hadamard:64:drawn",  "hadamard:64:drawn:after",
    "hadamard:256:+-:after", "hadamard:full", "hadamard:full:drawn"};

TEST_CASE("with factors that are powers of two the product of whole numbers is invariant exactly") {
  const Matrix first = whole_numbers(5, 256, 1, 60), second = whole_numbers(4, 256, 2, 60);
  for (const char* name : kTransforms) {
    INFO(name);
    const Transform transform = named(name);
    Matrix x = first, w = second;
    reference::FloatMatrix xh = transformed(x.view(), false, transform, kKey);
    reference::FloatMatrix wh = transformed(w.view(), false, transform, kKey);
    int wrong = 0;
    for (std::int64_t i = 0; i < 5; ++i) {
      for (std::int64_t j = 0; j < 4; ++j) {
        double plain = 0.0, rotated = 0.0;
        for (std::int64_t k = 0; k < 256; ++k) {
          plain += static_cast<double>(x.at(i, k)) * w.at(j, k);
          rotated += static_cast<double>(at(xh.view(), i, k)) * at(wh.view(), j, k);
        }
        if (plain != rotated) ++wrong;
      }
    }
    CHECK(wrong == 0);
    undo_transform(xh.view(), false, transform, kKey);
    for (std::int64_t k = 0; k < 256; ++k) wrong += at(xh.view(), 2, k) != x.at(2, k);
    CHECK(wrong == 0);
  }
}

TEST_CASE("the product and the way back stay within the bound of their roundings") {
  // A value is a sum of n terms, each through at most depth additions, times a factor that is
  // within 1.5 ulp, rounded: |y - exact| <= (depth + 4) 2^-24 * |x|_1 / sqrt(n) (1 + small), where
  // |y_j| is itself at most |x|_1 / sqrt(n). So a block of the product is off by (2 g + g^2) |x|_1
  // |w|_1.
  struct Row {
    const char* name;
    std::int64_t k;
  };
  const Row rows[] = {{"hadamard:28", 896},         {"hadamard:full", 896},
                      {"hadamard:full:drawn", 152}, {"hadamard:12:drawn:after", 240},
                      {"hadamard:128", 896},        {"hadamard:full", 344}};
  for (const Row& row : rows) {
    INFO(row.name << " K " << row.k);
    const Transform transform = named(row.name);
    const int block = transform.as<Hadamard>()->block;
    const std::int64_t n = block == 0 ? row.k : block;
    const int order = numerics::hadamard_core(n);
    const double depth = order - 1 + std::log2(static_cast<double>(n / order));
    const double g = (depth + 4.0) * 0x1p-24 * 1.01;
    Matrix x(DType::f32, 3, row.k), w(DType::bf16, 2, row.k);
    test::fill_wide(x, 3);
    test::fill_wide(w, 4);
    reference::FloatMatrix xh = transformed(x.view(), false, transform, kKey);
    reference::FloatMatrix wh = transformed(w.view(), false, transform, kKey);
    const auto norm = [n](const Matrix& m, std::int64_t r, std::int64_t begin) {
      double sum = 0.0;
      for (std::int64_t k = begin; k < begin + n; ++k) sum += std::fabs(m.at(r, k));
      return sum;
    };
    for (std::int64_t i = 0; i < 3; ++i) {
      for (std::int64_t j = 0; j < 2; ++j) {
        double difference = 0.0, bound = 0.0;
        for (std::int64_t k = 0; k < row.k; ++k) {
          difference += static_cast<double>(at(xh.view(), i, k)) * at(wh.view(), j, k) -
                        static_cast<double>(x.at(i, k)) * w.at(j, k);
          if (k % n == 0) bound += (2 * g + g * g) * norm(x, i, k) * norm(w, j, k);
        }
        CHECK(std::fabs(difference) <= bound);
        CHECK(bound > 0.0);
      }
    }
    const Matrix before = x;
    undo_transform(xh.view(), false, transform, kKey);
    int outside = 0;
    for (std::int64_t i = 0; i < 3; ++i) {
      for (std::int64_t k = 0; k < row.k; ++k) {
        const double error = std::fabs(static_cast<double>(at(xh.view(), i, k)) - before.at(i, k));
        if (error > (2 * g + g * g) * norm(before, i, k / n * n) * std::sqrt(n)) ++outside;
      }
    }
    CHECK(outside == 0);
  }
}

TEST_CASE("rows and columns are transformed alike, whatever the type and the number of columns") {
  for (const char* name : {kNvSigns, "hadamard:full", "hadamard:28:drawn:after"}) {
    for (const std::int64_t vectors : {1, 16, 37}) {
      Matrix x(DType::f32, vectors, 112);
      test::fill_wide(x, 9);
      Matrix turned = transpose_of(x);
      const Transform transform = named(name);
      reference::FloatMatrix rows = transformed(x.view(), false, transform, kKey);
      reference::FloatMatrix columns = transformed(turned.view(), true, transform, kKey);
      int wrong = 0;
      const auto compare = [&] {
        for (std::int64_t r = 0; r < vectors; ++r) {
          for (std::int64_t c = 0; c < 112; ++c) {
            wrong += float_bits(at(rows.view(), r, c)) != float_bits(at(columns.view(), c, r));
          }
        }
      };
      compare();
      undo_transform(rows.view(), false, transform, kKey);
      undo_transform(columns.view(), true, transform, kKey);
      compare();
      INFO(name << " " << vectors);
      CHECK(wrong == 0);
    }
  }
}

TEST_CASE("signs: fixed ones are the pattern, drawn ones change with seed, step and rotation") {
  // e_0 becomes +-1/4 in all of a block of 16: its sign is sign 0; x H D shows all signs.
  Matrix ones(DType::f32, 1, 32);
  ones.set(0, 0, 4.0f);
  ones.set(0, 16, 4.0f);
  const std::string pattern = "+++-+------+-+--";
  reference::FloatMatrix fixed =
      transformed(ones.view(), false, named("hadamard:16:" + pattern + ":after"), kKey);
  for (std::int64_t k = 0; k < 32; ++k) {
    CHECK(at(fixed.view(), 0, k) ==
          (pattern[static_cast<std::size_t>(k % 16)] == '+' ? 1.0f : -1.0f));
  }
  const auto signs_of = [&](RandomKey key) {
    reference::FloatMatrix drawn =
        transformed(ones.view(), false, named("hadamard:16:drawn:after"), key);
    std::uint32_t bits = 0;
    for (std::int64_t k = 0; k < 32; ++k) {
      bits |= std::uint32_t{at(drawn.view(), 0, k) < 0.0f} << k;
      const bool negative = (numerics::random_bits(key.seed, key.step_number(), key.rotation, 2,
                                                   static_cast<std::uint64_t>(k)) &
                             1u) != 0;
      CHECK((at(drawn.view(), 0, k) < 0.0f) == negative);
    }
    return bits;
  };
  const std::uint32_t signs = signs_of(kKey);
  CHECK((signs & 0xFFFFu) != (signs >> 16));  // one a position, not one a place in the block
  CHECK(signs_of({12, 22, 33, 0, 44}) != signs);
  CHECK(signs_of({11, 23, 33, 0, 44}) != signs);
  CHECK(signs_of({11, 22, 33, 0, 45}) != signs);
  CHECK(signs_of({11, 22, 99, 1, 44}) == signs);
}

TEST_CASE("an operand is quantized from the transformed tensor, in both orientations") {
  Matrix x(DType::bf16, 48, 64);
  test::fill_wide(x, 21);
  QuantSpec base;
  base.format = numerics::kE4M3;
  base.scale_source = ScaleSource::current;
  QuantSpec stochastic = base;
  stochastic.tile = {1, 16};
  stochastic.rounding = numerics::Rounding::stochastic;
  QuantSpec blocks = base;
  blocks.tile = {16, 16};
  QuantSpec codebook;
  codebook.format = numerics::kLogFmt8;
  codebook.tile = {1, 16};
  codebook.scale_source = ScaleSource::current;
  QuantSpec wide;
  wide.format = numerics::kFP16;
  for (const QuantSpec& plain : {base, stochastic, blocks, codebook, wide}) {
    for (const bool transpose : {false, true}) {
      QuantSpec spec = plain;
      spec.transform = named(kNvSigns);
      const std::int64_t rows = transpose ? 64 : 48, k = transpose ? 48 : 64;
      Operand found(spec, rows, k), expected(plain, rows, k);
      found.key = kKey;
      cpu::run(ops::Quantize{.source = x.view(), .transpose = transpose, .operand = found});
      reference::FloatMatrix values = transformed(x.view(), transpose, spec.transform, kKey);
      expected.key = kKey;
      cpu::run(ops::Quantize{.source = values.view(), .transpose = transpose, .operand = expected});
      INFO(label(spec) << " transpose " << transpose);
      CHECK(found.memory == expected.memory);
      CHECK(found.scale_memory == expected.scale_memory);
      CHECK(found.key.rotation == kKey.rotation);

      reference::FloatMatrix back(rows, k), undone(rows, k);
      cpu::run(ops::Dequantize{found, false, back.view()});
      reference::decode_operand(expected, false, undone.view());
      undo_transform(undone.view(), false, spec.transform, kKey);
      int wrong = 0;
      for (std::int64_t r = 0; r < rows; ++r) {
        for (std::int64_t c = 0; c < k; ++c) {
          wrong += float_bits(at(back.view(), r, c)) != float_bits(at(undone.view(), r, c));
        }
      }
      CHECK(wrong == 0);
    }
  }
}

TEST_CASE("a transform spreads planted outliers; statistics tell the error of the tensor itself") {
  Matrix x = with_outliers(64, 896, 8);
  QuantSpec plain;
  plain.format = *format_by_name("int4");
  plain.tile = {1, 0};
  plain.scale_source = ScaleSource::current;
  QuantSpec rotated = plain;
  rotated.transform = named("hadamard:full:drawn");
  const auto statistics = [&](const QuantSpec& spec, double& mse) {
    Operand operand(spec, 64, 896);
    operand.key = kKey;
    cpu::run(ops::Quantize{.source = x.view(), .operand = operand});
    reference::FloatMatrix back(64, 896);
    cpu::run(ops::Dequantize{operand, false, back.view()});
    mse = 0.0;
    for (std::int64_t r = 0; r < 64; ++r) {
      for (std::int64_t c = 0; c < 896; ++c) {
        const double error = static_cast<double>(at(back.view(), r, c)) - x.at(r, c);
        mse += error * error / (64 * 896);
      }
    }
    return test::measure(x.view(), false, operand);
  };
  double plain_mse = 0.0, rotated_mse = 0.0;
  const OperandStatistics before = statistics(plain, plain_mse);
  const OperandStatistics after = statistics(rotated, rotated_mse);
  CHECK(after.mse == Approx(rotated_mse).epsilon(1e-4));
  CHECK(before.mse == Approx(plain_mse).epsilon(1e-9));
  CHECK(after.rms == Approx(before.rms).epsilon(1e-5));
  CHECK(before.kurtosis > 20.0);
  CHECK(after.kurtosis < 5.0);
  CHECK(before.underflow_fraction > 0.9);  // all but the outlier channels vanish
  CHECK(after.underflow_fraction < 0.3);
  CHECK(after.channel_outlier_ratio < 3.0);
}

TEST_CASE("a GEMM of rotated operands approximates the product; others are refused") {
  Matrix x = with_outliers(32, 128, 1), w = with_outliers(16, 128, 2);
  GemmSpec gemm;
  gemm.accumulator = Accumulator::ideal_fp32;
  gemm.output = DType::f32;
  const auto product_error = [&](const QuantSpec& left, const QuantSpec& right) {
    Operand a(left, 32, 128), b(right, 16, 128);
    a.key = kKey;
    cpu::run(ops::Quantize{.source = x.view(), .operand = a});
    b.key = kKey;
    cpu::run(ops::Quantize{.source = w.view(), .operand = b});
    reference::FloatMatrix d(32, 16);
    cpu::run(ops::Gemm{gemm, a, b, {}, false, d.view()});
    double error = 0.0, norm = 0.0;
    for (std::int64_t i = 0; i < 32; ++i) {
      for (std::int64_t j = 0; j < 16; ++j) {
        double exact = 0.0;
        for (std::int64_t k = 0; k < 128; ++k) {
          exact += static_cast<double>(x.at(i, k)) * w.at(j, k);
        }
        error += std::pow(at(d.view(), i, j) - exact, 2);
        norm += exact * exact;
      }
    }
    return std::sqrt(error / norm);
  };
  QuantSpec spec;
  spec.format = numerics::kInt8;
  spec.scale_source = ScaleSource::current;
  for (const char* name : kTransforms) {
    if (std::string(name) == "hadamard:256:+-:after") continue;  // longer than this K
    spec.transform = named(name);
    INFO(name);
    CHECK(product_error(spec, spec) < 0.03);
  }
  QuantSpec decoded = spec;  // before it is multiplied, and not rotated back there
  decoded.format = numerics::kLogFmt8;
  decoded.tile = {1, 16};
  CHECK(product_error(decoded, spec) < 0.1);
  CHECK(product_error(spec, decoded) < 0.1);

  spec = {};
  spec.format = numerics::kInt8;
  spec.transform = named("hadamard:16:drawn");
  Operand a(spec, 32, 128), b(spec, 16, 128);
  reference::FloatMatrix d(32, 16);
  a.key = kKey;
  cpu::run(ops::Quantize{.source = x.view(), .operand = a});
  b.key = {11, 22, 33, 0, 45};
  cpu::run(ops::Quantize{.source = w.view(), .operand = b});
  CHECK_THROWS_WITH(cpu::run(ops::Gemm{gemm, a, b, {}, false, d.view()}),
                    Catch::Contains("different signs"));
  b.spec.transform = {};
  CHECK_THROWS_WITH(cpu::run(ops::Gemm{gemm, a, b, {}, false, d.view()}),
                    Catch::Contains("GEMM: 'transform': a has hadamard:16:drawn and b has none"));
}

TEST_CASE("a left transform maps the rows as K is mapped") {
  Matrix x = whole_numbers(48, 20, 6, 9);
  Matrix turned = transpose_of(x);
  for (const char* name : {"hadamard:16", "hadamard:full", "hadamard:12:drawn:after"}) {
    INFO(name);
    reference::FloatMatrix along_k = test::transformed(turned.view(), false, named(name), kKey);
    const Transform left = named(std::string("left:") + name);
    reference::FloatMatrix rows = test::transformed(x.view(), false, left, kKey);
    reference::FloatMatrix of_transpose = test::transformed(turned.view(), true, left, kKey);
    int wrong = 0;
    for (std::int64_t r = 0; r < 48; ++r) {
      for (std::int64_t c = 0; c < 20; ++c) {
        const float expected = at(along_k.view(), c, r);
        wrong += at(rows.view(), r, c) != expected || at(of_transpose.view(), c, r) != expected;
      }
    }
    CHECK(wrong == 0);
    test::undo_transform(rows.view(), false, left, kKey);
    double farthest = 0.0;
    for (std::int64_t r = 0; r < 48; ++r) {
      for (std::int64_t c = 0; c < 20; ++c) {
        farthest = std::max(farthest, std::fabs(double{at(rows.view(), r, c)} - x.at(r, c)));
      }
    }
    CHECK(farthest < 1e-5);
  }
}

TEST_CASE("left transforms are taken out of the product") {
  Matrix x = with_outliers(48, 64, 1), w = with_outliers(32, 64, 2);
  GemmSpec gemm;
  gemm.accumulator = Accumulator::ideal_fp32;
  QuantSpec spec, row;
  spec.format = row.format = numerics::kInt8;
  spec.scale_source = row.scale_source = ScaleSource::current;
  row.tile = {1, 0};
  const auto error = [&](const char* of_x, const char* of_w, DType output) {
    QuantSpec left = spec, right = row;
    left.transform = named(of_x);
    right.transform = named(of_w);
    gemm.output = output;
    Operand a(left, 48, 64), b(right, 32, 64);
    a.key = kKey;
    const RandomKey other{11, 23, 33, 0, 45};  // left signs need not agree
    cpu::run(ops::Quantize{.source = x.view(), .operand = a});
    b.key = other;
    cpu::run(ops::Quantize{.source = w.view(), .operand = b});
    Matrix d(output, 48, 32);
    const TensorView product = d.view();
    cpu::run(ops::Gemm{gemm, a, b, {}, false, product});
    if (left.transform.is_left() || right.transform.is_left())
      cpu::run(ops::RotateBack{a, b, product});
    double wrong = 0.0, norm = 0.0;
    for (std::int64_t i = 0; i < 48; ++i) {
      for (std::int64_t j = 0; j < 32; ++j) {
        double exact = 0.0;
        for (std::int64_t k = 0; k < 64; ++k) exact += double{x.at(i, k)} * w.at(j, k);
        const double value = output == DType::f32
                                 ? product.row<float>(i)[j]
                                 : numerics::from_bf16(product.row<std::uint16_t>(i)[j]);
        wrong += std::pow(value - exact, 2);
        norm += exact * exact;
      }
    }
    return std::sqrt(wrong / norm);
  };
  CHECK(error("none", "none", DType::f32) < 0.02);
  for (const char* of_x : {"none", "left:hadamard:full", "left:hadamard:16:drawn"}) {
    for (const char* of_w : {"none", "left:hadamard:full:drawn", "left:hadamard:8:+-:after"}) {
      INFO(of_x << ", " << of_w);
      CHECK(error(of_x, of_w, DType::f32) < 0.02);
      CHECK(error(of_x, of_w, DType::bf16) < 0.02);
    }
  }
}

TEST_CASE("quantizing codes of one scale again in their space gives the same codes") {
  // Two rounding errors of the scale move no value of a code across the middle to the next one.
  int scales = 0;
  for (const numerics::FormatSpec& format : {numerics::kE4M3, numerics::kInt8, numerics::kE3M2}) {
    for (std::uint64_t seed = 0; seed < 20; ++seed) {
      QuantSpec spec;
      spec.format = format;
      spec.scale_source = ScaleSource::current;
      spec.scale.arithmetic = numerics::ScaleArithmetic::dec_div;
      QuantSpec rotated = spec;
      rotated.transform = named("hadamard:full:drawn");
      Matrix x = with_outliers(24, 96, seed), values(DType::f32, 24, 96);
      Operand first(rotated, 24, 96), again(spec, 96, 24);
      first.key = kKey;
      cpu::run(ops::Quantize{.source = x.view(), .operand = first});
      cpu::run(ops::Dequantize{first, false, values.view(), true});
      again.key = kKey;
      cpu::run(ops::Quantize{.source = values.view(), .transpose = true, .operand = again});
      const QuantizedOperand &a = first, &b = again;
      int wrong = 0;
      for (std::int64_t r = 0; r < 24; ++r) {
        for (std::int64_t k = 0; k < 96; ++k) {
          wrong += a.element<std::uint8_t>(r, k) != b.element<std::uint8_t>(k, r);
        }
      }
      INFO(format_name(format) << " seed " << seed);
      CHECK(wrong == 0);
      const float before = a.scales.row<float>(0)[0], after = b.scales.row<float>(0)[0];
      CHECK(std::fabs(after - before) <= 0x1p-23f * before);
      scales += after == before;
    }
  }
  CHECK(scales >= 45);  // most scales are the same too
}

TEST_CASE("an operand leaves the space of its source when it is read back") {
  QuantSpec spec;
  spec.format = numerics::kInt8;
  spec.scale_source = ScaleSource::static_scale;
  QuantSpec rotated = spec, turned = spec;
  rotated.transform = named("hadamard:16:drawn");
  turned.transform = named("hadamard:4:+-");
  Matrix x = whole_numbers(16, 32, 3, 1), values(DType::f32, 16, 32), back(DType::f32, 16, 32);
  for (std::int64_t i = 0; i < 16 * 32; ++i) x.set(i / 32, i % 32, 8.0f * x.at(i / 32, i % 32));
  Operand first(rotated, 16, 32), second(turned, 32, 16);
  first.key = kKey;
  cpu::run(ops::Quantize{.source = x.view(), .operand = first});
  cpu::run(ops::Dequantize{first, false, values.view(), true});
  CHECK(values.at(3, 4) != x.at(3, 4));
  QuantizedOperand in_space = second;
  in_space.source_space = static_cast<QuantizedOperand&>(first).own_space();
  cpu::run(ops::Quantize{.source = values.view(), .transpose = true, .operand = in_space});
  cpu::run(ops::Dequantize{in_space, true, back.view()});
  int wrong = 0;
  for (std::int64_t i = 0; i < 16 * 32; ++i)
    wrong += back.at(i / 32, i % 32) != x.at(i / 32, i % 32);
  CHECK(wrong == 0);
}

TEST_CASE("a product that something follows is finished apart before it is added") {
  Matrix x = with_outliers(48, 64, 1), w = with_outliers(32, 64, 2);
  GemmSpec gemm;
  gemm.accumulator = Accumulator::sm90_wgmma_fp8;
  gemm.output = DType::f32;
  for (const char* name : {"left:hadamard:16:drawn", "clamp:0.97:compensated"}) {
    INFO(name);
    QuantSpec left, right;
    left.format = right.format = numerics::kE4M3;
    left.scale_source = right.scale_source = ScaleSource::current;
    left.transform = named(name);
    Operand a(left, 48, 64), b(right, 32, 64);
    Matrix bounds(DType::f32, 1, 2);
    QuantizedOperand clamped = a;
    clamped.clamp_bounds = bounds.view();
    clamped.key = kKey;
    cpu::run(ops::Quantize{.source = x.view(), .operand = clamped});
    b.key = kKey;
    cpu::run(ops::Quantize{.source = w.view(), .operand = b});
    Matrix alone(DType::f32, 48, 32), sum(DType::f32, 48, 32), apart(DType::f32, 48, 32);
    const Matrix before = with_outliers(48, 32, 3);
    sum = before;
    const auto run = [&](bool accumulate, Matrix& d) {
      const ops::Product product{
          {gemm, clamped, b, {}, accumulate, d.view()}, x.view(), false, w.view(), false,
          accumulate ? apart.view() : TensorView{}};
      CHECK(product.is_apart() == accumulate);
      product.check();
      product.for_each_part([](const auto& part) { cpu::run(part); });
    };
    run(false, alone);
    run(true, sum);
    int wrong = 0;
    for (std::int64_t i = 0; i < 48; ++i) {
      for (std::int64_t j = 0; j < 32; ++j) {
        wrong += sum.at(i, j) != before.at(i, j) + alone.at(i, j) || alone.at(i, j) == 0.0f;
      }
    }
    CHECK(wrong == 0);
  }
}

TEST_CASE("rotating back is exact where the arithmetic is, and leaves no bit of the rotation") {
  QuantSpec spec;
  spec.format = numerics::kInt8;
  spec.scale_source = ScaleSource::current;
  QuantSpec left = spec, right = spec;
  left.transform = named("left:hadamard:16:drawn");
  right.transform = named("left:hadamard:4:+--+:after");
  Operand a(left, 32, 8), b(right, 12, 8);
  Matrix x(DType::f32, 32, 8), w(DType::f32, 12, 8);
  const RandomKey other{1, 2, 3, 0, 4};
  a.key = kKey;
  cpu::run(ops::Quantize{.source = x.view(), .operand = a});
  b.key = other;
  cpu::run(ops::Quantize{.source = w.view(), .operand = b});
  Matrix whole = whole_numbers(32, 12, 3, 50);
  reference::FloatMatrix rows = test::transformed(whole.view(), false, left.transform, kKey);
  reference::FloatMatrix both = test::transformed(rows.view(), true, right.transform, other);
  cpu::run(ops::RotateBack{a, b, both.view()});
  int wrong = 0;
  for (std::int64_t r = 0; r < 32; ++r) {
    for (std::int64_t c = 0; c < 12; ++c) wrong += at(both.view(), r, c) != whole.at(r, c);
  }
  CHECK(wrong == 0);
}

TEST_CASE("left transforms are refused where they cannot be taken out") {
  CHECK(transform_refusal(named("left:hadamard:16"), 48, 7).empty());
  CHECK(transform_refusal(named("left:hadamard:16"), 40, 16) ==
        "transform left:hadamard:16 needs rows to be a multiple of 16, rows = 40");
  CHECK_THAT(transform_refusal(named("left:hadamard:full"), 6, 16),
             Catch::Contains("order rows = 6"));
  Matrix x = with_outliers(16, 32, 1);
  GemmSpec gemm;
  gemm.accumulator = Accumulator::ideal_fp32;
  gemm.output = DType::f32;
  QuantSpec spec, plain;
  spec.format = plain.format = numerics::kInt8;
  spec.transform = named("left:hadamard:16");
  Operand a(spec, 16, 32), b(plain, 16, 32);
  a.key = kKey;
  cpu::run(ops::Quantize{.source = x.view(), .operand = a});
  b.key = kKey;
  cpu::run(ops::Quantize{.source = x.view(), .operand = b});
  Matrix d(DType::f32, 16, 16), bias(DType::f32, 1, 16);
  CHECK_THROWS_WITH(cpu::run(ops::Gemm{gemm, a, b, {}, true, d.view()}),
                    Catch::Contains("left:hadamard:16 with a bias or an accumulator"));
  CHECK_THROWS_WITH(cpu::run(ops::Gemm{gemm, b, a, bias.view(), false, d.view()}),
                    Catch::Contains("left:hadamard:16 with a bias or an accumulator"));
  CHECK_THROWS_WITH(cpu::run(ops::RotateBack{b, b, d.view()}),
                    Catch::Contains("a transform of its rows"));
  Matrix small(DType::f32, 8, 16);
  CHECK_THROWS_WITH(cpu::run(ops::RotateBack{a, b, small.view()}), Catch::Contains("rotate_back"));
}

TEST_CASE("infinity and NaN stay within their block and come out canonical") {
  Matrix x = whole_numbers(1, 32, 3, 5);
  x.set(0, 3, std::numeric_limits<float>::infinity());
  x.set(0, 4, -std::numeric_limits<float>::infinity());
  reference::FloatMatrix values = transformed(x.view(), false, named("hadamard:16"), kKey);
  int nan = 0;
  for (std::int64_t k = 0; k < 16; ++k)
    nan += float_bits(at(values.view(), 0, k)) == numerics::kF32NaN;
  CHECK(nan > 0);
  for (std::int64_t k = 0; k < 16; ++k) CHECK_FALSE(std::isfinite(at(values.view(), 0, k)));
  for (std::int64_t k = 16; k < 32; ++k) CHECK(std::isfinite(at(values.view(), 0, k)));
}

TEST_CASE("a transform that does not fit K is refused before anything is written") {
  const auto refusal = [](const char* name, std::int64_t k) {
    Matrix x(DType::f32, 2, k);
    QuantSpec spec;
    spec.format = numerics::kE4M3;
    spec.transform = named(name);
    Operand operand(spec, 2, k);
    try {
      operand.key = kKey;
      cpu::run(ops::Quantize{.source = x.view(), .operand = operand});
    } catch (const Error& error) {
      for (const std::uint8_t byte : operand.memory) CHECK(byte == 0xEE);
      return std::string(error.what());
    }
    return std::string("accepted");
  };
  CHECK(refusal("hadamard:16", 48) == "accepted");
  CHECK_THAT(refusal("hadamard:16", 40), Catch::Contains("K to be a multiple of 16, K = 40"));
  CHECK_THAT(refusal("hadamard:full", 184 / 2), Catch::Contains("order K = 92"));
  CHECK_THAT(refusal("hadamard:full:+-+", 16), Catch::Contains("3 signs do not divide K = 16"));
}

}  // namespace
}  // namespace fp8lab
