// Layer norm against its formula in double precision, and against its definition written out.
#include <catch2/catch.hpp>

#include <algorithm>
#include <cmath>
#include <vector>

#include "emulation/base/error.hpp"
#include "emulation/cpu/operations.hpp"
#include "tests/bounded.hpp"
#include "tests/derivative.hpp"
#include "tests/emulation/cpu/matrix.hpp"

using namespace fp8lab;
using namespace fp8lab::test;

namespace {

using Floats = std::vector<float>;

constexpr float kEpsilon = 1e-5f;

/// tree_sum of at most 4096^2 elements.
float sum_in_order(const Floats& values) {
  if (values.size() > 4096) {
    Floats chunks;
    for (std::size_t i = 0; i < values.size(); i += 4096) {
      const std::size_t end = std::min(values.size(), i + 4096);
      chunks.push_back(sum_in_order(Floats(values.begin() + static_cast<std::ptrdiff_t>(i),
                                           values.begin() + static_cast<std::ptrdiff_t>(end))));
    }
    return sum_in_order(chunks);
  }
  float lane[32] = {};
  for (std::size_t i = 0; i < values.size(); ++i) lane[i % 32] += values[i];
  for (int span = 16; span > 0; span /= 2) {
    for (int l = 0; l < span; ++l) lane[l] += lane[l + span];
  }
  return lane[0];
}

/// column_sum of one column.
float column_in_order(const Floats& values) {
  float total = 0.0f;
  for (std::size_t block = 0; block < values.size(); block += 128) {
    float part = 0.0f;
    for (std::size_t r = block; r < std::min(values.size(), block + 128); ++r) part += values[r];
    total += part;
  }
  return total;
}

/// A layer norm of columns [kFirst, kFirst + cols) of wider matrices.
struct Case {
  static constexpr std::int64_t kFirst = 3, kWider = 8;

  Case(DType dtype, std::int64_t rows, std::int64_t width)
      : cols(width),
        x(difficult(dtype, rows, width + kWider, 1)),
        dy(difficult(dtype, rows, width + kWider, 2)),
        y(Matrix::random(dtype, rows, width + kWider, 3)),
        dx(y),
        weight(Matrix::random(dtype, 1, width, 4)),
        bias(Matrix::random(dtype, 1, width, 5)),
        dweight(Matrix::random(DType::f32, 1, width, 6)),
        dbias(Matrix::random(DType::f32, 1, width, 7)),
        mean(DType::f32, 1, rows),
        rstd(DType::f32, 1, rows) {}

  TensorView part(Matrix& matrix) const { return matrix.view().columns(kFirst, cols); }
  void run() {
    cpu::run(ops::LayerNormForward{part(x), weight.view(), bias.view(), kEpsilon, part(y),
                                   mean.view(), rstd.view()});
    cpu::run(ops::LayerNormBackward{part(dy), part(x), weight.view(), mean.view(), rstd.view(),
                                    part(dx), dweight.view(), dbias.view()});
  }
  float at(const Matrix& matrix, std::int64_t r, std::int64_t c) const {
    return static_cast<float>(matrix.at(r, kFirst + c));
  }

  std::int64_t cols;
  Matrix x, dy, y, dx, weight, bias, dweight, dbias, mean, rstd;
};

void put(Matrix& matrix, std::int64_t r, std::int64_t c, float value) {
  matrix.set(r, c, static_cast<double>(numerics::canonical_nan(value)));
}

/// The definition of emulation/ops/pointwise/layernorm.hpp, a row at a time.
class InOrder {
 public:
  explicit InOrder(Case& c)
      : c_(c),
        columns_(static_cast<std::size_t>(c.cols)),
        bias_columns_(static_cast<std::size_t>(c.cols)) {}

