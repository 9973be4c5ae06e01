// Row kernels, compiled once per instruction set. The compiler's vectoriser needs no reordering in
// their loops, which are elementwise or have 32 independent lanes.
#include "emulation/cpu/simd/pointwise_kernels.hpp"

#include "emulation/numerics/attention_weight.hpp"
#include "emulation/numerics/codec.hpp"
#include "emulation/numerics/dynamic_tanh.hpp"
#include "emulation/numerics/exact_math.hpp"
#include "emulation/numerics/gelu.hpp"
#include "emulation/numerics/host_device.hpp"
#include "emulation/numerics/relu2.hpp"
#include "emulation/numerics/tree_sum.hpp"
#include "emulation/numerics/xielu.hpp"

namespace fp8lab::cpu {
namespace FP8LAB_ISA {
namespace {

using numerics::from_bf16;
using numerics::to_bf16;

constexpr int kLanes = 32;
constexpr float kMinusInfinity = -__builtin_inff();

float canonical_nan(float value) {
  return value == value ? value : numerics::bits_float(numerics::kF32NaN);
}

void widen(const std::uint16_t* bf16, std::int64_t n, float* out) {
  for (std::int64_t i = 0; i < n; ++i) out[i] = from_bf16(bf16[i]);
}

void narrow(const float* values, std::int64_t n, std::uint16_t* bf16) {
  for (std::int64_t i = 0; i < n; ++i) bf16[i] = to_bf16(values[i]);
}

void canonical(const float* values, std::int64_t n, float* out) {
  for (std::int64_t i = 0; i < n; ++i) out[i] = canonical_nan(values[i]);
}

void add(const float* a, const float* b, std::int64_t n, float* out) {
  for (std::int64_t i = 0; i < n; ++i) out[i] = a[i] + b[i];
}

void weighted_sum(const float* a, float factor_a, const float* b, float factor_b, std::int64_t n,
                  float* out) {
  for (std::int64_t i = 0; i < n; ++i) out[i] = (a[i] * factor_a) + (b[i] * factor_b);
}

void multiply(const float* a, float factor, std::int64_t n, float* out) {
  for (std::int64_t i = 0; i < n; ++i) out[i] = a[i] * factor;
}

void multiply_add(const float* a, float factor, std::int64_t n, float* sum) {
  for (std::int64_t i = 0; i < n; ++i) {
    sum[i] = numerics::fused_multiply_add(a[i], factor, sum[i]);
  }
}

void swiglu(const float* gate, const float* up, std::int64_t n, float* out) {
  for (std::int64_t i = 0; i < n; ++i) out[i] = numerics::silu(gate[i]) * up[i];
}

void swiglu_gradient(const float* gate, const float* up, const float* dout, std::int64_t n,
                     float* dgate, float* dup) {
  for (std::int64_t i = 0; i < n; ++i) {
    const float g = gate[i];
    const float sig = numerics::sigmoid(g);
    const float slope = sig * (1.0f + g * (1.0f - sig));
    const float d = dout[i];
    const float u = up[i];
    dup[i] = d * numerics::silu(g);
    dgate[i] = (d * u) * slope;
  }
}

void geglu(const float* gate, const float* up, std::int64_t n, float* out) {
  for (std::int64_t i = 0; i < n; ++i) out[i] = numerics::gelu(gate[i]) * up[i];
}

void geglu_gradient(const float* gate, const float* up, const float* dout, std::int64_t n,
                    float* dgate, float* dup) {
  for (std::int64_t i = 0; i < n; ++i) {
    const float g = gate[i];
    const float sig = numerics::sigmoid(numerics::gelu_argument(g));
    const float d = dout[i];
    const float u = up[i];
    dup[i] = d * (g * sig);
    dgate[i] = (d * u) * numerics::gelu_slope(g, sig);
  }
}

void gelu(const float* x, std::int64_t n, float* out) {
  for (std::int64_t i = 0; i < n; ++i) out[i] = numerics::gelu(x[i]);
}

void gelu_gradient(const float* x, const float* dout, std::int64_t n, float* dx) {
  for (std::int64_t i = 0; i < n; ++i) {
    const float v = x[i];
    dx[i] = dout[i] * numerics::gelu_slope(v, numerics::sigmoid(numerics::gelu_argument(v)));
  }
}

void relu2(const float* x, std::int64_t n, float* out) {
  for (std::int64_t i = 0; i < n; ++i) out[i] = numerics::relu2(x[i]);
}

void relu2_gradient(const float* x, const float* dout, std::int64_t n, float* dx) {
  for (std::int64_t i = 0; i < n; ++i) dx[i] = numerics::relu2_gradient(x[i], dout[i]);
}

void xielu(const float* x, numerics::XieluFactors factors, std::int64_t n, float* out) {
  for (std::int64_t i = 0; i < n; ++i) out[i] = numerics::xielu(x[i], factors);
}

void xielu_gradient(const float* x, numerics::XieluFactors factors, const float* dout,
                    std::int64_t n, float* dx) {
  for (std::int64_t i = 0; i < n; ++i) dx[i] = dout[i] * numerics::xielu_slope(x[i], factors);
}

void xielu_terms(const float* x, const float* dout, std::int64_t n, float* by_p, float* by_n) {
  for (std::int64_t i = 0; i < n; ++i) {
    const numerics::XieluTerms terms = numerics::xielu_terms(x[i], dout[i]);
    by_p[i] = terms.p;
    by_n[i] = terms.n;
  }
}

void dynamic_tanh(const float* x, float alpha, std::int64_t n, float* out) {
  for (std::int64_t i = 0; i < n; ++i) out[i] = numerics::dynamic_tanh(x[i], alpha);
}

void dynamic_tanh_slopes(const float* x, float alpha, const float* dout, std::int64_t n,
                         float* by_x, float* by_alpha) {
  for (std::int64_t i = 0; i < n; ++i) {
    const numerics::DynamicTanhSlopes slopes = numerics::dynamic_tanh_slopes(x[i], alpha, dout[i]);
    by_x[i] = slopes.by_x;
    by_alpha[i] = slopes.by_alpha;
  }
}

void rotate(const float* cosine, const float* sine, bool inverse, std::int64_t n, float* lower,
            float* upper) {
  for (std::int64_t i = 0; i < n; ++i) {
    const float c = cosine[i];
    const float s = inverse ? -sine[i] : sine[i];
    const float a = lower[i];
    const float b = upper[i];
    lower[i] = (a * c) - (b * s);
    upper[i] = (b * c) + (a * s);
  }
}

float sum_of(const float* values, std::int64_t n) {
  return numerics::tree_sum(n, [values](std::int64_t i) { return values[i]; });
}

float dot(const float* a, const float* b, std::int64_t n) {
  return numerics::tree_sum(n, [a, b](std::int64_t i) { return a[i] * b[i]; });
}

float rmsnorm(const float* x, const float* weight, float epsilon, std::int64_t n, float* y) {
  const float mean = dot(x, x, n) / static_cast<float>(n);
  const float rstd = 1.0f / __builtin_sqrtf(mean + epsilon);
  for (std::int64_t i = 0; i < n; ++i) y[i] = (x[i] * rstd) * weight[i];
  return rstd;
}

void rmsnorm_gradient(const float* dy, const float* x, const float* weight, float rstd,
                      std::int64_t n, float* dx) {
  const float s =
      numerics::tree_sum(n, [dy, x, weight](std::int64_t i) { return (dy[i] * weight[i]) * x[i]; });
  const float k = ((s * rstd) * rstd) / static_cast<float>(n);
  for (std::int64_t i = 0; i < n; ++i) dx[i] = rstd * ((dy[i] * weight[i]) - (x[i] * k));
}

void add_normalised(const float* dy, const float* x, float rstd, std::int64_t n, float* sum) {
  for (std::int64_t i = 0; i < n; ++i) sum[i] = sum[i] + dy[i] * (x[i] * rstd);
}

RowMoments layernorm(const float* x, const float* weight, const float* bias, float epsilon,
                     std::int64_t n, float* y) {
  const auto count = static_cast<float>(n);
  const float mean = sum_of(x, n) / count;
  const float squares = numerics::tree_sum(n, [x, mean](std::int64_t i) {
    const float d = x[i] - mean;
    return d * d;
  });
  const float rstd = 1.0f / __builtin_sqrtf((squares / count) + epsilon);
  for (std::int64_t i = 0; i < n; ++i) y[i] = (((x[i] - mean) * rstd) * weight[i]) + bias[i];
  return {mean, rstd};
}

void layernorm_gradient(const float* dy, const float* x, const float* weight, RowMoments moments,
                        std::int64_t n, float* dx) {
  const float mean = moments.mean, rstd = moments.rstd;
  const auto count = static_cast<float>(n);
  const float a = dot(dy, weight, n) / count;
  const float products = numerics::tree_sum(
      n, [=](std::int64_t i) { return (dy[i] * weight[i]) * ((x[i] - mean) * rstd); });
  const float b = products / count;
  for (std::int64_t i = 0; i < n; ++i) {
    const float h = (x[i] - mean) * rstd;
    dx[i] = rstd * (((dy[i] * weight[i]) - a) - (h * b));
  }
}

void add_centred(const float* dy, const float* x, RowMoments moments, std::int64_t n, float* sum) {
  const auto [mean, rstd] = moments;
  for (std::int64_t i = 0; i < n; ++i) sum[i] = sum[i] + dy[i] * ((x[i] - mean) * rstd);
}

/// Returns the largest of load(0..n-1), ignoring NaN; -inf if there is none. The order is free:
/// only the sign of a zero could depend on it, and no user of the maximum sees that sign.
template <class Load>
float maximum(std::int64_t n, float start, const Load& load) {
  float lane[kLanes];
  for (float& value : lane) value = start;
  std::int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (int l = 0; l < kLanes; ++l) {
      const float value = load(i + l);
      lane[l] = value > lane[l] ? value : lane[l];
    }
  }
  for (; i < n; ++i) {
    const float value = load(i);
    lane[0] = value > lane[0] ? value : lane[0];
  }
  for (int span = kLanes / 2; span > 0; span /= 2) {
    for (int l = 0; l < span; ++l) lane[l] = lane[l + span] > lane[l] ? lane[l + span] : lane[l];
  }
  return lane[0];
}

float token_loss(const float* logits, std::int64_t n, std::int64_t target, float weight,
                 float* exponentials, float* sum) {
  const float m = maximum(n, kMinusInfinity, [logits](std::int64_t i) { return logits[i]; });
  const float below_maximum = m - logits[target];
  for (std::int64_t i = 0; i < n; ++i) {
    exponentials[i] = numerics::exp2((logits[i] - m) * numerics::kLog2E);
  }
  *sum = sum_of(exponentials, n);
  return ((numerics::log2(*sum) + (below_maximum * numerics::kLog2E)) * numerics::kLn2) * weight;
}

void token_gradient(float* exponentials, std::int64_t n, std::int64_t target, float sum,
                    float factor) {
  const float inverse = 1.0f / sum;
  const float at_target = ((exponentials[target] * inverse) - 1.0f) * factor;
  for (std::int64_t i = 0; i < n; ++i) exponentials[i] = (exponentials[i] * inverse) * factor;
  exponentials[target] = at_target;
}

std::int64_t argmax(const float* logits, std::int64_t n) {
  std::int64_t best = 0;
  for (std::int64_t i = 1; i < n; ++i) {
    if (logits[i] > logits[best]) best = i;
  }
  return best;
}

template <bool kWide>
float weight_of(float distance) {
  return kWide ? numerics::wide_attention_weight(distance) : numerics::attention_weight(distance);
}

template <bool kWide>
void softmax_row_of(const float* scores, std::int64_t first, std::int64_t last, std::int64_t tile,
                    float scale, SoftmaxState* state, float* probabilities) {
  const float largest =
      maximum(last - first, kMinusInfinity, [=](std::int64_t j) { return scores[first + j]; });
  const float old = state->maximum, highest = largest * scale;
  const float m = highest > old ? highest : old;
  const float alpha = old == kMinusInfinity ? 0.0f : weight_of<kWide>(m - old);
  const float reference = m == kMinusInfinity ? 0.0f : m;
  for (std::int64_t j = 0; j < tile; ++j) {
    const float p = weight_of<kWide>(numerics::score_distance(scores[j], scale, reference));
    probabilities[j] = j >= first && j < last ? p : 0.0f;
  }
  state->maximum = m;
  state->alpha = alpha;
}
void softmax_row(const float* scores, std::int64_t first, std::int64_t last, std::int64_t tile,
                 float scale, bool is_wide, SoftmaxState* state, float* probabilities) {
  const auto run = is_wide ? softmax_row_of<true> : softmax_row_of<false>;
  run(scores, first, last, tile, scale, state, probabilities);
}

float softmax_end(float maximum, float sum, const float* accumulator, std::int64_t n, float* out) {
  multiply(accumulator, 1.0f / sum, n, out);
  return canonical_nan(maximum + numerics::log2(sum));
}

template <bool kWide>
void score_gradient_of(const ScoreGradientRow& r, float* probabilities, float* dscores) {
  for (std::int64_t j = 0; j < r.tile; ++j) {
    const bool visible = j >= r.first && j < r.last;
    const float p = weight_of<kWide>(numerics::score_distance(r.scores[j], r.scale, r.lse));
    const float ds = p * numerics::fused_multiply_add(r.dprobs[j], r.dprob_scale, -r.delta);
    probabilities[j] = visible ? p : 0.0f;
    dscores[j] = visible ? ds : 0.0f;
  }
}
void score_gradient(const ScoreGradientRow* row, float* probabilities, float* dscores) {
  const auto run = row->is_wide ? score_gradient_of<true> : score_gradient_of<false>;
  run(*row, probabilities, dscores);
}

constexpr std::int64_t kGroup = 16;

/// Computes kWidth columns of one row of the ideal chain.
template <int kWidth>
void ideal_chain_columns(const float* a, std::int64_t a_col, const float* b, std::int64_t ldb,
                         std::int64_t k, float* c) {
  float acc[kWidth];
  for (int l = 0; l < kWidth; ++l) acc[l] = c[l];
  for (std::int64_t group = 0; group < k; group += kGroup) {
    const std::int64_t end = group + kGroup < k ? group + kGroup : k;
    for (std::int64_t i = group; i < end; ++i) {
      const float factor = a[i * a_col];
      const float* row = b + i * ldb;
      for (int l = 0; l < kWidth; ++l) {
        acc[l] = numerics::fused_multiply_add(factor, row[l], acc[l]);
      }
    }
    for (int l = 0; l < kWidth; ++l) acc[l] = acc[l] + 0.0f;
  }
  for (int l = 0; l < kWidth; ++l) c[l] = acc[l];
}

void ideal_chain(const float* a, std::int64_t a_row, std::int64_t a_col, const float* b,
                 std::int64_t ldb, std::int64_t m, std::int64_t n, std::int64_t k, float* c,
                 std::int64_t ldc) {
  for (std::int64_t i = 0; i < m; ++i) {
    std::int64_t j = 0;
    for (; j + kLanes <= n; j += kLanes) {
      ideal_chain_columns<kLanes>(a + i * a_row, a_col, b + j, ldb, k, c + i * ldc + j);
    }
    for (; j + 8 <= n; j += 8) {
      ideal_chain_columns<8>(a + i * a_row, a_col, b + j, ldb, k, c + i * ldc + j);
    }
    for (; j < n; ++j) {
      ideal_chain_columns<1>(a + i * a_row, a_col, b + j, ldb, k, c + i * ldc + j);
    }
  }
}

template <bool kBf16First, bool kBf16Second>
void adamw_range(const AdamWFactors& f, std::int64_t n, const float* gradient, float* master,
                 float* first_moment, float* second_moment) {
  for (std::int64_t i = 0; i < n; ++i) {
    const float p = master[i] * f.decay;
    const float g = gradient[i] * f.clip;
    float m = (f.beta1 * first_moment[i]) + (f.one_minus_beta1 * g);
    float v = (f.beta2 * second_moment[i]) + ((f.one_minus_beta2 * g) * g);
    if constexpr (kBf16First) m = from_bf16(to_bf16(m));
    if constexpr (kBf16Second) v = from_bf16(to_bf16(v));
    const float denominator = (__builtin_sqrtf(v) / f.root) + f.epsilon;
    first_moment[i] = canonical_nan(m);
    second_moment[i] = canonical_nan(v);
    master[i] = canonical_nan(p - (f.rate * (m / denominator)));
  }
}

void adamw(const AdamWFactors* factors, std::int64_t n, const float* gradient, float* master,
           float* first_moment, float* second_moment) {
  const AdamWFactors f = *factors;
  const auto range =
      f.bf16_first_moment
          ? (f.bf16_second_moment ? adamw_range<true, true> : adamw_range<true, false>)
          : (f.bf16_second_moment ? adamw_range<false, true> : adamw_range<false, false>);
  range(f, n, gradient, master, first_moment, second_moment);
}

}  // namespace

extern const PointwiseKernels kPointwise;
const PointwiseKernels kPointwise = {
    .widen = widen,
    .narrow = narrow,
    .canonical = canonical,
    .add = add,
    .weighted_sum = weighted_sum,
    .multiply = multiply,
    .multiply_add = multiply_add,
    .swiglu = swiglu,
    .swiglu_gradient = swiglu_gradient,
    .geglu = geglu,
    .geglu_gradient = geglu_gradient,
    .gelu = gelu,
    .gelu_gradient = gelu_gradient,
    .relu2 = relu2,
    .relu2_gradient = relu2_gradient,
    .xielu = xielu,
    .xielu_gradient = xielu_gradient,
    .xielu_terms = xielu_terms,
    .dynamic_tanh = dynamic_tanh,
    .dynamic_tanh_slopes = dynamic_tanh_slopes,
    .rotate = rotate,
    .rmsnorm = rmsnorm,
    .rmsnorm_gradient = rmsnorm_gradient,
    .add_normalised = add_normalised,
    .layernorm = layernorm,
    .layernorm_gradient = layernorm_gradient,
    .add_centred = add_centred,
    .sum = sum_of,
    .dot = dot,
    .token_loss = token_loss,
    .token_gradient = token_gradient,
    .argmax = argmax,
    .softmax_row = softmax_row,
    .softmax_end = softmax_end,
    .score_gradient = score_gradient,
    .ideal_chain = ideal_chain,
    .adamw = adamw,
};

}  // namespace FP8LAB_ISA
}  // namespace fp8lab::cpu
