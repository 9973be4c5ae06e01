// Calls of the model and optimizer operations.
#include <cstring>

#include <fmt/format.h>

#include "src/validate/kernel_data.hpp"
#include "src/validate/kernels.hpp"

namespace fp8lab {
namespace {

using Views = std::vector<TensorView>;

/// Draws the calls of one round.
class ModelCalls {
 public:
  ModelCalls(std::uint64_t seed, int round) : data_(seed), round_(round) {}

  std::vector<KernelCall> draw() {
    for (const DType dtype : {DType::bf16, DType::f32}) {
      pointwise(dtype);
      normalisation(dtype);
      embedding(dtype);
      rotary(dtype);
      attention(dtype);
      attention_cached(dtype);
      loss(dtype);
      optimizer(dtype);
    }
    return std::move(calls_);
  }

 private:
  MatrixShape shape() { return matrix_shape(data_, round_); }
  bool specials() { return data_.word() % 2 == 0; }
  template <class Run>
  void add(const std::string& kernel, const MatrixShape& shape, DType dtype,
           std::vector<HostTensor> tensors, Run run) {
    calls_.push_back(
        {kernel, fmt::format("{} {}", name_of(dtype), describe(shape)), std::move(tensors), run});
  }

  void pointwise(DType dtype) {
    const MatrixShape s = shape();
    const bool wild = specials();
    const auto input = [&] { return data_.values(dtype, s.rows, s.cols, wild); };
    add("add", s, dtype, {input(), input(), data_.output(dtype, s.rows, s.cols)},
        [](Backend& b, const Views& t) {
          b.run(ops::Add{t[0], t[1], t[2]});
        });
    const DType other = dtype == DType::bf16 ? DType::f32 : DType::bf16;
    add("copy", s, dtype, {input(), data_.output(other, s.rows, s.cols)},
        [](Backend& b, const Views& t) {
          b.run(ops::Copy{t[0], t[1]});
        });
    const auto wide = [&] { return data_.values(dtype, s.rows, 2 * s.cols, wild); };
    add("swiglu_forward", s, dtype, {wide(), data_.output(dtype, s.rows, s.cols)},
        [](Backend& b, const Views& t) {
          b.run(ops::SwigluForward{t[0], t[1]});
        });
    add("swiglu_backward", s, dtype, {wide(), input(), data_.output(dtype, s.rows, 2 * s.cols)},
        [](Backend& b, const Views& t) {
          b.run(ops::SwigluBackward{t[0], t[1], t[2]});
        });
    const auto result = [&] { return data_.output(dtype, s.rows, s.cols); };
    add("gelu_forward", s, dtype, {input(), result()}, [](Backend& b, const Views& t) {
      b.run(ops::GeluForward{t[0], t[1]});
    });
    add("gelu_backward", s, dtype, {input(), input(), result()}, [](Backend& b, const Views& t) {
      b.run(ops::GeluBackward{t[0], t[1], t[2]});
    });
    add("bias_backward", s, dtype, {input(), flat(data_.output(DType::f32, 1, s.cols))},
        [](Backend& b, const Views& t) {
          b.run(ops::BiasBackward{t[0], t[1]});
        });
    HostTensor sum = flat(data_.output(DType::u8, 1, sizeof(std::uint64_t)));
    const std::uint64_t first = data_.word();
    add("hash_tensor", s, dtype, {input(), sum}, [first](Backend& b, const Views& t) {
      b.run(ops::HashTensor{t[0], numerics::HashedPart::weights, first, t[1]});
    });
    add("argmax", s, dtype, {input(), flat(data_.output(DType::i32, 1, s.rows))},
        [](Backend& b, const Views& t) {
          b.run(ops::Argmax{t[0], t[1]});
        });
  }

