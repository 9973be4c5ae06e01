// Model and optimizer operations against their formulas in double precision, with derived bounds.
#include <catch2/catch.hpp>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "emulation/base/error.hpp"
#include "emulation/cpu/operations.hpp"
#include "tests/bounded.hpp"
#include "tests/derivative.hpp"
#include "tests/emulation/cpu/matrix.hpp"

using namespace fp8lab;
using namespace fp8lab::test;

TEST_CASE(
    "the hash of a tensor is the sum of the terms of its padded rows, counted from first on") {
  // Rows of 7 bf16 are a word and 6 bytes; between them lies memory that does not belong to them.
  constexpr std::int64_t kRows = 3, kCols = 7, kStride = 9;
  std::vector<std::uint16_t> memory(kRows * kStride, 0xABCDu);
  const TensorView tensor{memory.data(), DType::bf16, kRows, kCols, kStride};
  for (std::size_t i = 0; i < memory.size(); ++i) {
    if (i % kStride < kCols) memory[i] = static_cast<std::uint16_t>(0x3F80u + 257u * i);
  }
  std::uint64_t expected = 5;  // what the sum held before
  for (std::uint64_t r = 0; r < kRows; ++r) {
    std::uint64_t words[2] = {};
    for (std::uint64_t c = 0; c < kCols; ++c) {
      words[c / 4] |= std::uint64_t{memory[r * kStride + c]} << 16 * (c % 4);
    }
    for (std::uint64_t j = 0; j < 2; ++j) {
      expected += numerics::hash_term(numerics::HashedPart::weights, 1000 + 2 * r + j, words[j]);
    }
  }
  std::uint64_t sum = 5;
  const TensorView total{&sum, DType::u8, 1, sizeof sum, sizeof sum};
  const ops::HashTensors op{{&tensor, 1}, numerics::HashedPart::weights, 1000, total};
  CHECK(ops::HashTensors::words(tensor) == 6);
  cpu::run(op);
  CHECK(sum == expected);
  memory[kCols] = 0;  // beside the first row
  sum = 5;
  cpu::run(op);
  CHECK(sum == expected);
  CHECK_THROWS_AS(
      cpu::run(ops::HashTensors{{&tensor, 1}, numerics::HashedPart::weights, 0, tensor}), Error);

  // Words are counted on through several tensors.
  const std::uint64_t alone = expected - 5;
  for (const int rows : {1, 2}) {
    const TensorView parts[] = {tensor.row_range(0, rows), tensor.row_range(rows, 3 - rows)};
    sum = 0;
    cpu::run(ops::HashTensors{parts, numerics::HashedPart::weights, 1000, total});
    CHECK(sum == alone);
  }
}

TEST_CASE("embedding copies rows and adds gradients in token order") {
  const DType dtype = GENERATE(DType::bf16, DType::f32);
  Matrix table = Matrix::random(dtype, 7, 70, 1);
  Matrix tokens(DType::i32, 1, 5);
  const int ids[] = {3, 0, 3, 6, 3};
  for (int t = 0; t < 5; ++t) tokens.set(t, ids[t]);
  Matrix out(dtype, 5, 70);
  cpu::run(ops::EmbeddingForward{tokens.view(), table.view(), out.view()});
  Matrix dtable = Matrix::random(DType::f32, 7, 70, 2);
  Matrix expected = dtable;
  cpu::run(ops::EmbeddingBackward{tokens.view(), out.view(), dtable.view()});
  for (std::int64_t t = 0; t < 5; ++t) {
    for (std::int64_t c = 0; c < 70; ++c) {
      REQUIRE(out.at(t, c) == table.at(ids[t], c));
      expected.set(ids[t], c, expected.at(ids[t], c) + out.at(t, c));  // one f32 rounding
    }
  }
  REQUIRE(dtable.bytes() == expected.bytes());
  tokens.set(2, 7);
  REQUIRE_THROWS_AS(cpu::run(ops::EmbeddingForward{tokens.view(), table.view(), out.view()}),
                    Error);
}

