// Cases of attention and of rotary positions.
#include <fmt/format.h>

#include <algorithm>

#include "emulation/cases/attention_draw.hpp"
#include "emulation/cases/list.hpp"

namespace fp8lab {
AttentionShape draw_attention_shape(CaseDraw& draw) {
  AttentionShape a;
  const bool small = draw.round() % 4 == 0, large = draw.round() % 4 == 3;
  a.batch = draw.integer(1, large ? 4 : 2);
  a.sequence = small ? draw.integer(1, 20) : draw.integer(30, large ? 600 : 200);
  a.kv_heads = draw.integer(1, 2);
  a.heads = a.kv_heads * draw.integer(1, 3);
  constexpr std::int64_t kDims[] = {16, 32, 64, 80, 128, 20};
  const bool as_in_models = draw.one_in(2);  // the shapes that kernels are specialised for
  a.head_dim = as_in_models ? 64 * draw.integer(1, 2) : kDims[draw.word() % 6];
  a.kv_tile = as_in_models || draw.one_in(2) ? a.kv_tile : 16 * draw.integer(1, 8);
  a.q_tile = 16 * draw.integer(1, 8);
  if (draw.one_in(3)) a.window = draw.integer(1, a.sequence + 10);
  return a;
}

AttentionShape draw_model_attention_shape(CaseDraw& draw) {
  AttentionShape a;
  a.batch = 1;
  a.sequence = draw.integer(160, 256);
  a.kv_heads = 1;
  a.heads = draw.integer(1, 2);
  a.head_dim = 64 * draw.integer(1, 2);
  if (draw.one_in(3)) a.window = draw.integer(64, 192);
  if (draw.one_in(4)) a.softmax_scale = 0.125f;
  return a;
}

HostTensor draw_documents(CaseDraw& draw, const AttentionShape& a, std::uint32_t length) {
  HostTensor starts = draw.integers(a.batch * a.sequence, 0, 0);
  auto* start = reinterpret_cast<std::int32_t*>(starts.data.data());
  for (std::int64_t t = 0; t < a.batch * a.sequence; ++t) {
    const auto position = static_cast<std::int32_t>(t % a.sequence);
    const bool begins = position == 0 || draw.one_in(length);
    start[t] = begins ? position : start[t - 1];
  }
  return starts;
}

namespace {

/// With queries and keys of this size the scores of a tile are mostly 2^126 to 2^200 apart: beyond
/// the range of numerics::normal_attention_weight, and just inside it.
constexpr float kWide = 4.5f;
/// With this size scores exceed numerics::kNearReference.
constexpr float kFar = 6000.0f;

constexpr std::uint32_t kShort = 40, kLong = 4000;

void repeat_first_row(HostTensor& tensor) {
  const std::size_t bytes = tensor.data.size() / static_cast<std::size_t>(tensor.rows);
  for (std::size_t at = bytes; at < tensor.data.size(); at += bytes) {
    std::copy_n(tensor.data.begin(), bytes, tensor.data.begin() + static_cast<std::ptrdiff_t>(at));
  }
}

/// A forward pass and its tensors: q, k, v, document starts, out, lse.
struct Forward {
  AttentionShape shape;
  DType dtype;
  float size;
  std::uint32_t document_length;
  std::int64_t tokens, q_cols, kv_cols;
  bool has_one_key = false;  ///< all keys are equal: all scores of a query are equal

  Forward(const AttentionShape& drawn, DType drawn_dtype, float drawn_size, std::uint32_t length)
      : shape(drawn),
        dtype(drawn_dtype),
        size(drawn_size),
        document_length(length),
        tokens(shape.batch * shape.sequence),
        q_cols(shape.heads * shape.head_dim),
        kv_cols(shape.kv_heads * shape.head_dim) {}

