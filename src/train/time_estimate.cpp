#include "src/train/time_estimate.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "src/model/parameters.hpp"
#include "src/model/transformer.hpp"

namespace fp8lab {
namespace {

constexpr double kLongEnough = 0.02;                      // seconds of one call
constexpr std::int64_t kSmallest = 128, kLargest = 4096;  // extents

/// One call of an operation and the work it does.
struct Timed {
  double work = 0;
  std::function<void()> call;
};

double seconds_of(Backend& backend, const Timed& timed) {
  timed.call();
  backend.synchronize();
  const auto began = std::chrono::steady_clock::now();
  double seconds = 0;
  int calls = 0;
  while (seconds < kLongEnough) {
    timed.call();
    backend.synchronize();
    ++calls;
    seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
  }
  return seconds / calls;
}

/// An extent of the step's, as one of `size` at most.
std::int64_t capped(std::int64_t extent, std::int64_t size) { return std::min(extent, size); }

/// Work a second of the largest call that was timed; make(size) allocates for extents of at most
/// `size`, from kSmallest doubling up to `largest`.
template <class Make>
double rate_of(Backend& backend, std::int64_t largest, const Make& make) {
  double rate = 0;
  for (std::int64_t size = std::min(kSmallest, largest);; size = std::min(2 * size, largest)) {
    const std::size_t mark = backend.memory_mark();
    const Timed timed = make(size);
    const double seconds = seconds_of(backend, timed);
    backend.release_to(mark);
    rate = timed.work / seconds;
    if (seconds >= kLongEnough || size == largest) return rate;
  }
}

/// Times operations of one recipe; each kind once.
class StepTimer {
 public:
  StepTimer(Backend& backend, DType activation)
      : backend_(backend), activation_(backend.storage(activation)) {}

  /// Multiply-adds a second of the product that gives (rows, cols) from K = k.
  double gemm_rate(const LinearRecipe& recipe, GemmRole role, std::int64_t rows, std::int64_t cols,
                   std::int64_t k) {
    const Slot a = a_slot(role), b = b_slot(role);
    const GemmSpec spec = recipe.gemm(role);
    const std::string kind =
        fmt::format("{} {} {} {} {} {} {}", gemm_role_name(role), label(recipe.slot(a)),
                    label(recipe.slot(b)), label(spec), rows, cols, k);
    return once(kind, std::max({rows, cols, k}), [&](std::int64_t size) {
      const std::int64_t m = capped(rows, size), n = capped(cols, size), depth = capped(k, size);
      const QuantizedOperand left = random_operand(recipe.slot(a), m, depth);
      const QuantizedOperand right = random_operand(recipe.slot(b), n, depth);
      const TensorView d = backend_.allocate(backend_.storage(spec.output), m, n);
      const bool accumulate = role == GemmRole::wgrad;
      return Timed{static_cast<double>(m * n) * static_cast<double>(depth), [=, this] {
                     backend_.run(ops::Gemm{spec, left, right, {}, accumulate, d});
                   }};
    });
  }

  /// Elements a second of a (rows, cols) tensor, or of its transpose, made into an operand.
  double quantize_rate(const QuantSpec& spec, bool transpose, std::int64_t rows,
                       std::int64_t cols) {
    const std::string kind =
        fmt::format("quantize {} {} {} {}", label(spec), transpose, rows, cols);
    return once(kind, std::max(rows, cols), [&](std::int64_t size) {
      const std::int64_t m = capped(rows, size), n = capped(cols, size);
      const TensorView source = random_matrix(m, n);
      const TensorView state = state_of(spec);
      const QuantizedOperand target =
          transpose ? empty_operand(spec, n, m) : empty_operand(spec, m, n);
      return Timed{static_cast<double>(m * n), [=, this] {
                     QuantizedOperand result = target;
                     backend_.run(ops::Quantize{source, transpose, {}, state, result});
                   }};
    });
  }