TEST_CASE("rmsnorm forward and backward follow the formula") {
  const DType dtype = GENERATE(DType::bf16, DType::f32);
  const std::int64_t rows = 300, cols = 100;
  const double epsilon = static_cast<double>(1e-5f);
  Matrix x = Matrix::random(dtype, rows, cols, 3, 4.0);
  Matrix weight = Matrix::random(dtype, 1, cols, 4);
  Matrix dy = Matrix::random(dtype, rows, cols, 5);
  Matrix y(dtype, rows, cols), dx(dtype, rows, cols), rstd(DType::f32, 1, rows);
  Matrix dweight(DType::f32, 1, cols);
  cpu::run(ops::RmsNormForward{x.view(), weight.view(), 1e-5f, y.view(), rstd.view()});
  cpu::run(ops::RmsNormBackward{dy.view(), x.view(), weight.view(), rstd.view(), dx.view(),
                                dweight.view()});

  Agreement forward, backward, column;
  std::vector<std::vector<Bounded>> weight_terms(static_cast<std::size_t>(cols));
  for (std::int64_t t = 0; t < rows; ++t) {
    std::vector<Bounded> squares, products;
    for (std::int64_t c = 0; c < cols; ++c) {
      const Bounded v = x.at(t, c);
      squares.push_back(v * v);
      products.push_back((Bounded(dy.at(t, c)) * weight.at(c)) * v);
    }
    const Bounded n = static_cast<double>(cols);
    const Bounded r = Bounded(1.0) / sqrt(tree_sum(squares) / n + epsilon);
    const Bounded k = tree_sum(products) * r * r / n;
    for (std::int64_t c = 0; c < cols; ++c) {
      const Bounded v = x.at(t, c), w = weight.at(c), d = dy.at(t, c);
      forward.add(y.at(t, c), stored(v * r * w, dtype));
      const Bounded expected = r * (d * w - v * k);
      backward.add(dx.at(t, c), stored(expected, dtype));
      weight_terms[static_cast<std::size_t>(c)].push_back(d * (v * r));
      if (t > 0 || c % 10 != 0) continue;
      const auto loss = [&](const std::vector<double>& z) {
        double square = 0.0, total = 0.0;
        for (const double e : z) square += e * e;
        const double scale = 1.0 / std::sqrt(square / static_cast<double>(cols) + epsilon);
        for (std::int64_t j = 0; j < cols; ++j) {
          total += dy.at(t, j) * z[static_cast<std::size_t>(j)] * scale * weight.at(j);
        }
        return total;
      };
      REQUIRE(is_derivative(expected.value,
                            central_difference(row_of(x, t), static_cast<std::size_t>(c), loss)));
    }
  }
  // Blocks of 128 rows, three of them, and the addition to the destination.
  for (std::int64_t c = 0; c < cols; ++c) {
    column.add(dweight.at(c), sum(weight_terms[static_cast<std::size_t>(c)], 128 + 3 + 1));
  }
  CHECK(forward.worst() <= 1.0);
  CHECK(backward.worst() <= 1.0);
  CHECK(column.worst() <= 1.0);
}

TEST_CASE("column sums add blocks of 128 rows and then the blocks") {
  const std::int64_t rows = 128 * 2 + 5, cols = 67;
  Matrix dy = Matrix::random(DType::bf16, rows, cols, 6);
  Matrix dbias = Matrix::random(DType::f32, 1, cols, 7);
  Matrix expected = dbias;
  cpu::run(ops::BiasBackward{dy.view(), dbias.view()});
  for (std::int64_t c = 0; c < cols; ++c) {
    float total = 0.0f;
    for (std::int64_t block = 0; block < rows; block += 128) {
      float part = 0.0f;
      for (std::int64_t r = block; r < std::min(rows, block + 128); ++r) {
        part += static_cast<float>(dy.at(r, c));
      }
      total += part;
    }
    expected.set(c, static_cast<double>(static_cast<float>(expected.at(c)) + total));
  }
  REQUIRE(dbias.bytes() == expected.bytes());
}