  void normalisation(DType dtype) {
    const MatrixShape s = shape();
    const bool wild = specials();
    const auto input = [&] { return data_.values(dtype, s.rows, s.cols, wild); };
    const auto weight = [&] { return flat(data_.ordinary(dtype, 1, s.cols)); };
    add("rmsnorm_forward", s, dtype,
        {input(), weight(), data_.output(dtype, s.rows, s.cols),
         flat(data_.output(DType::f32, 1, s.rows))},
        [](Backend& b, const Views& t) {
          b.run(ops::RmsNormForward{t[0], t[1], 1e-6f, t[2], t[3]});
        });
    add("rmsnorm_backward", s, dtype,
        {input(), input(), weight(), flat(data_.ordinary(DType::f32, 1, s.rows)),
         data_.output(dtype, s.rows, s.cols), flat(data_.output(DType::f32, 1, s.cols))},
        [](Backend& b, const Views& t) {
          b.run(ops::RmsNormBackward{t[0], t[1], t[2], t[3], t[4], t[5]});
        });
    layer_norm(dtype, s, wild);
    norm_of_heads(dtype, s.rows);
  }

  void layer_norm(DType dtype, const MatrixShape& s, bool wild) {
    const auto input = [&] { return data_.values(dtype, s.rows, s.cols, wild); };
    const auto output = [&] { return data_.output(dtype, s.rows, s.cols); };
    const auto parameter = [&] { return flat(data_.ordinary(dtype, 1, s.cols)); };
    const auto moment = [&] { return flat(data_.output(DType::f32, 1, s.rows)); };
    const auto given = [&] { return flat(data_.ordinary(DType::f32, 1, s.rows)); };
    const auto sum = [&] { return flat(data_.output(DType::f32, 1, s.cols)); };
    add("layernorm_forward", s, dtype,
        {input(), parameter(), parameter(), output(), moment(), moment()},
        [](Backend& b, const Views& t) {
          b.run(ops::LayerNormForward{t[0], t[1], t[2], 1e-5f, t[3], t[4], t[5]});
        });
    add("layernorm_backward", s, dtype,
        {input(), input(), parameter(), given(), given(), output(), sum(), sum()},
        [](Backend& b, const Views& t) {
          b.run(ops::LayerNormBackward{t[0], t[1], t[2], t[3], t[4], t[5], t[6], t[7]});
        });
  }

  /// The norm of heads in columns of a wider matrix, as those of queries and keys.
  void norm_of_heads(DType dtype, std::int64_t rows) {
    const std::int64_t dim = 2 * data_.integer(1, 64), heads = data_.integer(2, 5);
    const std::int64_t first = dim * data_.integer(0, 2);
    const MatrixShape s{rows, heads * dim};
    const bool wild = specials();
    const auto wide = [&] { return data_.values(dtype, rows, first + heads * dim, wild); };
    const auto weight = [&] { return flat(data_.ordinary(dtype, 1, dim)); };
    const auto part = [=](const TensorView& view) { return view.columns(first, heads * dim); };
    add("rmsnorm_forward", s, dtype,
        {wide(), weight(), data_.output(dtype, rows, heads * dim),
         flat(data_.output(DType::f32, 1, rows * heads))},
        [part](Backend& b, const Views& t) {
          b.run(ops::RmsNormForward{part(t[0]), t[1], 1e-6f, t[2], t[3]});
        });
    HostTensor dy = wide();
    dy.output = true;
    add("rmsnorm_backward", s, dtype,
        {dy, wide(), weight(), flat(data_.ordinary(DType::f32, 1, rows * heads)),
         flat(data_.output(DType::f32, 1, dim))},
        [part](Backend& b, const Views& t) {
          b.run(ops::RmsNormBackward{part(t[0]), part(t[1]), t[2], t[3], part(t[0]), t[4]});
        });
  }

  void embedding(DType dtype) {
    const MatrixShape s = shape();
    const std::int64_t vocabulary = data_.integer(1, 300);
    const auto tokens = [&] { return data_.integers(s.rows, 0, vocabulary - 1); };
    add("embedding_forward", s, dtype,
        {tokens(), data_.values(dtype, vocabulary, s.cols, true),
         data_.output(dtype, s.rows, s.cols)},
        [](Backend& b, const Views& t) {
          b.run(ops::EmbeddingForward{t[0], t[1], t[2]});
        });
    add("embedding_backward", s, dtype,
        {tokens(), data_.values(dtype, s.rows, s.cols, false),
         data_.output(DType::f32, vocabulary, s.cols)},
        [](Backend& b, const Views& t) {
          b.run(ops::EmbeddingBackward{t[0], t[1], t[2]});
        });
  }

