// Attention as emulation/ops/attention/attention.hpp defines it, one scalar at a time and skipping
// nothing: every query meets every tile and every group of 16, masked or not.
#pragma once

#include <cmath>
#include <cstdint>
#include <vector>

#include "emulation/numerics/attention_weight.hpp"
#include "emulation/numerics/codec.hpp"
#include "emulation/numerics/mma.hpp"
#include "emulation/numerics/tree_sum.hpp"
#include "tests/emulation/cpu/attention/attention_case.hpp"

namespace fp8lab::test {

using Floats = std::vector<float>;

/// chain(c; a, b) over whole groups of 16; a short last group is padded with zeros.
inline float reference_chain(float c, Floats a, Floats b, DType dtype) {
  const std::size_t n = (a.size() + 15) / 16 * 16;
  a.resize(n);
  b.resize(n);
  for (std::size_t k = 0; k < n; k += 16) {
    if (dtype == DType::bf16) {
      std::uint16_t x[16], y[16];
      for (std::size_t l = 0; l < 16; ++l) {
        x[l] = numerics::to_bf16(a[k + l]);
        y[l] = numerics::to_bf16(b[k + l]);
      }
      c = numerics::bits_float(numerics::fused_group(numerics::kSm90Bf16F32, numerics::kBF16,
                                                     numerics::kBF16, x, y, 16,
                                                     numerics::float_bits(c)));
    } else {
      for (std::size_t l = 0; l < 16; ++l) c = std::fma(a[k + l], b[k + l], c);
      c = c + 0.0f;
    }
  }
  return c;
}

class AttentionReference {
 public:
  explicit AttentionReference(const AttentionCase& input)
      : a_(input),
        s_(input.shape),
        root_(1.0f / std::sqrt(static_cast<float>(s_.head_dim))),
        scale_(root_ * numerics::kLog2E) {}

  /// Fills out, lse and dqkv of `result`.
  void run(AttentionCase& result) const {
    for (std::int64_t b = 0; b < s_.batch; ++b) {
      for (std::int64_t head = 0; head < s_.heads; ++head) {
        for (std::int64_t i = 0; i < s_.sequence; ++i) forward(result, b, head, i);
      }
    }
    for (std::int64_t b = 0; b < s_.batch; ++b) {
      for (std::int64_t head = 0; head < s_.heads; ++head) backward_queries(result, b, head);
      for (std::int64_t kv = 0; kv < s_.kv_heads; ++kv) backward_keys(result, b, kv);
    }
  }

 private:
  std::int64_t padded(std::int64_t tile) const { return (s_.sequence + tile - 1) / tile * tile; }
  /// Row of a head; zeros past the end of the sequence.
  Floats vector(const Matrix& matrix, std::int64_t b, std::int64_t i, std::int64_t column) const {
    Floats values(static_cast<std::size_t>(s_.head_dim));
    for (std::int64_t c = 0; i < s_.sequence && c < s_.head_dim; ++c) {
      values[static_cast<std::size_t>(c)] =
          static_cast<float>(matrix.at(b * s_.sequence + i, column + c));
    }
    return values;
  }
  bool visible(std::int64_t b, std::int64_t i, std::int64_t j) const {
    return i < s_.sequence && j <= i &&
           j >= static_cast<std::int64_t>(a_.starts.at(b * s_.sequence + i));
  }
  float weight(float d) const {
    return a_.dtype == DType::bf16 ? numerics::attention_weight(d)
                                   : numerics::wide_attention_weight(d);
  }
  float operand(float x) const {
    return a_.dtype == DType::bf16 ? numerics::from_bf16(numerics::to_bf16(x)) : x;
  }
  float score(std::int64_t b, std::int64_t head, std::int64_t i, std::int64_t j) const {
    return reference_chain(0.0f, vector(a_.qkv, b, i, a_.q_column(head)),
                           vector(a_.qkv, b, j, a_.k_column(head)), a_.dtype);
  }