TEST_CASE("GEGLU is the GELU of the gate times the other half, bit for bit") {
  const DType dtype = GENERATE(DType::bf16, DType::f32);
  const std::int64_t rows = 9, width = 77;
  Matrix gate_up = Matrix::random(dtype, rows, 2 * width, 8, 12.0);
  Matrix dout = Matrix::random(DType::f32, rows, width, 9);
  const TensorView gate = gate_up.view().columns(0, width);
  Matrix out(DType::f32, rows, width), dgate_up(DType::f32, rows, 2 * width),
      gelu = out, slope = out, times_up = out;
  cpu::run(ops::GatedForward{Gate::gelu_tanh, gate_up.view(), out.view()});
  cpu::run(ops::GatedBackward{Gate::gelu_tanh, gate_up.view(), dout.view(), dgate_up.view()});
  for (std::int64_t t = 0; t < rows; ++t) {
    for (std::int64_t c = 0; c < width; ++c) {
      times_up.set(t * width + c,
                   static_cast<double>(static_cast<float>(dout.at(t, c)) *
                                       static_cast<float>(gate_up.at(t, width + c))));
    }
  }
  cpu::run(ops::ActivationForward{Activation::gelu_tanh, gate, gelu.view()});
  cpu::run(ops::ActivationBackward{Activation::gelu_tanh, gate, times_up.view(), slope.view()});
  for (std::int64_t t = 0; t < rows; ++t) {
    for (std::int64_t c = 0; c < width; ++c) {
      const auto up = static_cast<float>(gate_up.at(t, width + c));
      const auto value = static_cast<float>(gelu.at(t, c));
      REQUIRE(static_cast<float>(out.at(t, c)) == value * up);
      REQUIRE(static_cast<float>(dgate_up.at(t, width + c)) ==
              static_cast<float>(dout.at(t, c)) * value);
      REQUIRE(dgate_up.at(t, c) == slope.at(t, c));
    }
  }
}

TEST_CASE("add and swiglu follow the formula") {
  const DType dtype = GENERATE(DType::bf16, DType::f32);
  const std::int64_t rows = 9, width = 77;
  Matrix gate_up = Matrix::random(dtype, rows, 2 * width, 8, 12.0);
  Matrix dout = Matrix::random(dtype, rows, width, 9);
  Matrix out(dtype, rows, width), dgate_up(dtype, rows, 2 * width);
  cpu::run(ops::GatedForward{Gate::silu, gate_up.view(), out.view()});
  cpu::run(ops::GatedBackward{Gate::silu, gate_up.view(), dout.view(), dgate_up.view()});
  Matrix total = out;
  cpu::run(ops::Add{total.view(), dout.view(), total.view()});
  Agreement forward, gate, up, added;
  for (std::int64_t t = 0; t < rows; ++t) {
    for (std::int64_t c = 0; c < width; ++c) {
      const Bounded g = gate_up.at(t, c), u = gate_up.at(t, width + c), d = dout.at(t, c);
      const Bounded sig = sigmoid(g);
      forward.add(out.at(t, c), stored(g * sig * u, dtype));
      added.add(total.at(t, c), stored(Bounded(out.at(t, c)) + d, dtype));
      const Bounded dgate = d * u * (sig * (Bounded(1.0) + g * (Bounded(1.0) - sig)));
      const Bounded dup = d * (g * sig);
      gate.add(dgate_up.at(t, c), stored(dgate, dtype));
      up.add(dgate_up.at(t, width + c), stored(dup, dtype));
      const auto loss = [&](const std::vector<double>& z) {
        return d.value * z[0] / (1.0 + std::exp(-z[0])) * z[1];
      };
      REQUIRE(is_derivative(dgate.value, central_difference({g.value, u.value}, 0, loss)));
      REQUIRE(is_derivative(dup.value, central_difference({g.value, u.value}, 1, loss)));
    }
  }
  CHECK(forward.worst() <= 1.0);
  CHECK(gate.worst() <= 1.0);
  CHECK(up.worst() <= 1.0);
  CHECK(added.worst() <= 1.0);
}