  /// Visible pairs of query and key times heads a second, forward and backward.
  double attention_rate(const ModelConfig& model, const StageConfig& stage,
                        const AttentionConfig& tiles) {
    return once("attention", stage.sequence_length, [&](std::int64_t length) {
      const AttentionShape shape{stage.micro_batch_sequences,
                                 length,
                                 model.num_attention_heads,
                                 model.num_key_value_heads,
                                 model.head_dim,
                                 tiles.kv_tile,
                                 tiles.q_tile};
      const auto rows = [&](std::int64_t heads) {
        return backend_.allocate(activation_, shape.batch * length, heads * model.head_dim);
      };
      const TensorView q = rows(shape.heads), out = rows(shape.heads), dq = rows(shape.heads);
      const TensorView k = rows(shape.kv_heads), v = rows(shape.kv_heads);
      const TensorView dk = rows(shape.kv_heads), dv = rows(shape.kv_heads);
      const TensorView start = backend_.allocate(DType::i32, 1, shape.batch * length);
      const TensorView lse =
          backend_.allocate(backend_.storage(DType::f32), shape.heads, shape.batch * length);
      const double pairs = 0.5 * static_cast<double>(length) * static_cast<double>(length + 1);
      return Timed{
          pairs * static_cast<double>(shape.heads * shape.batch), [=, this] {
            backend_.run(ops::AttentionForward{shape, q, k, v, start, out, lse});
            backend_.run(ops::AttentionBackward{shape, q, k, v, start, out, lse, out, dq, dk, dv});
          }};
    });
  }

  /// Bytes a second of an addition.
  double byte_rate(std::int64_t largest) {
    return once("bytes", largest, [&](std::int64_t size) {
      const TensorView a = backend_.allocate(activation_, size, size);
      const TensorView b = backend_.allocate(activation_, size, size);
      const TensorView sum = backend_.allocate(activation_, size, size);
      const auto bytes = static_cast<double>(3 * size * size) * static_cast<double>(width());
      return Timed{bytes, [=, this] { backend_.run(ops::Add{a, b, sum}); }};
    });
  }

  /// Weights a second.
  double update_rate(const OptimizerConfig& optimizer, std::int64_t largest) {
    return once("update", largest, [&](std::int64_t size) {
      const DType real = backend_.storage(DType::f32);
      const auto matrix = [&](DType dtype) { return backend_.allocate(dtype, size, size); };
      const AdamWTensors tensors{matrix(real),
                                 activation_ == real ? TensorView{} : matrix(activation_),
                                 matrix(real), matrix(backend_.storage(optimizer.first_moment)),
                                 matrix(backend_.storage(optimizer.second_moment))};
      const TensorView scalars = backend_.allocate(real, 1, StepScalar::kCount);
      return Timed{static_cast<double>(size * size), [=, this] {
                     backend_.fill_zero(tensors.gradient);
                     backend_.run(ops::AccumulateSquareSum{tensors.gradient, scalars});
                     backend_.run(ops::AdamW{optimizer.adamw, scalars, 1.0f, tensors});
                   }};
    });
  }

  std::size_t width() const { return size_of(activation_); }

 private:
  template <class Make>
  double once(const std::string& kind, std::int64_t largest, const Make& make) {
    const auto known = rates_.find(kind);
    if (known != rates_.end()) return known->second;
    return rates_[kind] = rate_of(backend_, std::min(largest, kLargest), make);
  }

  /// Values in [-1, 1): the speed of an emulated GEMM, and the clock of a GPU, depend on them.
  TensorView random_matrix(std::int64_t rows, std::int64_t cols) {
    std::vector<float> values(static_cast<std::size_t>(rows * cols));
    std::uint32_t state = 1;
    for (float& value : values) {
      state = state * 1664525u + 1013904223u;
      value = static_cast<float>(static_cast<std::int32_t>(state)) * 0x1p-31f;
    }
    const TensorView matrix = backend_.allocate(activation_, rows, cols);
    const TensorView single = backend_.allocate(backend_.storage(DType::f32), rows, cols);
    if (single.dtype == DType::f64) {
      const std::vector<double> wide(values.begin(), values.end());
      backend_.upload(single, wide.data());
    } else {
      backend_.upload(single, values.data());
    }
    backend_.run(ops::Copy{single, matrix});
    return matrix;
  }

  TensorView state_of(const QuantSpec& spec) {
    if (spec.scale_source != ScaleSource::delayed) return {};
    return backend_.allocate(DType::f32, 1, DelayedState::length(spec));
  }

  QuantizedOperand random_operand(const QuantSpec& spec, std::int64_t rows, std::int64_t k) {
    QuantizedOperand result = empty_operand(spec, rows, k);
    backend_.run(ops::Quantize{random_matrix(rows, k), false, {}, state_of(spec), result});
    return result;
  }

