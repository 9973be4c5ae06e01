// Attention on quantized operands as emulation/ops/attention/quantized_attention.hpp defines it,
// one scalar at a time and skipping nothing: every query meets every tile and every group.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "emulation/numerics/attention_weight.hpp"
#include "emulation/numerics/codec.hpp"
#include "emulation/numerics/mma.hpp"
#include "emulation/numerics/scaling.hpp"
#include "emulation/numerics/tree_sum.hpp"
#include "emulation/ops/attention/quantized_attention.hpp"
#include "tests/emulation/cpu/matrix.hpp"

namespace fp8lab::test {

/// An element of an operand: its code, or its value in the type of values.
struct Element {
  float value = 0.0f;
  std::uint32_t code = 0;
};

/// Elements that one product sums, with their format.
struct Vector {
  QuantSpec spec;
  std::vector<Element> elements;
};

class QuantizedReference {
 public:
  QuantizedReference(const AttentionShape& shape, DType values, const QuantSpec& p)
      : s_(shape),
        values_(values),
        p_(p),
        root_(shape.softmax_scale > 0.0f ? shape.softmax_scale
                                         : 1.0f / std::sqrt(static_cast<float>(shape.head_dim))),
        scale_(root_ * numerics::kLog2E) {}

  void forward(const QuantizedOperand& q, const QuantizedOperand& k, const QuantizedOperand& v,
               const Matrix& starts, Matrix& out, Matrix& lse) const {
    for (std::int64_t b = 0; b < s_.batch; ++b) {
      for (std::int64_t head = 0; head < s_.heads; ++head) {
        for (std::int64_t i = 0; i < s_.sequence; ++i) {
          forward_row(q, k, v, starts, b, head, i, out, lse);
        }
      }
    }
  }

  struct Gradients {
    Matrix dq, dk, dv;
    std::uint32_t amax = 0;  ///< bits of the largest dS
  };
  /// `state` as DelayedState, or empty.
  Gradients backward(const QuantizedOperand& q, const QuantizedOperand& k,
                     const QuantizedOperand& v, const QuantizedOperand& dout, const QuantSpec& ds,
                     const std::vector<float>& state, const Matrix& starts, const Matrix& out,
                     const Matrix& lse) const {
    const std::int64_t d = s_.head_dim, tokens = s_.batch * s_.sequence;
    Gradients g{Matrix(values_, tokens, s_.heads * d), Matrix(values_, tokens, s_.kv_heads * d),
                Matrix(values_, tokens, s_.kv_heads * d)};
    const std::int64_t kv_tiles = tiles(s_.kv_tile), q_tiles = tiles(s_.q_tile);
    for (std::int64_t b = 0; b < s_.batch; ++b) {
      const auto pairs = [&](std::int64_t head, std::int64_t q_tile, std::int64_t kv_tile) {
        return pairs_of(q, k, v, dout, ds, state, starts, out, lse, b, head, q_tile, kv_tile);
      };
      for (std::int64_t kv = 0; kv < s_.kv_heads; ++kv) {
        const std::int64_t group = s_.heads / s_.kv_heads;
        for (std::int64_t tile = 0; tile < kv_tiles; ++tile) {
          std::vector<float> dk(static_cast<std::size_t>(s_.kv_tile * d)), dv(dk.size());
          for (std::int64_t head = kv * group; head < (kv + 1) * group; ++head) {
            for (std::int64_t q_tile = 0; q_tile < q_tiles; ++q_tile) {
              const Pairs of = pairs(head, q_tile, tile);
              g.amax = std::max(g.amax, of.amax);
              add_keys(of, q, dout, ds, b, head, q_tile, dk, dv);
            }
          }
          for (std::int64_t j = 0; j < s_.kv_tile && tile * s_.kv_tile + j < s_.sequence; ++j) {
            const std::int64_t token = b * s_.sequence + tile * s_.kv_tile + j;
            for (std::int64_t c = 0; c < d; ++c) {
              const auto at = static_cast<std::size_t>(j * d + c);
              g.dk.set(token, kv * d + c, static_cast<double>(dk[at] * root_));
              g.dv.set(token, kv * d + c, static_cast<double>(dv[at]));
            }
          }
        }
      }
      for (std::int64_t head = 0; head < s_.heads; ++head) {
        for (std::int64_t q_tile = 0; q_tile < q_tiles; ++q_tile) {
          std::vector<float> dq(static_cast<std::size_t>(s_.q_tile * d));
          for (std::int64_t tile = 0; tile < kv_tiles; ++tile) {
            add_queries(pairs(head, q_tile, tile), k, ds, b, head, tile, dq);
          }
          for (std::int64_t i = 0; i < s_.q_tile && q_tile * s_.q_tile + i < s_.sequence; ++i) {
            const std::int64_t token = b * s_.sequence + q_tile * s_.q_tile + i;
            for (std::int64_t c = 0; c < d; ++c) {
              g.dq.set(token, head * d + c,
                       static_cast<double>(dq[static_cast<std::size_t>(i * d + c)] * root_));
            }
          }
        }
      }
    }
    return g;
  }

