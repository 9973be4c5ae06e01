// Attention inputs for tests: packed documents, grouped heads, q, k and v as columns of one matrix.
#pragma once

#include <cmath>
#include <cstdint>
#include <vector>

#include "emulation/backend.hpp"
#include "emulation/cpu/operations.hpp"
#include "tests/emulation/cpu/matrix.hpp"

namespace fp8lab::test {

struct AttentionCase {
  AttentionShape shape;
  DType dtype;
  Matrix qkv, dout, out, lse, dqkv, starts;

  /// Operands of type `storage`, results of type `result`.
  AttentionCase(const AttentionShape& s, DType storage, DType result, std::uint32_t seed,
                double scale = 1.5)
      : shape(s),
        dtype(storage),
        qkv(Matrix::random(storage, tokens(), width(), seed, scale)),
        dout(Matrix::random(storage, tokens(), s.heads * s.head_dim, seed + 1)),
        out(result, tokens(), s.heads * s.head_dim),
        lse(DType::f32, s.heads, tokens()),
        dqkv(result, tokens(), width()),
        starts(DType::i32, 1, tokens()) {}

  std::int64_t tokens() const { return shape.batch * shape.sequence; }
  std::int64_t width() const { return (shape.heads + 2 * shape.kv_heads) * shape.head_dim; }

  /// Every sequence is cut at these positions.
  void pack(const std::vector<std::int64_t>& boundaries) {
    for (std::int64_t t = 0; t < tokens(); ++t) {
      std::int64_t start = 0;
      for (const std::int64_t boundary : boundaries) {
        if (boundary <= t % shape.sequence) start = boundary;
      }
      starts.set(t, static_cast<double>(start));
    }
  }

  std::int64_t q_column(std::int64_t head) const { return head * shape.head_dim; }
  std::int64_t k_column(std::int64_t head) const {
    return (shape.heads + head / group()) * shape.head_dim;
  }
  std::int64_t v_column(std::int64_t head) const {
    return (shape.heads + shape.kv_heads + head / group()) * shape.head_dim;
  }
  std::int64_t group() const { return shape.heads / shape.kv_heads; }

  /// Replaces every value by the nearest multiple of `unit`, so that many are zero.
  void coarsen(double unit) {
    for (Matrix* matrix : {&qkv, &dout}) {
      for (std::int64_t i = 0; i < matrix->rows() * matrix->cols(); ++i) {
        matrix->set(i, unit * std::round(matrix->at(i) / unit));
      }
    }
  }

  void run() {
    const auto part = [&](Matrix& matrix, std::int64_t first, std::int64_t heads) {
      return matrix.view().columns(first * shape.head_dim, heads * shape.head_dim);
    };
    const std::int64_t h = shape.heads, g = shape.kv_heads;
    cpu::run(ops::AttentionForward{shape, part(qkv, 0, h), part(qkv, h, g), part(qkv, h + g, g),
                                   starts.view(), out.view(), lse.view()});
    cpu::run(ops::AttentionBackward{shape, part(qkv, 0, h), part(qkv, h, g), part(qkv, h + g, g),
                                    starts.view(), out.view(), lse.view(), dout.view(),
                                    part(dqkv, 0, h), part(dqkv, h, g), part(dqkv, h + g, g)});
  }
};

}  // namespace fp8lab::test