  void rotary(DType dtype) {
    const MatrixShape s = shape();
    const std::int64_t head_dim = 2 * data_.integer(1, 64), heads = data_.integer(1, 5);
    const std::int64_t positions = data_.integer(1, 200);
    for (const bool inverse : {false, true}) {
      HostTensor x = data_.values(dtype, s.rows, heads * head_dim, true);
      x.output = true;
      add("rope", {s.rows, heads * head_dim}, dtype,
          {x, data_.integers(s.rows, 0, positions - 1),
           data_.ordinary(DType::f32, positions, head_dim / 2),
           data_.ordinary(DType::f32, positions, head_dim / 2)},
          [head_dim, inverse](Backend& b, const Views& t) {
            b.run(ops::Rope{t[0], t[1], t[2], t[3], head_dim, inverse});
          });
    }
  }

  AttentionShape attention_shape() {
    AttentionShape a;
    const bool large = round_ % 4 == 3;
    a.batch = data_.integer(1, large ? 4 : 2);
    a.sequence = round_ % 4 == 0 ? data_.integer(1, 20) : data_.integer(30, large ? 600 : 200);
    a.kv_heads = data_.integer(1, 2);
    a.heads = a.kv_heads * data_.integer(1, 3);
    constexpr std::int64_t kDims[] = {16, 32, 64, 80, 128, 20};
    a.head_dim = kDims[data_.word() % 6];
    a.kv_tile = 16 * data_.integer(1, 8);
    a.q_tile = 16 * data_.integer(1, 8);
    return a;
  }

  /// Documents of random lengths in every sequence.
  HostTensor documents(const AttentionShape& a) {
    HostTensor starts = data_.integers(a.batch * a.sequence, 0, 0);
    auto* start = reinterpret_cast<std::int32_t*>(starts.data.data());
    for (std::int64_t t = 0; t < a.batch * a.sequence; ++t) {
      const auto position = static_cast<std::int32_t>(t % a.sequence);
      const bool begins = position == 0 || data_.word() % 40 == 0;
      start[t] = begins ? position : start[t - 1];
    }
    return starts;
  }

  void attention(DType dtype) {
    const AttentionShape a = attention_shape();
    const std::int64_t tokens = a.batch * a.sequence;
    const std::int64_t q_cols = a.heads * a.head_dim, kv_cols = a.kv_heads * a.head_dim;
    const float size = data_.word() % 2 == 0 ? 1.0f : 6.0f;
    const auto queries = [&] { return data_.ordinary(dtype, tokens, q_cols, size); };
    const auto keys = [&] { return data_.ordinary(dtype, tokens, kv_cols, size); };
    const auto forward = [a](Backend& b, const Views& t) {
      b.run(ops::AttentionForward{a, t[0], t[1], t[2], t[3], t[4], t[5]});
    };
    const std::string what =
        fmt::format("{} batch {} sequence {} heads {}/{} dim {} tiles {}/{}", name_of(dtype),
                    a.batch, a.sequence, a.heads, a.kv_heads, a.head_dim, a.kv_tile, a.q_tile);
    HostTensor q = queries(), k = keys(), v = keys(), starts = documents(a);
    calls_.push_back({"attention_forward",
                      what,
                      {q, k, v, starts, data_.output(dtype, tokens, q_cols),
                       data_.output(DType::f32, a.heads, tokens)},
                      forward});
    calls_.push_back(
        {"attention_backward",
         what,
         {q, k, v, starts, data_.output(dtype, tokens, q_cols),
          data_.output(DType::f32, a.heads, tokens), queries(), data_.output(dtype, tokens, q_cols),
          data_.output(dtype, tokens, kv_cols), data_.output(dtype, tokens, kv_cols)},
         [a, forward](Backend& b, const Views& t) {
           forward(b, t);
           b.run(ops::AttentionBackward{a, t[0], t[1], t[2], t[3], t[4], t[5], t[6], t[7], t[8],
                                        t[9]});
         }});
  }

