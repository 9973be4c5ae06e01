#include "src/bench/device_attention.hpp"

#include "kernels/runtime/operations.hpp"
#include "src/bench/device_bench.hpp"

namespace fp8lab {
namespace {

using Bytes = cuda::DeviceArray<std::byte>;

constexpr AttentionShape kShapes[] = {
    {.batch = 8, .sequence = 2048, .heads = 12, .kv_heads = 2, .head_dim = 128},
    {.batch = 1, .sequence = 16384, .heads = 12, .kv_heads = 2, .head_dim = 128},
    {.batch = 8, .sequence = 2048, .heads = 28, .kv_heads = 4, .head_dim = 128},
    {.batch = 16, .sequence = 2048, .heads = 14, .kv_heads = 2, .head_dim = 64}};

/// Rows of BF16 with bell-shaped values.
class Matrix {
 public:
  Matrix(DeviceBench& device, std::int64_t rows, std::int64_t cols)
      : memory_(static_cast<std::size_t>(rows * cols) * size_of(DType::bf16)),
        view_{memory_.data(), DType::bf16, rows, cols, cols} {
    device.fill(memory_.data(), memory_.size());
  }
  const TensorView& view() const { return view_; }
  /// `count` heads from `first` on.
  TensorView heads(const AttentionShape& shape, std::int64_t first, std::int64_t count) const {
    return view_.columns(first * shape.head_dim, count * shape.head_dim);
  }

 private:
  Bytes memory_;
  TensorView view_;
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
    const ops::AttentionForward forward{shape_,
                                        qkv_.heads(shape_, 0, heads),
                                        qkv_.heads(shape_, heads, kv_heads),
                                        qkv_.heads(shape_, heads + kv_heads, kv_heads),
                                        starts,
                                        out_.view(),
                                        lse};
    const ops::AttentionBackward backward{shape_,
                                          forward.q,
                                          forward.k,
                                          forward.v,
                                          starts,
                                          forward.out,
                                          lse,
                                          dout_.view(),
                                          dqkv_.heads(shape_, 0, heads),
                                          dqkv_.heads(shape_, heads, kv_heads),
                                          dqkv_.heads(shape_, heads + kv_heads, kv_heads)};
    return {measure("forward", forward, 2, repeats), measure("backward", backward, 5, repeats)};
  }

 private:
  std::int64_t tokens() const { return shape_.batch * shape_.sequence; }

  /// `products` of all visible pairs are the work of the pass.
  template <class Operation>
  DeviceAttentionRow measure(const char* pass, const Operation& op, int products, int repeats) {
    std::vector<double> seconds;
    for (int i = -kBenchWarmUps; i < repeats; ++i) {
      const double time = device_.seconds_of([&] { cuda::run(device_.context(), op); });
      if (i >= 0) seconds.push_back(time);
    }
    const double middle = median(seconds);
    return {shape_, pass, middle, 2e-12 * products * op.work() / middle};
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