TEST_CASE("rope rotates pairs half a head apart, in a column range, and back") {
  const DType dtype = GENERATE(DType::bf16, DType::f32);
  const std::int64_t rows = 6, head = 10, half = 5;
  Matrix storage = Matrix::random(dtype, rows, 4 * head, 10);
  const Matrix before = storage;
  Matrix cosine(DType::f32, 20, half), sine(DType::f32, 20, half), positions(DType::i32, 1, rows);
  for (std::int64_t i = 0; i < 20 * half; ++i) {
    cosine.set(i, std::cos(0.1 * static_cast<double>(i)));
    sine.set(i, std::sin(0.1 * static_cast<double>(i)));
  }
  for (std::int64_t t = 0; t < rows; ++t) positions.set(t, static_cast<double>(3 * t % 20));
  const bool inverse = GENERATE(false, true);
  cpu::run(ops::Rope{storage.view().columns(head, 2 * head), positions.view(), cosine.view(),
                     sine.view(), head, inverse});
  Agreement agreement;
  for (std::int64_t t = 0; t < rows; ++t) {
    for (std::int64_t c = 0; c < 4 * head; ++c) {
      if (c < head || c >= 3 * head) {
        REQUIRE(storage.at(t, c) == before.at(t, c));
        continue;
      }
      const std::int64_t i = c % half, position = 3 * t % 20;
      const bool lower = c % head < half;
      const Bounded own = before.at(t, c), other = before.at(t, lower ? c + half : c - half);
      const double sign = lower != inverse ? -1.0 : 1.0;
      agreement.add(
          storage.at(t, c),
          stored(own * cosine.at(position, i) + other * (sign * sine.at(position, i)), dtype));
    }
  }
  CHECK(agreement.worst() <= 1.0);
  positions.set(1, 20);
  REQUIRE_THROWS_AS(cpu::run(ops::Rope{storage.view(), positions.view(), cosine.view(), sine.view(),
                                       head, inverse}),
                    Error);
}

TEST_CASE("cross entropy: loss, gradient, masked tokens") {
  const DType dtype = GENERATE(DType::bf16, DType::f32);
  const std::int64_t tokens = 40, vocabulary = 101;
  Matrix logits = Matrix::random(dtype, tokens, vocabulary, 11, 6.0);
  Matrix targets(DType::i32, 1, tokens), weights(DType::f32, 1, tokens);
  Matrix token_loss(DType::f32, 1, tokens), dlogits(dtype, tokens, vocabulary);
  Matrix scalars(DType::f32, 1, StepScalar::kCount);
  scalars.set(StepScalar::kInverseTokens, 1.0 / 30.0);
  scalars.set(StepScalar::kLossSum, 2.5);
  for (std::int64_t t = 0; t < tokens; ++t) {
    weights.set(t, t % 4 == 0 ? 0.0 : 1.0);
    targets.set(t, t % 4 == 0 ? -100.0 : static_cast<double>(7 * t % vocabulary));
  }
  cpu::run(ops::CrossEntropy{logits.view(), targets.view(), weights.view(), scalars.view(),
                             token_loss.view(), dlogits.view()});
  Agreement loss, gradient, total;
  std::vector<Bounded> losses;
  for (std::int64_t t = 0; t < tokens; ++t) {
    const auto target = static_cast<std::int64_t>(targets.at(t));
    if (t % 4 == 0) {
      REQUIRE(token_loss.at(t) == 0.0);
      for (std::int64_t c = 0; c < vocabulary; ++c) REQUIRE(dlogits.at(t, c) == 0.0);
      losses.push_back(0.0);
      continue;
    }
    const std::vector<double> z = row_of(logits, t);
    const double largest = *std::max_element(z.begin(), z.end());
    // The constants log2(e) and ln 2 are themselves rounded to FP32.
    const Bounded log2e = rounded(kLog2EDouble, 0.0), ln2 = rounded(kLn2Double, 0.0);
    std::vector<Bounded> e;
    for (const double v : z) e.push_back(exp2((Bounded(v) - largest) * log2e));
    const Bounded s = tree_sum(e);
    const Bounded expected =
        (log2(s) + (Bounded(largest) - z[static_cast<std::size_t>(target)]) * log2e) * ln2;
    loss.add(token_loss.at(t), expected);
    losses.push_back(token_loss.at(t));
    const Bounded factor = scalars.at(StepScalar::kInverseTokens);
    for (std::int64_t c = 0; c < vocabulary; ++c) {
      const Bounded p = e[static_cast<std::size_t>(c)] * (Bounded(1.0) / s);
      const Bounded d = (p - (c == target ? 1.0 : 0.0)) * factor;
      gradient.add(dlogits.at(t, c), stored(d, dtype));
      if (t != 1) continue;
      const auto formula = [&](const std::vector<double>& v) {
        double sum_of_exp = 0.0;
        for (const double a : v) sum_of_exp += std::exp(a);
        return factor.value * (std::log(sum_of_exp) - v[static_cast<std::size_t>(target)]);
      };
      REQUIRE(is_derivative(d.value, central_difference(z, static_cast<std::size_t>(c), formula)));
    }
  }
  total.add(scalars.at(StepScalar::kLossSum), Bounded(2.5) + tree_sum(losses));
  CHECK(loss.worst() <= 1.0);
  CHECK(gradient.worst() <= 1.0);
  CHECK(total.worst() <= 1.0);
}