 private:
  std::int64_t tiles(std::int64_t width) const { return (s_.sequence + width - 1) / width; }
  std::int64_t kv_head(std::int64_t head) const { return head / (s_.heads / s_.kv_heads); }
  bool visible(const Matrix& starts, std::int64_t b, std::int64_t i, std::int64_t j) const {
    if (i >= s_.sequence || j > i) return false;
    if (s_.window > 0 && j < i - s_.window + 1) return false;
    return j >= static_cast<std::int64_t>(starts.at(0, b * s_.sequence + i));
  }
  float weight(float d) const {
    return values_ == DType::f32 ? numerics::wide_attention_weight(d)
                                 : numerics::attention_weight(d);
  }

  static bool is_fp8(const QuantSpec& spec) {
    return spec.format == numerics::kE4M3 || spec.format == numerics::kE5M2;
  }

  /// Element (token i of sequence b, column c of head); zero beyond the sequence.
  Element element(const QuantizedOperand& operand, std::int64_t b, std::int64_t head,
                  std::int64_t i, std::int64_t c) const {
    if (i >= s_.sequence) return {};
    const std::int64_t row = b * s_.sequence + i, col = head * s_.head_dim + c;
    Element e;
    switch (operand.codes.dtype) {
      case DType::u8:
        e.code = operand.codes.row<std::uint8_t>(row)[col];
        e.value = numerics::decode(operand.spec.format, e.code);
        return e;
      case DType::bf16:
        e.value = numerics::from_bf16(operand.codes.row<std::uint16_t>(row)[col]);
        return e;
      default: e.value = operand.codes.row<float>(row)[col]; return e;
    }
  }
  float scale(const QuantizedOperand& operand, std::int64_t b, std::int64_t head,
              std::int64_t i) const {
    if (!operand.spec.has_scale()) return 1.0f;
    const std::int64_t row = b * s_.sequence + std::min(i, s_.sequence - 1);
    const TileShape tile = operand.spec.tile;
    const std::int64_t r = tile.rows == 0 ? 0 : row / tile.rows;
    const std::int64_t c = tile.cols == 0 ? 0 : head * s_.head_dim / tile.cols;
    return operand.scales.row<float>(r)[c];
  }
  Vector token(const QuantizedOperand& operand, std::int64_t b, std::int64_t head,
               std::int64_t i) const {
    Vector vector{operand.spec, {}};
    for (std::int64_t c = 0; c < s_.head_dim; ++c) {
      vector.elements.push_back(element(operand, b, head, i, c));
    }
    return vector;
  }
  Vector column(const QuantizedOperand& operand, std::int64_t b, std::int64_t head,
                std::int64_t first, std::int64_t count, std::int64_t c) const {
    Vector vector{operand.spec, {}};
    for (std::int64_t i = first; i < first + count; ++i) {
      vector.elements.push_back(element(operand, b, head, i, c));
    }
    return vector;
  }

  float chain(float c, const Vector& a, const Vector& b) const {
    const std::size_t n = a.elements.size();
    if (is_fp8(a.spec) && is_fp8(b.spec)) {
      std::uint32_t bits = numerics::float_bits(c);
      for (std::size_t k = 0; k < n; k += 32) {
        std::uint32_t x[32] = {}, y[32] = {};
        for (std::size_t l = 0; l < 32 && k + l < n; ++l) {
          x[l] = a.elements[k + l].code;
          y[l] = b.elements[k + l].code;
        }
        bits = numerics::fused_group(numerics::kSm90WgmmaFp8F32, a.spec.format, b.spec.format, x, y,
                                     32, bits);
      }
      return numerics::bits_float(bits);
    }
    for (std::size_t k = 0; k < n; k += 16) {
      std::uint16_t x[16] = {}, y[16] = {};
      for (std::size_t l = 0; l < 16; ++l) {
        const float av = k + l < n ? a.elements[k + l].value : 0.0f;
        const float bv = k + l < n ? b.elements[k + l].value : 0.0f;
        x[l] = numerics::to_bf16(av);
        y[l] = numerics::to_bf16(bv);
        if (values_ == DType::f32) c = std::fma(av, bv, c);
      }
      if (values_ == DType::f32) {
        c = c + 0.0f;
        continue;
      }
      c = numerics::bits_float(numerics::fused_group(numerics::kSm90Bf16F32, numerics::kBF16,
                                                     numerics::kBF16, x, y, 16,
                                                     numerics::float_bits(c)));
    }
    return c;
  }
  float add(float c, const Vector& a, const Vector& b, float s) const {
    if (!a.spec.is_quantized() && !b.spec.is_quantized()) return chain(c, a, b);
    return std::fma(chain(0.0f, a, b), s, c);
  }

