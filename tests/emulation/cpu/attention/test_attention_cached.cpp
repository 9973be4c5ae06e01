// Attention against a cache: the bits of the full forward pass, however the tokens arrive.
#include <catch2/catch.hpp>

#include <algorithm>
#include <cstring>
#include <random>
#include <vector>

#include "emulation/base/error.hpp"
#include "emulation/cpu/operations.hpp"
#include "emulation/reference/truth_backend.hpp"
#include "tests/emulation/cpu/attention/attention_case.hpp"

using namespace fp8lab;
using namespace fp8lab::test;

namespace {

Matrix integers(const std::vector<std::int32_t>& values) {
  Matrix matrix(DType::i32, 1, static_cast<std::int64_t>(values.size()));
  for (std::size_t i = 0; i < values.size(); ++i) {
    matrix.set(static_cast<std::int64_t>(i), values[i]);
  }
  return matrix;
}

void copy_row(const Matrix& from, std::int64_t from_row, std::int64_t column, Matrix& to,
              std::int64_t to_row) {
  for (std::int64_t c = 0; c < to.cols(); ++c) to.set(to_row, c, from.at(from_row, column + c));
}

/// The tokens of a case, handed over in pieces.
class Replay {
 public:
  Replay(AttentionCase& full, std::int64_t capacity)
      : full_(full),
        shape_(full.shape),
        k_cache_(full.dtype, full.shape.batch * capacity, kv_cols()),
        v_cache_(full.dtype, full.shape.batch * capacity, kv_cols()),
        out_(full.out),
        done_(static_cast<std::size_t>(full.shape.batch), 0) {
    shape_.sequence = capacity;
    for (std::int64_t i = 0; i < k_cache_.rows() * k_cache_.cols(); ++i) {
      k_cache_.set(i, NAN);  // what is read although no token wrote it shows
      v_cache_.set(i, NAN);
    }
  }

  /// The next counts[b] tokens of every sequence.
  void feed(const std::vector<std::int32_t>& counts) {
    std::vector<std::int32_t> start = {0};
    for (const std::int32_t count : counts) start.push_back(start.back() + count);
    const std::int64_t rows = start.back();
    if (rows == 0) return;
    const std::int64_t q_cols = shape_.heads * shape_.head_dim;
    Matrix q(full_.dtype, rows, q_cols), k(full_.dtype, rows, kv_cols()), v = k;
    Matrix result(full_.dtype, rows, q_cols);
    for (std::size_t b = 0; b < counts.size(); ++b) {
      for (std::int32_t i = 0; i < counts[b]; ++i) {
        const std::int64_t from = token(b, i), to = start[b] + i;
        copy_row(full_.qkv, from, 0, q, to);
        copy_row(full_.qkv, from, q_cols, k, to);
        copy_row(full_.qkv, from, q_cols + kv_cols(), v, to);
      }
    }
    cpu::run(ops::AttentionCached{shape_, q.view(), k.view(), v.view(), integers(start).view(),
                                  integers(done_).view(), k_cache_.view(), v_cache_.view(),
                                  result.view()});
    for (std::size_t b = 0; b < counts.size(); ++b) {
      for (std::int32_t i = 0; i < counts[b]; ++i) {
        copy_row(result, start[b] + i, 0, out_, token(b, i));
      }
      done_[b] += counts[b];
    }
  }

  /// The results so far, in the order of the full pass.
  const Matrix& out() const { return out_; }
  std::int64_t left(std::size_t b) const { return full_.shape.sequence - done_[b]; }

 private:
  std::int64_t kv_cols() const { return full_.shape.kv_heads * full_.shape.head_dim; }
  std::int64_t token(std::size_t b, std::int32_t i) const {
    return static_cast<std::int64_t>(b) * full_.shape.sequence + done_[b] + i;
  }

  AttentionCase& full_;
  AttentionShape shape_;
  Matrix k_cache_, v_cache_, out_;
  std::vector<std::int32_t> done_;  ///< tokens in the cache
};

}  // namespace

TEST_CASE("tokens that arrive in pieces have the bits of the full pass") {
  const DType dtype = GENERATE(DType::bf16, DType::f32);
  const std::int64_t kv_tile = GENERATE(16, 64), window = GENERATE(0, 37);
  AttentionCase full({.batch = 3,
                      .sequence = 150,
                      .heads = 4,
                      .kv_heads = 2,
                      .head_dim = 24,
                      .kv_tile = kv_tile,
                      .q_tile = 32,
                      .window = window},
                     dtype, dtype, 5);
  full.run();
  std::mt19937 generator(7);
  Replay replay(full, 170);
  replay.feed({70, 0, 1});  // one prompt beside one token
  while (replay.left(0) + replay.left(1) + replay.left(2) > 0) {
    std::vector<std::int32_t> counts;
    for (std::size_t b = 0; b < 3; ++b) {
      const auto most = std::min<std::int64_t>(replay.left(b), generator() % 3 == 0 ? 40 : 1);
      counts.push_back(static_cast<std::int32_t>(generator() % 4 == 0 ? 0 : most));
    }
    replay.feed(counts);
  }
  CHECK(replay.out().bytes() == full.out.bytes());
}