TEST_CASE("cross entropy in place, without a gradient, and with a target outside") {
  Matrix logits = Matrix::random(DType::bf16, 6, 50, 12, 6.0), dlogits(DType::bf16, 6, 50);
  Matrix targets(DType::i32, 1, 6), weights(DType::f32, 1, 6);
  Matrix scalars(DType::f32, 1, StepScalar::kCount), loss(DType::f32, 1, 6), again = loss;
  scalars.set(StepScalar::kInverseTokens, 0.2);
  for (std::int64_t t = 0; t < 6; ++t) {
    targets.set(t, static_cast<double>(9 * t));
    weights.set(t, 1.0);
  }
  const auto run = [&](Matrix& losses, const TensorView& gradient) {
    cpu::run(ops::CrossEntropy{logits.view(), targets.view(), weights.view(), scalars.view(),
                               losses.view(), gradient});
  };
  run(loss, dlogits.view());
  run(again, {});
  REQUIRE(again.bytes() == loss.bytes());
  run(again, logits.view());
  REQUIRE(logits.bytes() == dlogits.bytes());
  // Nothing is added up in the first of two parts, and the losses of both in the second.
  const double sum = scalars.at(StepScalar::kLossSum);
  const auto part = [&](std::int64_t first, std::int64_t count, const TensorView& summed) {
    cpu::run(ops::CrossEntropy{dlogits.view().row_range(first, count),
                               targets.view().columns(first, count),
                               weights.view().columns(first, count), scalars.view(),
                               again.view().columns(first, count), TensorView{}, summed});
  };
  part(0, 4, {});
  REQUIRE(scalars.at(StepScalar::kLossSum) == sum);
  part(4, 2, again.view());
  const double added = scalars.at(StepScalar::kLossSum) - sum;
  double losses = 0.0;
  for (std::int64_t t = 0; t < 6; ++t) losses += again.at(0, t);
  REQUIRE(added == Approx(losses));
  targets.set(1, 50.0);
  REQUIRE_THROWS_WITH(run(again, {}),
                      "cross_entropy: target 50 of token 1 is outside the vocabulary of 50");
}

TEST_CASE("a NaN is stored as the canonical one") {
  for (const DType dtype : {DType::bf16, DType::f32}) {
    Matrix a(dtype, 1, 40), b(dtype, 1, 40), sum(dtype, 1, 40);
    for (std::int64_t i = 0; i < 40; ++i) {
      a.set(i, HUGE_VAL);
      b.set(i, -HUGE_VAL);
    }
    cpu::run(ops::Add{a.view(), b.view(), sum.view()});
    for (std::int64_t i = 0; i < 40; ++i) {
      REQUIRE(std::isnan(sum.at(i)));
      if (dtype == DType::f32) REQUIRE(sum.view().row<std::uint32_t>(0)[i] == 0x7FFFFFFFu);
      if (dtype == DType::bf16) REQUIRE(sum.view().row<std::uint16_t>(0)[i] == 0x7FFFu);
    }
  }
}