  std::vector<HostTensor> draw_tensors(CaseDraw& draw) const {
    HostTensor keys = draw.ordinary(dtype, tokens, kv_cols, size);
    if (has_one_key) repeat_first_row(keys);
    return {
        draw.ordinary(dtype, tokens, q_cols, size),  std::move(keys),
        draw.ordinary(dtype, tokens, kv_cols, size), draw_documents(draw, shape, document_length),
        draw.output(dtype, tokens, q_cols),          draw.output(DType::f32, shape.heads, tokens)};
  }
  std::string what() const {
    return fmt::format(
        "{} batch {} sequence {} heads {}/{} dim {} tiles {}/{} window {} softmax scale {}",
        name_of(dtype), shape.batch, shape.sequence, shape.heads, shape.kv_heads, shape.head_dim,
        shape.kv_tile, shape.q_tile, shape.window, shape.softmax_scale);
  }
  void run(Backend& b, const Views& t) const {
    b.run(ops::AttentionForward{.shape = shape,
                                .q = t[0],
                                .k = t[1],
                                .v = t[2],
                                .document_start = t[3],
                                .out = t[4],
                                .lse = t[5]});
  }
};

/// Draws one pass of each type, and two that always have tiles without masked keys, for which
/// kernels have a separate path: one with scores far apart, one with equal scores far from zero.
std::vector<Forward> draw_forward_passes(CaseDraw& draw) {
  std::vector<Forward> passes;
  for (const DType dtype : kActivationTypes) {
    const AttentionShape shape = draw_attention_shape(draw);
    const float size = draw.one_in(2) ? 1.0f : draw.one_in(2) ? kWide : 12.0f;
    passes.emplace_back(shape, dtype, size, draw.one_in(2) ? kShort : kLong);
  }
  passes.emplace_back(draw_model_attention_shape(draw), DType::bf16, kWide, kLong);
  passes.emplace_back(draw_model_attention_shape(draw), DType::bf16, kFar, kLong);
  passes.back().has_one_key = true;
  return passes;
}

}  // namespace

template <>
void draw_cases<ops::AttentionForward>(CaseDraw& draw) {
  for (const Forward& forward : draw_forward_passes(draw)) {
    draw.add("attention_forward", forward.what(), forward.draw_tensors(draw),
             [forward](Backend& b, const Views& t) { forward.run(b, t); });
  }
}

template <>
void draw_cases<ops::AttentionBackward>(CaseDraw& draw) {
  for (const Forward& forward : draw_forward_passes(draw)) {
    const DType dtype = forward.dtype;
    const std::int64_t tokens = forward.tokens, q_cols = forward.q_cols;
    std::vector<HostTensor> tensors = forward.draw_tensors(draw);
    tensors.push_back(draw.ordinary(dtype, tokens, q_cols, forward.size));
    tensors.push_back(draw.output(dtype, tokens, q_cols));
    tensors.push_back(draw.output(dtype, tokens, forward.kv_cols));
    tensors.push_back(draw.output(dtype, tokens, forward.kv_cols));
    draw.add("attention_backward", forward.what(), std::move(tensors),
             [forward](Backend& b, const Views& t) {
               forward.run(b, t);
               b.run(ops::AttentionBackward{.shape = forward.shape,
                                            .q = t[0],
                                            .k = t[1],
                                            .v = t[2],
                                            .document_start = t[3],
                                            .out = t[4],
                                            .lse = t[5],
                                            .dout = t[6],
                                            .dq = t[7],
                                            .dk = t[8],
                                            .dv = t[9]});
             });
  }
}

template <>
void draw_cases<ops::AttentionCached>(CaseDraw& draw) {
  const auto add = [&](const AttentionShape& a, DType dtype) {
    const Arrivals arrivals(draw, a);
    const std::int64_t q_cols = a.heads * a.head_dim, kv_cols = a.kv_heads * a.head_dim;
    const auto arriving = [&](std::int64_t cols) {
      return draw.ordinary(dtype, arrivals.tokens, cols);
    };
    const auto cache = [&] {
      HostTensor rows = draw.ordinary(dtype, a.batch * a.sequence, kv_cols);
      arrivals.spoil(rows);
      return updated(std::move(rows));
    };
    draw.add(
        "attention_cached",
        fmt::format("{} batch {} capacity {} tokens {} heads {}/{} dim {} kv_tile {} window {}",
                    name_of(dtype), a.batch, a.sequence, arrivals.tokens, a.heads, a.kv_heads,
                    a.head_dim, a.kv_tile, a.window),
        {arriving(q_cols), arriving(kv_cols), arriving(kv_cols), arrivals.start, arrivals.cached,
         cache(), cache(), draw.output(dtype, arrivals.tokens, q_cols)},
        [a](Backend& b, const Views& t) {
          b.run(ops::AttentionCached{.shape = a,
                                     .q = t[0],
                                     .k = t[1],
                                     .v = t[2],
                                     .query_start = t[3],
                                     .cached = t[4],
                                     .k_cache = t[5],
                                     .v_cache = t[6],
                                     .out = t[7]});
        });
  };
  for (const DType dtype : kActivationTypes) add(draw_attention_shape(draw), dtype);
  AttentionShape shape = draw_model_attention_shape(draw);
  shape.batch = draw.integer(1, 3);
  add(shape, DType::bf16);
}

template <>
void draw_cases<ops::Rope>(CaseDraw& draw) {
  for (const DType dtype : kActivationTypes) {
    const MatrixShape s = draw.shape();
    const std::int64_t head_dim = 2 * draw.integer(1, 64), heads = draw.integer(1, 5);
    const std::int64_t positions = draw.integer(1, 200);
    for (const bool inverse : {false, true}) {
      draw.add("rope", dtype, MatrixShape{s.rows, heads * head_dim},
               {updated(draw.values(dtype, s.rows, heads * head_dim, true)),
                draw.integers(s.rows, 0, positions - 1),
                draw.ordinary(DType::f32, positions, head_dim / 2),
                draw.ordinary(DType::f32, positions, head_dim / 2)},
               [head_dim, inverse](Backend& b, const Views& t) {
                 b.run(ops::Rope{.x = t[0],
                                 .positions = t[1],
                                 .cosine = t[2],
                                 .sine = t[3],
                                 .head_dim = head_dim,
                                 .inverse = inverse});
               });
    }
  }
}

}  // namespace fp8lab