TEST_CASE("a document that starts at a multiple of kv_tile has the bits of one at the start") {
  const DType dtype = GENERATE(DType::bf16, DType::f32);
  const AttentionShape shape{
      .batch = 1, .sequence = 96, .heads = 2, .kv_heads = 1, .head_dim = 32, .kv_tile = 32};
  AttentionCase packed(shape, dtype, dtype, 3), alone(shape, dtype, dtype, 3);
  packed.pack({0, 64});
  for (std::int64_t i = 0; i < 32; ++i) copy_row(packed.qkv, 64 + i, 0, alone.qkv, i);
  packed.run();
  alone.run();
  for (std::int64_t i = 0; i < 32; ++i) {
    for (std::int64_t c = 0; c < packed.out.cols(); ++c) {
      REQUIRE(packed.out.at(64 + i, c) == alone.out.at(i, c));
    }
  }
}

TEST_CASE("the truth path attends to cached keys") {
  const AttentionShape shape{.batch = 2, .sequence = 40, .heads = 2, .kv_heads = 1, .head_dim = 16};
  const auto backend = reference::make_truth_backend(1);
  const Matrix values = Matrix::random(DType::f64, 80, 64, 4);
  const auto upload = [&](std::int64_t first, std::int64_t cols) {
    const TensorView view = backend->allocate(DType::f64, 80, cols);
    for (std::int64_t r = 0; r < 80; ++r) {
      for (std::int64_t c = 0; c < cols; ++c) view.row<double>(r)[c] = values.at(r, first + c);
    }
    return view;
  };
  const TensorView q = upload(0, 32), k = upload(32, 16), v = upload(48, 16);
  const TensorView expected = backend->allocate(DType::f64, 80, 32);
  backend->run(ops::AttentionForward{shape, q, k, v, backend->allocate(DType::i32, 1, 80), expected,
                                     backend->allocate(DType::f64, 2, 80)});
  const TensorView k_cache = backend->allocate(DType::f64, 80, 16);
  const TensorView v_cache = backend->allocate(DType::f64, 80, 16);
  const TensorView out = backend->allocate(DType::f64, 40, 32);
  // Sequence 1 alone: 25 tokens, then 15.
  for (const auto& [held, count] : {std::pair{0, 25}, std::pair{25, 15}}) {
    backend->run(ops::AttentionCached{shape, q.row_range(40 + held, count),
                                      k.row_range(40 + held, count), v.row_range(40 + held, count),
                                      integers({0, 0, count}).view(), integers({0, held}).view(),
                                      k_cache, v_cache, out.row_range(held, count)});
  }
  for (std::int64_t i = 0; i < 40; ++i) {
    for (std::int64_t c = 0; c < 32; ++c) {
      REQUIRE(out.row<double>(i)[c] ==
              Approx(expected.row<double>(40 + i)[c]).epsilon(0).margin(1e-14));
    }
  }
}

TEST_CASE("attention against a cache refuses what does not fit") {
  AttentionCase full({.batch = 2, .sequence = 20, .heads = 2, .kv_heads = 2, .head_dim = 16},
                     DType::f32, DType::f32, 17);
  Replay replay(full, 20);
  replay.feed({15, 20});
  REQUIRE_THROWS_WITH(replay.feed({6, 0}),
                      Catch::Contains("6 new tokens after 15 of sequence 0 do not fit"));
  const AttentionShape shape = full.shape;
  Matrix q(DType::f32, 3, 32), k = q, v = q, out = q, cache(DType::f32, 40, 32), twin = cache;
  const auto attend = [&](const std::vector<std::int32_t>& start,
                          const std::vector<std::int32_t>& cached) {
    cpu::run(ops::AttentionCached{shape, q.view(), k.view(), v.view(), integers(start).view(),
                                  integers(cached).view(), cache.view(), twin.view(), out.view()});
  };
  REQUIRE_NOTHROW(attend({0, 1, 3}, {0, 18}));
  REQUIRE_THROWS_WITH(attend({0, 1, 2}, {0, 0}), Catch::Contains("from 0 to the 3 new tokens"));
  REQUIRE_THROWS_WITH(attend({0, 4, 3}, {0, 0}), Catch::Contains("do not fit"));
  REQUIRE_THROWS_WITH(attend({0, 1, 3}, {-1, 0}), Catch::Contains("do not fit"));
  REQUIRE_THROWS_WITH(attend({0, 3}, {0, 0}), Catch::Contains("query_start"));
  Matrix narrow(DType::bf16, 3, 32);
  REQUIRE_THROWS_WITH(cpu::run(ops::AttentionCached{
                          shape, q.view(), narrow.view(), v.view(), integers({0, 1, 3}).view(),
                          integers({0, 0}).view(), cache.view(), twin.view(), out.view()}),
                      Catch::Contains("k"));
}
