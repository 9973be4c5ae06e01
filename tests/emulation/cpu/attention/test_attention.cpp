// Attention against a naive softmax in double precision, with derived bounds; no leakage between
// documents; gradients against central differences.
#include <catch2/catch.hpp>

#include <cmath>
#include <vector>

#include "emulation/base/error.hpp"
#include "tests/bounded.hpp"
#include "tests/emulation/cpu/attention/attention_case.hpp"

using namespace fp8lab;
using namespace fp8lab::test;

namespace {

/// Dot product through the chains of operations.hpp. Tensor core: every group of 16 cuts each of
/// its 17 terms on a grid of 2^(emax - 25), where 2^emax is at most the largest term, and its
/// result to 24 bits. Ideal chain: one rounding a term. `extra_groups`: groups beyond those that
/// consecutive terms would fill, because the visible terms start inside a group or a tile ends.
Bounded chain(const std::vector<Bounded>& a, const std::vector<Bounded>& b, DType dtype,
              double extra_groups = 0.0) {
  double value = 0.0, bound = 0.0, magnitude = 0.0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    value += a[i].value * b[i].value;
    bound += a[i].magnitude() * b[i].bound + a[i].bound * std::fabs(b[i].value);
    magnitude += a[i].magnitude() * b[i].magnitude();
  }
  const double n = static_cast<double>(a.size());
  const double groups = std::ceil(n / 16.0) + extra_groups;
  const double error = dtype == DType::bf16 ? groups * (17.0 * 0x1p-25 + 0x1p-23)
                                            : (n + 16.0 * extra_groups) * kUnit;
  return {value, bound + 1.001 * error * magnitude + 0x1p-140};
}

Bounded operand(const Bounded& x, DType dtype) {
  return dtype == DType::bf16 ? rounded_to_bf16(x) : x;
}

std::vector<Bounded> slice(const Matrix& matrix, std::int64_t r, std::int64_t first,
                           std::int64_t count) {
  std::vector<Bounded> values;
  for (std::int64_t c = 0; c < count; ++c) values.push_back(matrix.at(r, first + c));
  return values;
}

/// The naive computation for one sequence and head.
struct Naive {
  const AttentionCase& a;
  std::int64_t b, head;
  Bounded root = Bounded(1.0) / sqrt(Bounded(static_cast<double>(a.shape.head_dim)));
  Bounded scale = root * rounded(kLog2EDouble, 0.0);

  std::int64_t token(std::int64_t i) const { return b * a.shape.sequence + i; }
  std::int64_t start(std::int64_t i) const {
    return static_cast<std::int64_t>(a.starts.at(token(i)));
  }
  std::vector<Bounded> q(std::int64_t i) const {
    return slice(a.qkv, token(i), a.q_column(head), a.shape.head_dim);
  }
  std::vector<Bounded> k(std::int64_t j) const {
    return slice(a.qkv, token(j), a.k_column(head), a.shape.head_dim);
  }
  std::vector<Bounded> v(std::int64_t j) const {
    return slice(a.qkv, token(j), a.v_column(head), a.shape.head_dim);
  }
  std::vector<Bounded> dout(std::int64_t i) const {
    return slice(a.dout, token(i), a.q_column(head), a.shape.head_dim);
  }
  Bounded score(std::int64_t i, std::int64_t j) const { return chain(q(i), k(j), a.dtype) * scale; }
};

struct NaiveRow {
  std::vector<Bounded> out;
  Bounded lse;
};

/// numerics::attention_weight of `distance`, rounded where it was formed: within 2^-18.
Bounded weight(const Bounded& distance) {
  const double power = std::exp2(-distance.value);
  const double relative = std::expm1(kLn2Double * distance.bound + 0x1p-18);
  return {power, power * relative + 0x1p-130};
}

