#include "src/bench/device_attention.hpp"

#include "emulation/spec/current_scaling.hpp"
#include "kernels/runtime/operations.hpp"
#include "src/bench/device_bench.hpp"

namespace fp8lab {
namespace {

using Bytes = cuda::DeviceArray<std::byte>;

constexpr AttentionShape kShapes[] = {
    {.batch = 8, .sequence = 2048, .heads = 12, .kv_heads = 2, .head_dim = 128},
    {.batch = 1, .sequence = 16384, .heads = 12, .kv_heads = 2, .head_dim = 128},
    {.batch = 8, .sequence = 2048, .heads = 28, .kv_heads = 4, .head_dim = 128},
    {.batch = 16, .sequence = 2048, .heads = 14, .kv_heads = 2, .head_dim = 64},
    {.batch = 1, .sequence = 16384, .heads = 16, .kv_heads = 16, .head_dim = 128}};

/// Rows of BF16 with bell-shaped values.
class Matrix {
 public:
  Matrix(DeviceBench& device, std::int64_t rows, std::int64_t cols)
      : memory_(static_cast<std::size_t>(rows * cols) * size_of(DType::bf16)),
        view_{memory_.data(), DType::bf16, rows, cols, cols} {
    device.fill(memory_.data(), memory_.size());
  }
  const TensorView& view() const { return view_; }
  /// Returns `count` heads from `first` on.
  TensorView heads(const AttentionShape& shape, std::int64_t first, std::int64_t count) const {
    return view_.columns(first * shape.head_dim, count * shape.head_dim);
  }

 private:
  Bytes memory_;
  TensorView view_;
};

/// Codes and scales of a tensor in E4M3.
class Codes {
 public:
  Codes(const TensorView& source, TileShape tile)
      : operand_{quantized(numerics::kE4M3, tile), source.rows, source.cols, {}, {}},
        codes_(static_cast<std::size_t>(source.rows * source.cols)),
        scales_(static_cast<std::size_t>(operand_.spec.tile_rows(source.rows) *
                                         operand_.spec.scale_cols(source.cols)) *
                size_of(DType::f32)) {
    const std::int64_t across = operand_.spec.scale_cols(source.cols);
    operand_.codes = {codes_.data(), DType::u8, source.rows, source.cols, source.cols};
    operand_.scales = {scales_.data(), DType::f32, operand_.spec.tile_rows(source.rows), across,
                       across};
  }
  const QuantizedOperand& operand() const { return operand_; }

 private:
  QuantizedOperand operand_;
  Bytes codes_, scales_;
};

/// The tensors of one shape.
class Bench {
 public:
  Bench(DeviceBench& device, const AttentionShape& shape)
      : device_(device),
        shape_(shape),
        qkv_(device, tokens(), (shape.heads + 2 * shape.kv_heads) * shape.head_dim),
        dqkv_(device, tokens(), qkv_.view().cols),
        out_(device, tokens(), shape.heads * shape.head_dim),
        dout_(device, tokens(), out_.view().cols),
        lse_(static_cast<std::size_t>(shape.heads * tokens()) * size_of(DType::f32)),
        starts_(static_cast<std::size_t>(tokens()) * size_of(DType::i32)) {
    cuda::check(cudaMemsetAsync(starts_.data(), 0, starts_.size(), device.context().stream()),
                "cudaMemsetAsync");
  }

  std::vector<DeviceAttentionRow> measure(int repeats) {
    const std::int64_t heads = shape_.heads, kv_heads = shape_.kv_heads;
    const TensorView lse{lse_.data(), DType::f32, heads, tokens(), tokens()};
    const TensorView starts{starts_.data(), DType::i32, 1, tokens(), tokens()};
    const ops::AttentionForward forward{.shape = shape_,
                                        .q = qkv_.heads(shape_, 0, heads),
                                        .k = qkv_.heads(shape_, heads, kv_heads),
                                        .v = qkv_.heads(shape_, heads + kv_heads, kv_heads),
                                        .document_start = starts,
                                        .out = out_.view(),
                                        .lse = lse};
    const ops::AttentionBackward backward{.shape = shape_,
                                          .q = forward.q,
                                          .k = forward.k,
                                          .v = forward.v,
                                          .document_start = starts,
                                          .out = forward.out,
                                          .lse = lse,
                                          .dout = dout_.view(),
                                          .dq = dqkv_.heads(shape_, 0, heads),
                                          .dk = dqkv_.heads(shape_, heads, kv_heads),
                                          .dv = dqkv_.heads(shape_, heads + kv_heads, kv_heads)};
    const double pairs = shape_.visible_pairs();
    std::vector<DeviceAttentionRow> rows = {measure("forward", forward, 2 * pairs, repeats),
                                            measure("backward", backward, 5 * pairs, repeats)};
    rows.push_back(
        measure_fp8("forward, E4M3 blocks", forward, {shape_.kv_tile, shape_.head_dim}, repeats));
    rows.push_back(measure_fp8("forward, E4M3 tensors", forward, {0, 0}, repeats));
    for (const std::int64_t tokens : {shape_.sequence, std::int64_t{256}, std::int64_t{1}}) {
      rows.push_back(measure_cached(forward, tokens, repeats));
    }
    return rows;
  }