  static float static_scale(const QuantSpec& spec) {
    return spec.scale_source == ScaleSource::static_scale ? spec.static_scale : 1.0f;
  }
  /// `factor` multiplies the value before its cast.
  Element inner(const QuantSpec& spec, float value, float factor) const {
    if (!spec.is_quantized()) {
      return {values_ == DType::f32 ? value : numerics::from_bf16(numerics::to_bf16(value)), 0};
    }
    Element e;
    e.code = numerics::encode(spec.cast(), numerics::float_bits(value * factor));
    e.value = numerics::decode(spec.format, e.code);
    return e;
  }

  void forward_row(const QuantizedOperand& q, const QuantizedOperand& k, const QuantizedOperand& v,
                   const Matrix& starts, std::int64_t b, std::int64_t head, std::int64_t i,
                   Matrix& out, Matrix& lse) const {
    const std::int64_t kv = kv_head(head);
    const bool constant = has_one_scale_per_tile(k.spec, s_.sequence, s_.kv_tile);
    float m = -HUGE_VALF, l = 0.0f;
    std::vector<float> o(static_cast<std::size_t>(s_.head_dim), 0.0f);
    for (std::int64_t tile = 0; tile * s_.kv_tile < s_.sequence; ++tile) {
      const std::int64_t first = tile * s_.kv_tile;
      float f = scale(q, b, head, i);
      if (constant) f *= scale(k, b, kv, first);
      f *= scale_;
      std::vector<float> s;
      float m_new = m;
      bool any = false;
      for (std::int64_t j = first; j < first + s_.kv_tile; ++j) {
        float c = chain(0.0f, token(q, b, head, i), token(k, b, kv, j));
        if (!constant) c *= scale(k, b, kv, j);
        s.push_back(c);
        if (!visible(starts, b, i, j)) continue;
        any = true;
        m_new = std::fmax(m_new, c * f);
      }
      if (!any) continue;
      const float alpha = m == -HUGE_VALF ? 0.0f : weight(m_new - m);
      const float reference = m_new == -HUGE_VALF ? 0.0f : m_new;
      Vector p{p_, {}};
      for (std::int64_t j = first; j < first + s_.kv_tile; ++j) {
        const float d = std::fma(-s[static_cast<std::size_t>(j - first)], f, reference);
        p.elements.push_back(
            inner(p_, visible(starts, b, i, j) ? weight(d) : 0.0f, 1.0f / static_scale(p_)));
      }
      Vector ones{v.spec, {}};
      const Element one{1.0f, numerics::encode(v.spec.format, numerics::float_bits(1.0f))};
      ones.elements.assign(p.elements.size(), one);
      l = add(l * alpha, p, ones, 1.0f);
      for (std::int64_t c = 0; c < s_.head_dim; ++c) {
        float& element = o[static_cast<std::size_t>(c)];
        element =
            add(element * alpha, p, column(v, b, kv, first, s_.kv_tile, c), scale(v, b, kv, first));
      }
      m = m_new;
    }
    const std::int64_t row = b * s_.sequence + i;
    for (std::int64_t c = 0; c < s_.head_dim; ++c) {
      out.set(row, head * s_.head_dim + c,
              static_cast<double>(o[static_cast<std::size_t>(c)] * (1.0f / l)));
    }
    lse.set(head, row, static_cast<double>(m + numerics::log2(l * static_scale(p_))));
  }