/// Output and log-sum-exp of query i. Weights are taken relative to the true maximum M; a common
/// error of the running maximum cancels in out and is part of the error of l in lse. A distance is
/// rounded once, at a magnitude of at most that of the row's scores, and a weight is rescaled once
/// per later tile.
NaiveRow forward_row(const Naive& naive, std::int64_t i) {
  const AttentionShape& shape = naive.a.shape;
  std::vector<Bounded> scores;
  double largest = -HUGE_VAL, smallest = HUGE_VAL;
  for (std::int64_t j = naive.start(i); j <= i; ++j) {
    scores.push_back(naive.score(i, j));
    largest = std::max(largest, scores.back().value + scores.back().bound);
    smallest = std::min(smallest, scores.back().value - scores.back().bound);
  }
  const double tiles = static_cast<double>(i / shape.kv_tile - naive.start(i) / shape.kv_tile + 1);
  const double range = largest - smallest;
  std::vector<Bounded> operands;
  for (const Bounded& s : scores) {
    const Bounded own =
        operand(weight({largest - s.value, s.bound + kUnit * range}), naive.a.dtype);
    const double rescaled = std::expm1(tiles * (0x1p-18 + kUnit * (1.0 + range)));
    operands.emplace_back(own.value, own.bound + rescaled * own.magnitude());
  }
  const std::vector<Bounded> ones(operands.size(), Bounded(1.0));
  const Bounded l = chain(operands, ones, naive.a.dtype, tiles + 1.0);
  NaiveRow row;
  for (std::int64_t c = 0; c < shape.head_dim; ++c) {
    std::vector<Bounded> column;
    for (std::int64_t j = naive.start(i); j <= i; ++j) {
      column.push_back(naive.v(j)[static_cast<std::size_t>(c)]);
    }
    const Bounded o = chain(operands, column, naive.a.dtype, tiles + 1.0);
    row.out.push_back(operand(o * (Bounded(1.0) / l), naive.a.dtype));
  }
  row.lse = Bounded(largest) + log2(l);
  return row;
}

/// P and dS of the pair (i, j), before they become operands.
struct NaivePair {
  Bounded p, ds;
};

NaivePair backward_pair(const Naive& naive, const NaiveRow& row, const Bounded& delta,
                        std::int64_t i, std::int64_t j) {
  NaivePair pair;
  pair.p = weight(row.lse - naive.score(i, j));
  pair.ds = pair.p * (chain(naive.dout(i), naive.v(j), naive.a.dtype) - delta);
  return pair;
}

/// Compares one case, pair of sequence and kv head by pair.
class Comparison {
 public:
  explicit Comparison(const AttentionCase& a) : a_(a) {}

  void run() {
    for (std::int64_t b = 0; b < a_.shape.batch; ++b) {
      for (std::int64_t kv = 0; kv < a_.shape.kv_heads; ++kv) {
        terms_.assign(static_cast<std::size_t>(a_.shape.sequence), {});
        for (std::int64_t head = kv * a_.group(); head < (kv + 1) * a_.group(); ++head) {
          const Naive naive{a_, b, head};
          for (std::int64_t i = 0; i < a_.shape.sequence; ++i) check_query(naive, i);
        }
        const Naive naive{a_, b, kv * a_.group()};
        for (std::int64_t j = 0; j < a_.shape.sequence; ++j) check_key(naive, j);
      }
    }
    CHECK(out_.worst() <= 1.0);
    CHECK(lse_.worst() <= 1.0);
    CHECK(dq_.worst() <= 1.0);
    CHECK(dk_.worst() <= 1.0);
    CHECK(dv_.worst() <= 1.0);
  }

 private:
  /// What one query adds to the chains of dK and dV of one key.
  struct Term {
    std::int64_t head, query;
    Bounded p, ds;
  };

