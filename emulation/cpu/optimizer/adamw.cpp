#include <algorithm>
#include <cstdint>
#include <vector>

#include "emulation/cpu/operations.hpp"
#include "emulation/cpu/row_access.hpp"
#include "emulation/numerics/tree_sum.hpp"

namespace fp8lab::cpu {
namespace {

constexpr std::int64_t kRange = 1024;  // elements updated at a time; no effect on bits
constexpr float kSmallestNormal = 0x1p-126f;

float next_power(float power, float beta) {
  const float next = (power == 0.0f ? 1.0f : power) * beta;
  return next > kSmallestNormal ? next : kSmallestNormal;
}

AdamWFactors factors_of(const UpdateSpec& spec, const float* scalars, float decay_mask,
                        const AdamWTensors& tensors) {
  const UpdateFactors of_step = update_factors(spec, scalars, decay_mask);
  AdamWFactors factors{};
  factors.decay = of_step.decay;
  factors.clip = of_step.clip;
  factors.beta1 = spec.beta1;
  factors.one_minus_beta1 = of_step.one_minus_beta1;
  factors.beta2 = spec.beta2;
  factors.one_minus_beta2 = of_step.one_minus_beta2;
  factors.rate = of_step.first_rate;
  factors.root = of_step.root;
  factors.epsilon = spec.epsilon;
  factors.bf16_first_moment = tensors.first_moment.dtype == DType::bf16;
  factors.bf16_second_moment = tensors.second_moment.dtype == DType::bf16;
  return factors;
}

/// A range of a one-row tensor as f32: in place, or widened into memory of its own.
class Range {
 public:
  Range(const PointwiseKernels& kernels, const TensorView& tensor, std::int64_t first,
        std::int64_t count)
      : kernels_(kernels), tensor_(tensor), first_(first), count_(count) {
    if (tensor.dtype == DType::bf16) {
      kernels.widen(tensor.row<std::uint16_t>(0) + first, count, scratch_);
    }
  }
  float* data() { return tensor_.dtype == DType::bf16 ? scratch_ : tensor_.row<float>(0) + first_; }
  /// Rounds the updated values back to the tensor.
  void store() {
    if (tensor_.dtype == DType::bf16) write_row(kernels_, scratch_, count_, tensor_, 0, first_);
  }

 private:
  const PointwiseKernels& kernels_;
  const TensorView& tensor_;
  std::int64_t first_, count_;
  float scratch_[kRange];
};

/// Returns tree_sum(g * g) of a one-row tensor.
float square_sum(const PointwiseKernels& kernels, const TensorView& gradient) {
  const std::int64_t n = gradient.cols;
  // The tree sum of all elements is the tree sum of the sums of its chunks (numerics/tree_sum.hpp).
  const std::int64_t chunks = (n + numerics::kSumChunk - 1) / numerics::kSumChunk;
  std::vector<float> chunk_sums(static_cast<std::size_t>(chunks));
#pragma omp parallel for schedule(static)
  for (std::int64_t chunk = 0; chunk < chunks; ++chunk) {
    const std::int64_t first = chunk * numerics::kSumChunk;
    const std::int64_t count = std::min(numerics::kSumChunk, n - first);
    float scratch[numerics::kSumChunk];
    const float* g = scratch;
    if (gradient.dtype == DType::bf16) {
      kernels.widen(gradient.row<std::uint16_t>(0) + first, count, scratch);
    } else {
      g = gradient.row<float>(0) + first;
    }
    chunk_sums[static_cast<std::size_t>(chunk)] = kernels.dot(g, g, count);
  }
  return kernels.sum(chunk_sums.data(), chunks);
}

}  // namespace

void run(const ops::AccumulateSquareSum& op) {
  op.check();
  const PointwiseKernels& kernels = pointwise_kernels();
  float* total = op.scalars.row<float>(0) + StepScalar::kGradNormSquared;
  for (const TensorView& gradient : op.gradients) {
    const float sum = *total + square_sum(kernels, gradient.flat());
    kernels.canonical(&sum, 1, total);
  }
}

void run(const ops::BeginUpdate& op) {
  op.check();
  float* s = op.scalars.row<float>(0);
  const float norm = __builtin_sqrtf(s[StepScalar::kGradNormSquared]);
  const float ratio = op.spec.clip_norm / (norm + 1e-6f);
  pointwise_kernels().canonical(&norm, 1, s + StepScalar::kGradNorm);
  s[StepScalar::kClipFactor] = op.spec.clip_norm > 0.0f && ratio < 1.0f ? ratio : 1.0f;
  s[StepScalar::kBeta1Power] = next_power(s[StepScalar::kBeta1Power], op.spec.beta1);
  s[StepScalar::kBeta2Power] = next_power(s[StepScalar::kBeta2Power], op.spec.beta2);
}

void run(const ops::AdamW& op) {
  op.check();
  const PointwiseKernels& kernels = pointwise_kernels();
  const AdamWFactors factors =
      factors_of(op.spec, op.scalars.row<float>(0), op.decay_mask, op.tensors);
  const TensorView master = op.tensors.master.flat(), gradient = op.tensors.gradient.flat();
  const TensorView first_moment = op.tensors.first_moment.flat();
  const TensorView second_moment = op.tensors.second_moment.flat();
  const std::int64_t n = op.tensors.master.size();
#pragma omp parallel for schedule(static)
  for (std::int64_t range = 0; range < (n + kRange - 1) / kRange; ++range) {
    const std::int64_t first = range * kRange;
    const std::int64_t count = std::min(kRange, n - first);
    Range p(kernels, master, first, count), g(kernels, gradient, first, count);
    Range m(kernels, first_moment, first, count), v(kernels, second_moment, first, count);
    kernels.adamw(&factors, count, g.data(), p.data(), m.data(), v.data());
    p.store();
    m.store();
    v.store();
    if (!op.tensors.working.empty()) {
      write_row(kernels, p.data(), count, op.tensors.working.flat(), 0, first);
    }
  }
}

}  // namespace fp8lab::cpu