  void run() {
    for (std::int64_t t = 0; t < c_.x.rows(); ++t) {
      forward(t);
      backward(t);
    }
    for (std::int64_t c = 0; c < c_.cols; ++c) {
      const auto i = static_cast<std::size_t>(c);
      add(c_.dweight, c, column_in_order(columns_[i]));
      add(c_.dbias, c, column_in_order(bias_columns_[i]));
    }
  }

 private:
  static void add(Matrix& vector, std::int64_t c, float value) {
    put(vector, 0, c, static_cast<float>(vector.at(c)) + value);
  }
  void forward(std::int64_t t) {
    const auto n = static_cast<float>(c_.cols);
    Floats d, squares;
    for (std::int64_t c = 0; c < c_.cols; ++c) d.push_back(c_.at(c_.x, t, c));
    mean_ = sum_in_order(d) / n;
    for (float& v : d) squares.push_back((v = v - mean_, v * v));
    rstd_ = 1.0f / std::sqrt(sum_in_order(squares) / n + kEpsilon);
    put(c_.mean, 0, t, mean_);
    put(c_.rstd, 0, t, rstd_);
    for (std::int64_t c = 0; c < c_.cols; ++c) {
      const float scaled = d[static_cast<std::size_t>(c)] * rstd_ * weight(c);
      put(c_.y, t, Case::kFirst + c, scaled + static_cast<float>(c_.bias.at(c)));
    }
  }
  void backward(std::int64_t t) {
    const auto n = static_cast<float>(c_.cols);
    Floats g, products, h;
    for (std::int64_t c = 0; c < c_.cols; ++c) {
      const auto i = static_cast<std::size_t>(c);
      const float dy = c_.at(c_.dy, t, c);
      h.push_back((c_.at(c_.x, t, c) - mean_) * rstd_);
      g.push_back(dy * weight(c));
      products.push_back(g[i] * h[i]);
      columns_[i].push_back(dy * h[i]);
      bias_columns_[i].push_back(dy);
    }
    const float a = sum_in_order(g) / n, b = sum_in_order(products) / n;
    for (std::int64_t c = 0; c < c_.cols; ++c) {
      const auto i = static_cast<std::size_t>(c);
      put(c_.dx, t, Case::kFirst + c, rstd_ * ((g[i] - a) - h[i] * b));
    }
  }
  float weight(std::int64_t c) const { return static_cast<float>(c_.weight.at(c)); }

  Case& c_;
  float mean_ = 0.0f, rstd_ = 0.0f;
  std::vector<Floats> columns_, bias_columns_;
};

}  // namespace