  void check_query(const Naive& naive, std::int64_t i) {
    const NaiveRow row = forward_row(naive, i);
    lse_.add(a_.lse.at(naive.head, naive.token(i)), row.lse);
    const std::vector<Bounded> dout = naive.dout(i);
    std::vector<Bounded> products, ds;
    for (std::size_t c = 0; c < dout.size(); ++c) {
      out_.add(a_.out.at(naive.token(i), a_.q_column(naive.head) + static_cast<std::int64_t>(c)),
               row.out[c]);
      products.push_back(row.out[c] * dout[c]);
    }
    const Bounded delta = tree_sum(products);
    std::vector<std::vector<Bounded>> keys(dout.size());
    for (std::int64_t j = naive.start(i); j <= i; ++j) {
      const NaivePair pair = backward_pair(naive, row, delta, i, j);
      ds.push_back(operand(pair.ds, a_.dtype));
      terms_[static_cast<std::size_t>(j)].push_back(
          {naive.head, i, operand(pair.p, a_.dtype), ds.back()});
      append(keys, naive.k(j));
    }
    for (std::size_t c = 0; c < dout.size(); ++c) {
      const Bounded dq = chain(ds, keys[c], a_.dtype, 1.0) * naive.root;
      dq_.add(a_.dqkv.at(naive.token(i), a_.q_column(naive.head) + static_cast<std::int64_t>(c)),
              operand(dq, a_.dtype));
    }
  }

  void check_key(const Naive& first, std::int64_t j) {
    std::vector<Bounded> p, ds;
    std::vector<std::vector<Bounded>> q(static_cast<std::size_t>(a_.shape.head_dim)), dout = q;
    for (const Term& term : terms_[static_cast<std::size_t>(j)]) {
      const Naive naive{a_, first.b, term.head};
      p.push_back(term.p);
      ds.push_back(term.ds);
      append(q, naive.q(term.query));
      append(dout, naive.dout(term.query));
    }
    // The visible queries of a head may start and end inside a group of 16: one group more a head.
    const double extra = static_cast<double>(a_.group());
    for (std::size_t c = 0; c < q.size(); ++c) {
      const auto column = static_cast<std::int64_t>(c);
      const Bounded dk = chain(ds, q[c], a_.dtype, extra) * first.root;
      dk_.add(a_.dqkv.at(first.token(j), a_.k_column(first.head) + column), operand(dk, a_.dtype));
      const Bounded dv = chain(p, dout[c], a_.dtype, extra);
      dv_.add(a_.dqkv.at(first.token(j), a_.v_column(first.head) + column), operand(dv, a_.dtype));
    }
  }

  static void append(std::vector<std::vector<Bounded>>& columns, const std::vector<Bounded>& row) {
    for (std::size_t c = 0; c < row.size(); ++c) columns[c].push_back(row[c]);
  }

  const AttentionCase& a_;
  std::vector<std::vector<Term>> terms_;  ///< per key
  Agreement out_, lse_, dq_, dk_, dv_;
};

/// L = sum(dout * attention(qkv)) in double precision.
double objective(const AttentionCase& a, const Matrix& qkv) {
  const AttentionShape& shape = a.shape;
  const double root = 1.0 / std::sqrt(static_cast<double>(shape.head_dim));
  double total = 0.0;
  for (std::int64_t t = 0; t < a.tokens(); ++t) {
    const std::int64_t first = t - t % shape.sequence + static_cast<std::int64_t>(a.starts.at(t));
    for (std::int64_t head = 0; head < shape.heads; ++head) {
      double l = 0.0, weighted = 0.0;
      for (std::int64_t j = first; j <= t; ++j) {
        double score = 0.0, along_v = 0.0;
        for (std::int64_t c = 0; c < shape.head_dim; ++c) {
          score += qkv.at(t, a.q_column(head) + c) * qkv.at(j, a.k_column(head) + c);
          along_v += a.dout.at(t, a.q_column(head) + c) * qkv.at(j, a.v_column(head) + c);
        }
        l += std::exp(score * root);
        weighted += std::exp(score * root) * along_v;
      }
      total += weighted / l;
    }
  }
  return total;
}

}  // namespace

TEST_CASE("attention equals the naive softmax within derived bounds") {
  const DType dtype = GENERATE(DType::bf16, DType::f32);
  // Odd length, two query heads per kv head, tiles that do not divide the sequence.
  AttentionCase a({.batch = 2,
                   .sequence = 45,
                   .heads = 4,
                   .kv_heads = 2,
                   .head_dim = 24,
                   .kv_tile = 32,
                   .q_tile = 16},
                  dtype, dtype, 1);
  a.pack({0, 7, 30});
  a.run();
  Comparison(a).run();
}