 private:
  std::int64_t tokens() const { return shape_.batch * shape_.sequence; }

  /// Measures the forward pass on q, k and v in E4M3 with scales of `tile`, P in E4M3 too. The
  /// quantization is not measured.
  DeviceAttentionRow measure_fp8(const std::string& pass, const ops::AttentionForward& forward,
                                 TileShape tile, int repeats) {
    const Codes q(forward.q, tile), k(forward.k, tile), v(forward.v, tile);
    QuantSpec weights = quantized(numerics::kE4M3, {0, 0});
    weights.scale_source = ScaleSource::static_scale;
    weights.static_scale = 0x1p-8f;
    const auto quantize = [&](const TensorView& source, const Codes& codes) {
      cuda::run(device_.context(), ops::Quantize{.source = source, .operand = codes.operand()});
    };
    quantize(forward.q, q);
    quantize(forward.k, k);
    quantize(forward.v, v);
    const ops::QuantizedAttentionForward op{.shape = shape_,
                                            .q = q.operand(),
                                            .k = k.operand(),
                                            .v = v.operand(),
                                            .p = weights,
                                            .document_start = forward.document_start,
                                            .out = forward.out,
                                            .lse = forward.lse};
    return measure(pass, op, 2 * shape_.visible_pairs(), repeats);
  }

  /// Measures the last `count` tokens of each sequence against a cache of the preceding ones.
  DeviceAttentionRow measure_cached(const ops::AttentionForward& forward, std::int64_t count,
                                    int repeats) {
    const std::int64_t batch = shape_.batch, held = shape_.sequence - count;
    std::vector<std::int32_t> counts;
    for (std::int64_t b = 0; b <= batch; ++b)
      counts.push_back(static_cast<std::int32_t>(b * count));
    counts.resize(static_cast<std::size_t>(2 * batch + 1), static_cast<std::int32_t>(held));
    const Bytes memory(counts.size() * sizeof counts[0]);
    cuda::check(cudaMemcpy(memory.data(), counts.data(), memory.size(), cudaMemcpyHostToDevice),
                "cudaMemcpy");
    const TensorView all{memory.data(), DType::i32, 1, 2 * batch + 1, 2 * batch + 1};
    const auto rows = [&](const TensorView& view) { return view.row_range(0, batch * count); };
    const Matrix keys(device_, tokens(), forward.k.cols), values(device_, tokens(), forward.v.cols);
    const ops::AttentionCached op{.shape = shape_,
                                  .q = rows(forward.q),
                                  .k = rows(forward.k),
                                  .v = rows(forward.v),
                                  .query_start = all.columns(0, batch + 1),
                                  .cached = all.columns(batch + 1, batch),
                                  .k_cache = keys.view(),
                                  .v_cache = values.view(),
                                  .out = rows(forward.out)};
    const double pairs = static_cast<double>(batch * count) *
                         (static_cast<double>(held) + 0.5 * static_cast<double>(count + 1));
    return measure("cached, " + std::to_string(count) + " new", op, 2 * pairs, repeats);
  }

  /// Measures a pass. Its work is `pairs` of queries and keys for each head.
  template <class Operation>
  DeviceAttentionRow measure(const std::string& pass, const Operation& op, double pairs,
                             int repeats) {
    std::vector<double> seconds;
    for (int i = -kBenchWarmUps; i < repeats; ++i) {
      const double time = device_.seconds_of([&] { cuda::run(device_.context(), op); });
      if (i >= 0) seconds.push_back(time);
    }
    const double middle = median(seconds);
    return {shape_, pass, middle, 2e-12 * shape_.work(pairs) / middle};
  }

  DeviceBench& device_;
  AttentionShape shape_;
  Matrix qkv_, dqkv_, out_, dout_;
  Bytes lse_, starts_;
};

}  // namespace

DeviceAttentionBench bench_device_attention(int repeats) {
  DeviceBench device;
  DeviceAttentionBench result{device.context().description(), {}};
  for (const AttentionShape& shape : kShapes) {
    for (DeviceAttentionRow& row : Bench(device, shape).measure(repeats)) {
      result.rows.push_back(std::move(row));
    }
  }
  return result;
}

}  // namespace fp8lab