TEST_CASE("layer norm forward and backward follow the formula") {
  const DType dtype = GENERATE(DType::bf16, DType::f32);
  const std::int64_t rows = 300, cols = 100;
  const double epsilon = static_cast<double>(kEpsilon);
  Matrix x = Matrix::random(dtype, rows, cols, 3, 4.0);
  Matrix weight = Matrix::random(dtype, 1, cols, 4), bias = Matrix::random(dtype, 1, cols, 5);
  Matrix dy = Matrix::random(dtype, rows, cols, 6);
  Matrix y(dtype, rows, cols), dx(dtype, rows, cols);
  Matrix mean(DType::f32, 1, rows), rstd(DType::f32, 1, rows);
  Matrix dweight(DType::f32, 1, cols), dbias(DType::f32, 1, cols);
  cpu::run(ops::LayerNormForward{x.view(), weight.view(), bias.view(), kEpsilon, y.view(),
                                 mean.view(), rstd.view()});
  cpu::run(ops::LayerNormBackward{dy.view(), x.view(), weight.view(), mean.view(), rstd.view(),
                                  dx.view(), dweight.view(), dbias.view()});

  Agreement forward, backward, column, moments;
  std::vector<std::vector<Bounded>> weight_terms(cols), bias_terms(cols);
  const Bounded n = static_cast<double>(cols);
  for (std::int64_t t = 0; t < rows; ++t) {
    std::vector<Bounded> d, squares, g, products, h;
    for (const double v : row_of(x, t)) d.emplace_back(v);
    const Bounded m = tree_sum(d) / n;
    for (Bounded& v : d) squares.push_back((v = v - m, v * v));
    const Bounded r = Bounded(1.0) / sqrt(tree_sum(squares) / n + epsilon);
    moments.add(mean.at(t), m);
    moments.add(rstd.at(t), r);
    for (std::int64_t c = 0; c < cols; ++c) {
      const auto i = static_cast<std::size_t>(c);
      h.push_back(d[i] * r);
      g.push_back(Bounded(dy.at(t, c)) * weight.at(c));
      products.push_back(g[i] * h[i]);
      forward.add(y.at(t, c), stored(h[i] * weight.at(c) + bias.at(c), dtype));
      weight_terms[i].push_back(Bounded(dy.at(t, c)) * h[i]);
      bias_terms[i].emplace_back(dy.at(t, c));
    }
    const Bounded a = tree_sum(g) / n, b = tree_sum(products) / n;
    const auto loss = [&](const std::vector<double>& z) {
      double center = 0.0, square = 0.0, total = 0.0;
      for (const double e : z) center += e / static_cast<double>(cols);
      for (const double e : z) square += (e - center) * (e - center);
      const double scale = 1.0 / std::sqrt(square / static_cast<double>(cols) + epsilon);
      for (std::int64_t c = 0; c < cols; ++c) {
        total += dy.at(t, c) * (z[static_cast<std::size_t>(c)] - center) * scale * weight.at(c);
      }
      return total;
    };
    for (std::int64_t c = 0; c < cols; ++c) {
      const auto i = static_cast<std::size_t>(c);
      const Bounded expected = r * ((g[i] - a) - h[i] * b);
      backward.add(dx.at(t, c), stored(expected, dtype));
      if (t > 0 || c % 10 != 0) continue;
      REQUIRE(is_derivative(expected.value, central_difference(row_of(x, t), i, loss)));
    }
  }
  // Blocks of 128 rows, three of them, and the addition to the destination.
  for (std::int64_t c = 0; c < cols; ++c) {
    const auto i = static_cast<std::size_t>(c);
    column.add(dweight.at(c), sum(weight_terms[i], 128 + 3 + 1));
    column.add(dbias.at(c), sum(bias_terms[i], 128 + 3 + 1));
  }
  CHECK(moments.worst() <= 1.0);
  CHECK(forward.worst() <= 1.0);
  CHECK(backward.worst() <= 1.0);
  CHECK(column.worst() <= 1.0);
}

TEST_CASE("layer norm has the bits of its definition, of any values in strided views") {
  const DType dtype = GENERATE(DType::bf16, DType::f32);
  const std::int64_t cols = GENERATE(1, 33, 90, 4096, 4097);
  Case actual(dtype, 131, cols);
  Case expected = actual;
  InOrder(expected).run();
  actual.run();
  CHECK(actual.mean.bytes() == expected.mean.bytes());
  CHECK(actual.rstd.bytes() == expected.rstd.bytes());
  CHECK(actual.y.bytes() == expected.y.bytes());
  CHECK(actual.dx.bytes() == expected.dx.bytes());
  CHECK(actual.dweight.bytes() == expected.dweight.bytes());
  CHECK(actual.dbias.bytes() == expected.dbias.bytes());
}

TEST_CASE("layer norm in place has the same bits") {
  const DType dtype = GENERATE(DType::bf16, DType::f32);
  Case apart(dtype, 131, 90);
  Case in_place = apart;
  apart.run();
  Case& c = in_place;
  cpu::run(ops::LayerNormBackward{c.part(c.dy), c.part(c.x), c.weight.view(), apart.mean.view(),
                                  apart.rstd.view(), c.part(c.dy), c.dweight.view(),
                                  c.dbias.view()});
  cpu::run(ops::LayerNormForward{c.part(c.x), c.weight.view(), c.bias.view(), kEpsilon, c.part(c.x),
                                 c.mean.view(), c.rstd.view()});
  CHECK(c.mean.bytes() == apart.mean.bytes());
  CHECK(c.rstd.bytes() == apart.rstd.bytes());
  CHECK(c.dweight.bytes() == apart.dweight.bytes());
  CHECK(c.dbias.bytes() == apart.dbias.bytes());
  for (std::int64_t t = 0; t < 131; ++t) {
    for (std::int64_t i = 0; i < c.cols; ++i) {
      REQUIRE(numerics::float_bits(c.at(c.x, t, i)) == numerics::float_bits(c.at(apart.y, t, i)));
      REQUIRE(numerics::float_bits(c.at(c.dy, t, i)) == numerics::float_bits(c.at(apart.dx, t, i)));
    }
  }
}