  void forward(AttentionCase& result, std::int64_t b, std::int64_t head, std::int64_t i) const {
    float m = -HUGE_VALF, l = 0.0f;
    Floats o(static_cast<std::size_t>(s_.head_dim), 0.0f);
    for (std::int64_t tile = 0; tile < padded(s_.kv_tile); tile += s_.kv_tile) {
      Floats s, p, operands;
      float m_new = m;
      for (std::int64_t j = tile; j < tile + s_.kv_tile; ++j) {
        s.push_back(visible(b, i, j) ? score(b, head, i, j) : -HUGE_VALF);
        m_new = std::fmax(m_new, s.back() * scale_);
      }
      const float alpha = m == -HUGE_VALF ? 0.0f : weight(m_new - m);
      const float reference = m_new == -HUGE_VALF ? 0.0f : m_new;
      for (std::int64_t j = tile; j < tile + s_.kv_tile; ++j) {
        const float d = std::fma(-s[static_cast<std::size_t>(j - tile)], scale_, reference);
        p.push_back(visible(b, i, j) ? weight(d) : 0.0f);
        operands.push_back(operand(p.back()));
      }
      l = reference_chain(l * alpha, operands, Floats(operands.size(), 1.0f), a_.dtype);
      for (std::size_t c = 0; c < o.size(); ++c) {
        o[c] = reference_chain(o[c] * alpha, operands, column_of_v(b, head, tile, c), a_.dtype);
      }
      m = m_new;
    }
    const std::int64_t token = b * s_.sequence + i;
    for (std::int64_t c = 0; c < s_.head_dim; ++c) {
      const float out = o[static_cast<std::size_t>(c)] * (1.0f / l);
      result.out.set(token, a_.q_column(head) + c, static_cast<double>(out));
    }
    result.lse.set(head, token, static_cast<double>(m + numerics::log2(l)));
  }

  Floats column_of_v(std::int64_t b, std::int64_t head, std::int64_t tile, std::size_t c) const {
    Floats column;
    for (std::int64_t j = tile; j < tile + s_.kv_tile; ++j) {
      column.push_back(vector(a_.qkv, b, j, a_.v_column(head))[c]);
    }
    return column;
  }

  struct Pair {
    float p = 0.0f, ds = 0.0f;
  };
  Pair pair(const AttentionCase& result, std::int64_t b, std::int64_t head, std::int64_t i,
            std::int64_t j) const {
    if (!visible(b, i, j)) return {};
    const std::int64_t token = b * s_.sequence + i;
    const Floats dout = vector(a_.dout, b, i, a_.q_column(head));
    const Floats out = vector(result.out, b, i, a_.q_column(head));
    const float delta = numerics::tree_sum(s_.head_dim, [&](std::int64_t c) {
      return dout[static_cast<std::size_t>(c)] * out[static_cast<std::size_t>(c)];
    });
    const float p = weight(
        std::fma(-score(b, head, i, j), scale_, static_cast<float>(result.lse.at(head, token))));
    const float dp = reference_chain(0.0f, dout, vector(a_.qkv, b, j, a_.v_column(head)), a_.dtype);
    return {operand(p), operand(p * (dp - delta))};
  }

  void backward_queries(AttentionCase& result, std::int64_t b, std::int64_t head) const {
    for (std::int64_t i = 0; i < s_.sequence; ++i) {
      Floats ds;
      for (std::int64_t j = 0; j < padded(s_.kv_tile); ++j) {
        ds.push_back(pair(result, b, head, i, j).ds);
      }
      for (std::int64_t c = 0; c < s_.head_dim; ++c) {
        Floats k;
        for (std::int64_t j = 0; j < padded(s_.kv_tile); ++j) {
          k.push_back(vector(a_.qkv, b, j, a_.k_column(head))[static_cast<std::size_t>(c)]);
        }
        const float dq = reference_chain(0.0f, ds, k, a_.dtype) * root_;
        result.dqkv.set(b * s_.sequence + i, a_.q_column(head) + c, static_cast<double>(dq));
      }
    }
  }

  void backward_keys(AttentionCase& result, std::int64_t b, std::int64_t kv) const {
    const std::int64_t first = kv * a_.group();
    for (std::int64_t j = 0; j < s_.sequence; ++j) {
      Floats p, ds;
      for (std::int64_t head = first; head < first + a_.group(); ++head) {
        for (std::int64_t i = 0; i < padded(s_.q_tile); ++i) {
          const Pair terms = pair(result, b, head, i, j);
          p.push_back(terms.p);
          ds.push_back(terms.ds);
        }
      }
      for (std::int64_t c = 0; c < s_.head_dim; ++c) {
        Floats q, dout;
        for (std::int64_t head = first; head < first + a_.group(); ++head) {
          for (std::int64_t i = 0; i < padded(s_.q_tile); ++i) {
            const auto column = static_cast<std::size_t>(c);
            q.push_back(vector(a_.qkv, b, i, a_.q_column(head))[column]);
            dout.push_back(vector(a_.dout, b, i, a_.q_column(head))[column]);
          }
        }
        const float dk = reference_chain(0.0f, ds, q, a_.dtype) * root_;
        const float dv = reference_chain(0.0f, p, dout, a_.dtype);
        const std::int64_t token = b * s_.sequence + j;
        result.dqkv.set(token, a_.k_column(first) + c, static_cast<double>(dk));
        result.dqkv.set(token, a_.v_column(first) + c, static_cast<double>(dv));
      }
    }
  }

  const AttentionCase& a_;
  AttentionShape s_;
  float root_;
  float scale_;
};

}  // namespace fp8lab::test