  /// P and dS of one tile of queries and one of keys, row by row, and the scale of dS.
  struct Pairs {
    std::vector<Element> p, ds;
    float ds_scale = 1.0f;
    std::uint32_t amax = 0;
  };
  Pairs pairs_of(const QuantizedOperand& q, const QuantizedOperand& k, const QuantizedOperand& v,
                 const QuantizedOperand& dout, const QuantSpec& spec,
                 const std::vector<float>& state, const Matrix& starts, const Matrix& out,
                 const Matrix& lse, std::int64_t b, std::int64_t head, std::int64_t q_tile,
                 std::int64_t kv_tile) const {
    const std::int64_t kv = kv_head(head), first_key = kv_tile * s_.kv_tile;
    Pairs pairs;
    std::vector<float> ds;
    for (std::int64_t i = q_tile * s_.q_tile; i < (q_tile + 1) * s_.q_tile; ++i) {
      float delta = 0.0f;
      if (i < s_.sequence) {
        const float of_row = scale(dout, b, head, i);
        delta = numerics::tree_sum(s_.head_dim, [&](std::int64_t c) {
          const auto o = static_cast<float>(out.at(b * s_.sequence + i, head * s_.head_dim + c));
          return (element(dout, b, head, i, c).value * of_row) * o;
        });
      }
      for (std::int64_t j = first_key; j < first_key + s_.kv_tile; ++j) {
        float p = 0.0f, gradient = 0.0f;
        if (visible(starts, b, i, j)) {
          const float f = (scale(q, b, head, i) * scale(k, b, kv, j)) * scale_;
          const float c = chain(0.0f, token(q, b, head, i), token(k, b, kv, j));
          p = weight(std::fma(-c, f, static_cast<float>(lse.at(head, b * s_.sequence + i))));
          const float dp = chain(0.0f, token(dout, b, head, i), token(v, b, kv, j));
          gradient = p * std::fma(dp, scale(dout, b, head, i) * scale(v, b, kv, j), -delta);
        }
        pairs.p.push_back(inner(p_, p, 1.0f / static_scale(p_)));
        ds.push_back(gradient);
        pairs.amax = std::max(pairs.amax, numerics::float_bits(gradient) & 0x7FFFFFFFu);
      }
    }
    float factor = 1.0f;
    if (spec.scale_source == ScaleSource::static_scale) {
      pairs.ds_scale = spec.static_scale;
      factor = 1.0f / spec.static_scale;
    } else if (spec.scale_source == ScaleSource::delayed) {
      if (state[DelayedState::kScale] != 0.0f) {
        pairs.ds_scale = state[DelayedState::kScale];
        factor = state[DelayedState::kMultiplier];
      }
    } else if (spec.scale_source == ScaleSource::current) {
      const numerics::TileScale scale =
          numerics::tile_scale(spec.scale, spec.format, numerics::bits_float(pairs.amax));
      pairs.ds_scale = scale.decode;
      factor = scale.multiplier;
    }
    for (const float gradient : ds) pairs.ds.push_back(inner(spec, gradient, factor));
    return pairs;
  }

  void add_keys(const Pairs& pairs, const QuantizedOperand& q, const QuantizedOperand& dout,
                const QuantSpec& ds, std::int64_t b, std::int64_t head, std::int64_t q_tile,
                std::vector<float>& dk, std::vector<float>& dv) const {
    const std::int64_t first = q_tile * s_.q_tile, d = s_.head_dim;
    for (std::int64_t j = 0; j < s_.kv_tile; ++j) {
      Vector p{p_, {}}, s{ds, {}};
      for (std::int64_t i = 0; i < s_.q_tile; ++i) {
        p.elements.push_back(pairs.p[static_cast<std::size_t>(i * s_.kv_tile + j)]);
        s.elements.push_back(pairs.ds[static_cast<std::size_t>(i * s_.kv_tile + j)]);
      }
      for (std::int64_t c = 0; c < d; ++c) {
        const auto at = static_cast<std::size_t>(j * d + c);
        dv[at] = add(dv[at], p, column(dout, b, head, first, s_.q_tile, c),
                     static_scale(p_) * scale(dout, b, head, first));
        dk[at] = add(dk[at], s, column(q, b, head, first, s_.q_tile, c),
                     pairs.ds_scale * scale(q, b, head, first));
      }
    }
  }

  void add_queries(const Pairs& pairs, const QuantizedOperand& k, const QuantSpec& ds,
                   std::int64_t b, std::int64_t head, std::int64_t kv_tile,
                   std::vector<float>& dq) const {
    const std::int64_t first = kv_tile * s_.kv_tile, d = s_.head_dim, kv = kv_head(head);
    for (std::int64_t i = 0; i < s_.q_tile; ++i) {
      Vector s{ds, {}};
      for (std::int64_t j = 0; j < s_.kv_tile; ++j) {
        s.elements.push_back(pairs.ds[static_cast<std::size_t>(i * s_.kv_tile + j)]);
      }
      for (std::int64_t c = 0; c < d; ++c) {
        const auto at = static_cast<std::size_t>(i * d + c);
        dq[at] = add(dq[at], s, column(k, b, kv, first, s_.kv_tile, c),
                     pairs.ds_scale * scale(k, b, kv, first));
      }
    }
  }

  AttentionShape s_;
  DType values_;
  QuantSpec p_;
  float root_, scale_;
};

}  // namespace fp8lab::test