TEST_CASE("cosines of rows keep no sign and are zero for a row of zeros") {
  Matrix a(DType::f32, 5, 2), b(DType::bf16, 5, 2);
  const double left[] = {3, 4, 3, 4, 0, 0, 1, 0, 0x1p-100, 0};
  const double right[] = {-6, -8, -4, 3, 1, 1, 1, 1, 1, 0};
  for (int i = 0; i < 10; ++i) {
    a.set(i, left[i]);
    b.set(i, right[i]);
  }
  Matrix out(DType::f32, 1, 5);
  cpu::run(ops::RowCosines{a.view(), b.view(), out.view()});
  CHECK(out.at(0) == 1.0);
  CHECK(out.at(1) == 0.0);
  CHECK(out.at(2) == 0.0);
  CHECK(out.at(3) == static_cast<double>(1.0f / std::sqrt(2.0f)));
  CHECK(out.at(4) == 0.0);  // its square is below FP32
  a.set(0, std::numeric_limits<double>::quiet_NaN());
  cpu::run(ops::RowCosines{a.view(), b.view(), out.view()});
  CHECK(std::isnan(out.at(0)));
}

TEST_CASE("argmax takes the lowest index on a tie") {
  Matrix logits(DType::bf16, 2, 5);
  const double values[] = {1, 3, 2, 3, 3, -1, -2, -1, -5, -1};
  for (int i = 0; i < 10; ++i) logits.set(i, values[i]);
  Matrix out(DType::i32, 1, 2);
  cpu::run(ops::Argmax{logits.view(), out.view()});
  CHECK(out.at(0) == 1);
  CHECK(out.at(1) == 0);
}

TEST_CASE("copy rounds once, also from double precision to bf16") {
  // Halfway between two bf16 values but for a last bit that FP32 cannot hold.
  const double values[] = {1.0 + 0x1p-8 + 0x1p-40,
                           1.0 + 0x1p-8 - 0x1p-40,
                           -1.0 - 0x1p-8 - 0x1p-40,
                           1.0 + 3 * 0x1p-8 - 0x1p-40,
                           0.0,
                           -0.0,
                           1e300,
                           0x1p-134 + 0x1p-180};
  const double expected[] = {1.0 + 0x1p-7, 1.0,  -1.0 - 0x1p-7, 1.0 + 0x1p-7,
                             0.0,          -0.0, HUGE_VAL,      0x1p-133};
  Matrix source(DType::f64, 1, 8), narrow(DType::bf16, 1, 8), wide(DType::f32, 1, 8);
  for (int i = 0; i < 8; ++i) source.set(i, values[i]);
  cpu::run(ops::Copy{source.view(), narrow.view()});
  cpu::run(ops::Copy{narrow.view(), wide.view()});
  for (int i = 0; i < 8; ++i) {
    INFO("value " << i);
    CHECK(narrow.at(i) == expected[i]);
    CHECK(std::signbit(narrow.at(i)) == std::signbit(expected[i]));
    CHECK(wide.at(i) == expected[i]);
  }
  Matrix integers(DType::i32, 1, 8);
  REQUIRE_THROWS_AS(cpu::run(ops::Copy{source.view(), integers.view()}), Error);
  REQUIRE_THROWS_AS(cpu::run(ops::Copy{integers.view(), wide.view()}), Error);
}

TEST_CASE("shapes and types that do not fit are refused by name") {
  Matrix a(DType::bf16, 3, 4), b(DType::bf16, 3, 5), c(DType::f64, 3, 4);
  REQUIRE_THROWS_WITH(cpu::run(ops::Add{a.view(), b.view(), a.view()}),
                      "add: b is bf16 (3, 5), expected bf16 or f32 (3, 4)");
  REQUIRE_THROWS_WITH(cpu::run(ops::Add{a.view(), a.view(), c.view()}),
                      "add: sum is f64 (3, 4), expected bf16 or f32 (3, 4)");
  REQUIRE_THROWS_WITH(cpu::run(ops::BiasBackward{a.view(), {}}),
                      "bias_backward: dbias is missing, expected f32 (1, 4)");
}