TEST_CASE("attention over one long document and one head per kv head") {
  AttentionCase a({.batch = 1,
                   .sequence = 97,
                   .heads = 1,
                   .kv_heads = 1,
                   .head_dim = 64,
                   .kv_tile = 16,
                   .q_tile = 64},
                  DType::bf16, DType::bf16, 5, 2.0);
  a.pack({0});
  a.run();
  Comparison(a).run();
}

TEST_CASE("attention gradients are the derivatives of the output") {
  // FP32 storage, so that what separates the two is the bound of FP32 arithmetic, far below 1e-4 of
  // the largest gradient; the naive comparison above bounds it sharply.
  AttentionCase a({.batch = 1,
                   .sequence = 21,
                   .heads = 2,
                   .kv_heads = 1,
                   .head_dim = 8,
                   .kv_tile = 16,
                   .q_tile = 16},
                  DType::f32, DType::f32, 9);
  a.pack({0, 5});
  a.run();
  Matrix qkv(DType::f64, a.tokens(), a.width());
  for (std::int64_t i = 0; i < a.tokens() * a.width(); ++i) qkv.set(i, a.qkv.at(i));
  for (std::int64_t i = 0; i < a.tokens() * a.width(); i += 7) {
    const double middle = qkv.at(i), step = 1e-5;
    qkv.set(i, middle + step);
    const double above = objective(a, qkv);
    qkv.set(i, middle - step);
    const double difference = (above - objective(a, qkv)) / (2.0 * step);
    qkv.set(i, middle);
    INFO("element " << i);
    CHECK(std::fabs(a.dqkv.at(i) - difference) < 1e-4);
  }
}

TEST_CASE("tokens of another document change no bit") {
  const DType dtype = GENERATE(DType::bf16, DType::f32);
  AttentionCase a({.batch = 2,
                   .sequence = 83,
                   .heads = 2,
                   .kv_heads = 1,
                   .head_dim = 32,
                   .kv_tile = 32,
                   .q_tile = 32},
                  dtype, dtype, 13);
  a.pack({0, 19, 60});
  AttentionCase changed = a;
  a.run();
  for (std::int64_t t = 0; t < a.tokens(); ++t) {
    const std::int64_t i = t % a.shape.sequence;
    if (i >= 19 && i < 60) continue;
    for (std::int64_t c = 0; c < a.width(); ++c) {
      changed.qkv.set(t, c, 40.0 * a.qkv.at(t, c) + 1.0);
    }
    for (std::int64_t c = 0; c < a.dout.cols(); ++c) changed.dout.set(t, c, -7.0 * a.dout.at(t, c));
  }
  changed.run();
  for (std::int64_t t = 0; t < a.tokens(); ++t) {
    const std::int64_t i = t % a.shape.sequence;
    if (i < 19 || i >= 60) continue;
    for (std::int64_t c = 0; c < a.out.cols(); ++c) {
      REQUIRE(a.out.at(t, c) == changed.out.at(t, c));
    }
    for (std::int64_t c = 0; c < a.width(); ++c) {
      REQUIRE(a.dqkv.at(t, c) == changed.dqkv.at(t, c));
    }
  }
  CHECK(a.dqkv.bytes() != changed.dqkv.bytes());
}