TEST_CASE("the layer norm of equal values is the bias, whatever the weight") {
  Matrix x(DType::f32, 1, 64), weight = Matrix::random(DType::f32, 1, 64, 1), bias = weight;
  Matrix y = x, mean(DType::f32, 1, 1), rstd = mean, dweight = x, dbias = x;
  for (std::int64_t c = 0; c < 64; ++c) x.set(c, 2.5);
  cpu::run(ops::LayerNormForward{x.view(), weight.view(), bias.view(), 0.25f, y.view(), mean.view(),
                                 rstd.view()});
  CHECK(y.bytes() == bias.bytes());
  CHECK(mean.at(0) == 2.5);
  CHECK(rstd.at(0) == 2.0);
  cpu::run(ops::LayerNormBackward{y.view(), x.view(), weight.view(), mean.view(), rstd.view(),
                                  y.view(), dweight.view(), dbias.view()});
  CHECK(dbias.bytes() == bias.bytes());
  for (std::int64_t c = 0; c < 64; ++c) REQUIRE(dweight.at(c) == 0.0);
}

TEST_CASE("layer norm refuses shapes and types that do not fit by name") {
  Matrix x(DType::bf16, 3, 4), y(DType::f32, 3, 4), narrow(DType::f32, 3, 5);
  Matrix weight(DType::bf16, 1, 4), other(DType::f32, 1, 4), moment(DType::f32, 1, 3);
  const auto forward = [&](const TensorView& w, const TensorView& b, const TensorView& out,
                           const TensorView& mean) {
    cpu::run(ops::LayerNormForward{x.view(), w, b, 1e-5f, out, mean, moment.view()});
  };
  CHECK_THROWS_WITH(forward(other.view(), weight.view(), y.view(), moment.view()),
                    "layernorm_forward: bias is bf16 (1, 4), expected f32 (1, 4)");
  CHECK_THROWS_WITH(forward(moment.view(), weight.view(), y.view(), moment.view()),
                    "layernorm_forward: weight is f32 (1, 3), expected bf16 or f32 (1, 4)");
  CHECK_THROWS_WITH(forward(weight.view(), weight.view(), narrow.view(), moment.view()),
                    "layernorm_forward: y is f32 (3, 5), expected bf16 or f32 (3, 4)");
  CHECK_THROWS_WITH(forward(weight.view(), weight.view(), y.view(), weight.view()),
                    "layernorm_forward: mean is bf16 (1, 4), expected f32 (1, 3)");
  const auto backward = [&](const TensorView& dy, const TensorView& dx, const TensorView& dbias) {
    cpu::run(ops::LayerNormBackward{dy, x.view(), weight.view(), moment.view(), moment.view(), dx,
                                    other.view(), dbias});
  };
  CHECK_THROWS_WITH(backward(narrow.view(), y.view(), other.view()),
                    "layernorm_backward: dy is f32 (3, 5), expected bf16 or f32 (3, 4)");
  CHECK_THROWS_WITH(backward(y.view(), y.view(), {}),
                    "layernorm_backward: dbias is missing, expected f32 (1, 4)");
  CHECK_THROWS_WITH(backward(y.view(), x.view(), other.view()),
                    "layernorm_backward: dx must not overwrite x");
}