  /// Sequences with any number of tokens in the cache, to which come one, many or none.
  void attention_cached(DType dtype) {
    const AttentionShape a = attention_shape();
    HostTensor start = data_.integers(a.batch + 1, 0, 0), cached = data_.integers(a.batch, 0, 0);
    auto* first = reinterpret_cast<std::int32_t*>(start.data.data());
    auto* held = reinterpret_cast<std::int32_t*>(cached.data.data());
    for (std::int64_t b = 0; b < a.batch; ++b) {
      const bool one = data_.word() % 2 == 0;
      const std::int64_t count = one ? 1 : data_.integer(b == 0 ? 1 : 0, a.sequence);
      first[b + 1] = first[b] + static_cast<std::int32_t>(count);
      held[b] = static_cast<std::int32_t>(data_.integer(0, a.sequence - count));
    }
    const std::int64_t tokens = first[a.batch];
    const std::int64_t q_cols = a.heads * a.head_dim, kv_cols = a.kv_heads * a.head_dim;
    const auto cache = [&] {
      HostTensor values = data_.ordinary(dtype, a.batch * a.sequence, kv_cols);
      values.output = true;
      return values;
    };
    calls_.push_back(
        {"attention_cached",
         fmt::format("{} batch {} capacity {} tokens {} heads {}/{} dim {} kv_tile {}",
                     name_of(dtype), a.batch, a.sequence, tokens, a.heads, a.kv_heads, a.head_dim,
                     a.kv_tile),
         {data_.ordinary(dtype, tokens, q_cols), data_.ordinary(dtype, tokens, kv_cols),
          data_.ordinary(dtype, tokens, kv_cols), start, cached, cache(), cache(),
          data_.output(dtype, tokens, q_cols)},
         [a](Backend& b, const Views& t) {
           b.run(ops::AttentionCached{a, t[0], t[1], t[2], t[3], t[4], t[5], t[6], t[7]});
         }});
  }

  HostTensor scalars() {
    HostTensor tensor = flat(data_.ordinary(DType::f32, 1, StepScalar::kCount));
    tensor.output = true;
    auto* value = reinterpret_cast<float*>(tensor.data.data());
    for (std::int64_t i = 0; i < StepScalar::kCount; ++i) {
      value[i] = numerics::bits_float(numerics::float_bits(value[i]) & 0x7FFFFFFFu);
    }
    value[StepScalar::kBeta1Power] = value[StepScalar::kBeta2Power] = 0.5f;
    return tensor;
  }

  void loss(DType dtype) {
    const MatrixShape s = shape();
    HostTensor weights = flat(data_.ordinary(DType::f32, 1, s.rows));
    auto* weight = reinterpret_cast<float*>(weights.data.data());
    for (std::int64_t t = 0; t < s.rows; ++t) weight[t] = weight[t] > 0.0f ? 1.0f : 0.0f;
    add("cross_entropy", s, dtype,
        {data_.values(dtype, s.rows, s.cols, specials()), data_.integers(s.rows, 0, s.cols - 1),
         weights, scalars(), flat(data_.output(DType::f32, 1, s.rows)),
         data_.output(dtype, s.rows, s.cols)},
        [](Backend& b, const Views& t) {
          b.run(ops::CrossEntropy{t[0], t[1], t[2], t[3], t[4], t[5]});
        });
  }

  void optimizer(DType moments) {
    const MatrixShape s = shape();
    const auto output = [&](DType dtype) { return flat(data_.output(dtype, s.rows, s.cols)); };
    add("accumulate_square_sum", s, DType::f32,
        {flat(data_.ordinary(DType::f32, s.rows, s.cols)), scalars()},
        [](Backend& b, const Views& t) {
          b.run(ops::AccumulateSquareSum{t[0], t[1]});
        });
    add("begin_update", {1, StepScalar::kCount}, DType::f32, {scalars()},
        [](Backend& b, const Views& t) {
          b.run(ops::BeginUpdate{AdamWSpec{}, t[0]});
        });
    HostTensor second = output(moments);
    add("adamw", s, moments,
        {scalars(), output(DType::f32), output(DType::bf16),
         flat(data_.values(DType::f32, s.rows, s.cols, false)), output(moments), second},
        [](Backend& b, const Views& t) {
          b.run(ops::AdamW{AdamWSpec{}, t[0], 1.0f, {t[1], t[2], t[3], t[4], t[5]}});
        });
  }

  KernelData data_;
  int round_;
  std::vector<KernelCall> calls_;
};

}  // namespace

std::vector<KernelCall> model_calls(std::uint64_t seed, int round) {
  return ModelCalls(seed, round).draw();
}

}  // namespace fp8lab