TEST_CASE("a window has the bits of documents that start with its first key") {
  const DType dtype = GENERATE(DType::bf16, DType::f32);
  const std::int64_t window = GENERATE(1, 16, 37, 64, 200);
  const AttentionShape shape{.batch = 2,
                             .sequence = 100,
                             .heads = 4,
                             .kv_heads = 2,
                             .head_dim = 24,
                             .kv_tile = 32,
                             .q_tile = 32};
  AttentionShape with_window = shape;
  with_window.window = window;
  AttentionCase windowed(with_window, dtype, dtype, 3), explicit_starts(shape, dtype, dtype, 3);
  windowed.pack({0, 55});
  for (std::int64_t t = 0; t < explicit_starts.tokens(); ++t) {
    const std::int64_t i = t % shape.sequence, document = i >= 55 ? 55 : 0;
    explicit_starts.starts.set(t, static_cast<double>(std::max(document, i - window + 1)));
  }
  windowed.run();
  explicit_starts.run();
  CHECK(windowed.out.bytes() == explicit_starts.out.bytes());
  CHECK(windowed.lse.bytes() == explicit_starts.lse.bytes());
  CHECK(windowed.dqkv.bytes() == explicit_starts.dqkv.bytes());
  double pairs = 0;
  for (std::int64_t i = 0; i < 100; ++i) pairs += static_cast<double>(2 * std::min(window, i + 1));
  CHECK(with_window.visible_pairs() == pairs);
}

TEST_CASE("a factor of scores twice as large has the bits of queries twice as large") {
  const DType dtype = GENERATE(DType::bf16, DType::f32);
  const AttentionShape shape{.batch = 1,
                             .sequence = 70,
                             .heads = 2,
                             .kv_heads = 1,
                             .head_dim = 32,
                             .kv_tile = 32,
                             .q_tile = 32};
  AttentionShape doubled = shape;
  doubled.softmax_scale = 2.0f * (1.0f / std::sqrt(32.0f));
  AttentionCase by_scale(doubled, dtype, dtype, 5), by_queries(shape, dtype, dtype, 5);
  by_scale.pack({0, 30});
  by_queries.pack({0, 30});
  const std::int64_t q_cols = shape.heads * shape.head_dim;
  const auto multiply_queries = [&](Matrix& m, double factor) {
    for (std::int64_t t = 0; t < m.rows(); ++t) {
      for (std::int64_t c = 0; c < q_cols; ++c) {
        const std::int64_t at = t * m.cols() + c;
        m.set(at, factor * m.at(t, c));
      }
    }
  };
  multiply_queries(by_queries.qkv, 2.0);
  by_scale.run();
  by_queries.run();
  CHECK(by_scale.out.bytes() == by_queries.out.bytes());
  CHECK(by_scale.lse.bytes() == by_queries.lse.bytes());
  multiply_queries(by_queries.dqkv, 2.0);
  CHECK(by_scale.dqkv.bytes() == by_queries.dqkv.bytes());
  AttentionCase plain(shape, dtype, dtype, 5);
  plain.pack({0, 30});
  plain.run();
  CHECK(plain.out.bytes() != by_scale.out.bytes());
}

TEST_CASE("attention refuses shapes that do not fit") {
  AttentionCase a({.batch = 1, .sequence = 8, .heads = 3, .kv_heads = 2, .head_dim = 16},
                  DType::f32, DType::f32, 17);
  REQUIRE_THROWS_WITH(a.run(), Catch::Contains("heads a multiple of kv heads"));
  AttentionCase tile(
      {.batch = 1, .sequence = 8, .heads = 2, .kv_heads = 2, .head_dim = 16, .kv_tile = 24},
      DType::f32, DType::f32, 17);
  REQUIRE_THROWS_WITH(tile.run(), Catch::Contains("multiples of 16"));
  AttentionCase negative({.batch = 1,
                          .sequence = 8,
                          .heads = 2,
                          .kv_heads = 2,
                          .head_dim = 16,
                          .softmax_scale = -0.5f},
                         DType::f32, DType::f32, 17);
  REQUIRE_THROWS_WITH(negative.run(), Catch::Contains("softmax_scale -0.5"));
  AttentionCase start({.batch = 1, .sequence = 8, .heads = 2, .kv_heads = 2, .head_dim = 16},
                      DType::f32, DType::f32, 17);
  start.starts.set(3, 4.0);
  REQUIRE_THROWS_WITH(start.run(), Catch::Contains("document_start 4 of token 3"));
}