  QuantizedOperand empty_operand(const QuantSpec& spec, std::int64_t rows, std::int64_t k) {
    QuantizedOperand result{spec, rows, k, {}, {}};
    result.spec.transform = {};  // its time is not estimated
    result.codes = backend_.allocate(backend_.storage(spec.storage()), rows, k);
    if (spec.has_scale()) {
      result.scales = backend_.allocate(DType::f32, spec.tile_rows(rows), spec.scale_cols(k));
    }
    return result;
  }

  Backend& backend_;
  DType activation_;
  std::map<std::string, double> rates_;
};

/// Bytes that elementwise operations read and write for a token of one layer, forward and backward.
double layer_bytes(const ModelConfig& model) {
  const double c = static_cast<double>(model.hidden_size);
  const double f = static_cast<double>(model.intermediate_size);
  const double qk =
      static_cast<double>((model.num_attention_heads + model.num_key_value_heads) * model.head_dim);
  // Two norms (2 forward, 5 backward with the sum of their weights) and two residuals (3 and 3);
  // SwiGLU (3 and 5); rotations (2 and 2), and the norms of heads.
  return 26.0 * c + 8.0 * f + (model.qk_norm ? 11.0 : 4.0) * qk;
}

}  // namespace

TimePlan estimate_step(const RunConfig& config, const StageConfig& stage, const Recipe& recipe,
                       Backend& backend) {
  const ModelConfig& model = config.model;
  const auto layers = static_cast<int>(model.num_hidden_layers);
  const auto micro_tokens = stage.micro_batch_sequences * stage.sequence_length;
  const auto tokens = static_cast<double>(stage.batch_sequences * stage.sequence_length);
  StepTimer timer(backend, recipe.activation_dtype);
  TimePlan plan;
  for (const LinearShape& layer : linear_shapes(model)) {
    const LinearRecipe& linear = recipe.for_layer(layer.name, layers);
    const auto in = static_cast<double>(layer.in), out = static_cast<double>(layer.out);
    const auto rate = [&](GemmRole role) {
      switch (role) {
        case GemmRole::fprop:
          return timer.gemm_rate(linear, role, micro_tokens, layer.out, layer.in);
        case GemmRole::dgrad:
          return timer.gemm_rate(linear, role, micro_tokens, layer.in, layer.out);
        case GemmRole::wgrad:
          return timer.gemm_rate(linear, role, layer.out, layer.in, micro_tokens);
      }
      return 1.0;
    };
    for (const GemmRole role : kGemmRoles) plan.gemms += tokens * in * out / rate(role);
    const auto quantize = [&](Slot slot, bool transpose, double times, std::int64_t rows,
                              std::int64_t cols) {
      const QuantSpec& spec = linear.slot(slot);
      if (!transpose && !spec.is_cast() && !spec.transform) return;  // the tensor itself
      plan.quantization += times * static_cast<double>(rows * cols) /
                           timer.quantize_rate(spec, transpose, rows, cols);
    };
    const double batches = tokens / static_cast<double>(micro_tokens);
    quantize(Slot::fprop_x, false, batches, micro_tokens, layer.in);
    quantize(Slot::wgrad_x, true, batches, micro_tokens, layer.in);
    quantize(Slot::dgrad_dy, false, batches, micro_tokens, layer.out);
    quantize(Slot::wgrad_dy, true, batches, micro_tokens, layer.out);
    quantize(Slot::fprop_w, false, 1.0, layer.out, layer.in);
    quantize(Slot::dgrad_w, true, 1.0, layer.out, layer.in);
  }
  const double pairs = 0.5 * tokens * static_cast<double>(stage.sequence_length + 1) *
                       static_cast<double>(model.num_attention_heads * model.num_hidden_layers);
  plan.attention = pairs / timer.attention_rate(model, stage, config.attention);
  const double bytes = layer_bytes(model) * static_cast<double>(model.num_hidden_layers) +
                       4.0 * static_cast<double>(model.vocab_size);
  plan.elementwise =
      tokens * bytes * static_cast<double>(timer.width()) / timer.byte_rate(kLargest);
  plan.optimizer = static_cast<double>(ParameterLayout(model).count()) /
                   timer.update_rate(config.optimizer, kLargest);
  return plan;
}

}  // namespace fp8lab
