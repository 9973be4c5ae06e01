#include "kernels/cuda_backend.hpp"

#include <limits>

#include "emulation/api/error.hpp"
#include "emulation/cpu/checks.hpp"
#include "emulation/cpu/gemm_plan.hpp"
#include "emulation/cpu/quantize.hpp"
#include "kernels/clamp.hpp"
#include "kernels/gemm.hpp"
#include "kernels/operand_statistics.hpp"
#include "kernels/operations.hpp"
#include "kernels/quantize.hpp"
#include "kernels/quantize_fused.hpp"
#include "kernels/transform.hpp"

namespace fp8lab::cuda {
namespace {

constexpr std::size_t kAlignment = 256;

}  // namespace

CudaBackend::CudaBackend(int device, GemmImplementation implementation) : context_(device) {
  if (implementation == GemmImplementation::cublaslt) cublaslt_ = std::make_unique<CublasLt>();
}

CudaBackend::~CudaBackend() = default;

std::unique_ptr<Backend> make_cuda_backend(GemmImplementation implementation) {
  return std::make_unique<CudaBackend>(0, implementation);
}

std::string CudaBackend::device() const {
  return context_.description() + (cublaslt_ ? ", GEMM by " + cublaslt_version() : "");
}

Support CudaBackend::supports(const GemmSpec& spec, const QuantSpec& a, const QuantSpec& b) const {
  return {cublaslt_ ? cublaslt_refusal(spec, a, b) : gemm_refusal(spec, a, b)};
}

Support CudaBackend::supports(const QuantSpec& spec) const { return supports_quantization(spec); }

TensorView CudaBackend::allocate(DType dtype, std::int64_t rows, std::int64_t cols) {
  const auto limit = std::numeric_limits<std::int64_t>::max() / 16;
  if (rows < 0 || cols < 0 || (cols > 0 && rows > limit / cols)) {
    throw Error("allocate: no tensor of shape (" + std::to_string(rows) + ", " +
                std::to_string(cols) + ")");
  }
  const std::size_t bytes = static_cast<std::size_t>(rows * cols) * size_of(dtype);
  const std::size_t padded = (bytes / kAlignment + 1) * kAlignment;
  memory_.push_back(std::make_unique<DeviceArray<std::byte>>(padded));
  check(cudaMemsetAsync(memory_.back()->data(), 0, padded, context_.stream()), "cudaMemsetAsync");
  return {memory_.back()->data(), dtype, rows, cols, cols};
}

void CudaBackend::release_to(std::size_t mark) {
  FP8LAB_ASSERT(mark <= memory_.size());
  context_.synchronize();
  memory_.resize(mark);
}

std::size_t CudaBackend::memory_bytes() const {
  std::size_t total = 0;
  for (const auto& memory : memory_) total += memory->size();
  return total;
}

void CudaBackend::upload(const TensorView& destination, const void* source) {
  if (destination.size() == 0) return;
  const std::size_t size = size_of(destination.dtype);
  const std::size_t width = static_cast<std::size_t>(destination.cols) * size;
  check(cudaMemcpy2DAsync(destination.data, static_cast<std::size_t>(destination.row_stride) * size,
                          source, width, width, static_cast<std::size_t>(destination.rows),
                          cudaMemcpyHostToDevice, context_.stream()),
        "cudaMemcpy2DAsync");
  // The caller may reuse `source` at once.
  check(cudaStreamSynchronize(context_.stream()), "cudaStreamSynchronize");
}

void CudaBackend::download(void* destination, const TensorView& source) {
  if (source.size() == 0) return;
  const std::size_t size = size_of(source.dtype);
  const std::size_t width = static_cast<std::size_t>(source.cols) * size;
  check(cudaMemcpy2DAsync(destination, width, source.data,
                          static_cast<std::size_t>(source.row_stride) * size, width,
                          static_cast<std::size_t>(source.rows), cudaMemcpyDeviceToHost,
                          context_.stream()),
        "cudaMemcpy2DAsync");
  context_.synchronize();
}

void CudaBackend::fill_zero(const TensorView& view) {
  if (view.size() == 0) return;
  const std::size_t size = size_of(view.dtype);
  check(cudaMemset2DAsync(view.data, static_cast<std::size_t>(view.row_stride) * size, 0,
                          static_cast<std::size_t>(view.cols) * size,
                          static_cast<std::size_t>(view.rows), context_.stream()),
        "cudaMemset2DAsync");
}

void CudaBackend::copy(const TensorView& source, const TensorView& destination) {
  cuda::copy(context_, source, destination);
}

void CudaBackend::quantize(const TensorView& source, bool transpose, const RandomKey& key,
                           const TensorView& state, QuantizedOperand& operand) {
  cuda::quantize(context_, source, transpose, key, state, operand);
}

void CudaBackend::quantize_both(const TensorView& source, const RandomKey& key,
                                const TensorView& state, QuantizedOperand& first,
                                QuantizedOperand& second) {
  if (!can_quantize_both(first.spec, second.spec)) {
    return Backend::quantize_both(source, key, state, first, second);
  }
  cuda::quantize_both(context_, source, state, first, second);
}

void CudaBackend::smoothing_factors(const Transform& transform, const TensorView& a,
                                    bool transpose_a, const TensorView& b, bool transpose_b,
                                    const TensorView& factors) {
  cuda::smoothing_factors(context_, transform, a, transpose_a, b, transpose_b, factors);
}

void CudaBackend::dequantize(const QuantizedOperand& operand, bool transpose,
                             const TensorView& destination) {
  cuda::dequantize(context_, operand, transpose, destination);
}

void CudaBackend::update_delayed_scale(const QuantSpec& spec, const TensorView& state) {
  cuda::update_delayed_scale(context_, spec, state);
}

void CudaBackend::gemm(const GemmSpec& spec, const QuantizedOperand& a, const QuantizedOperand& b,
                       const TensorView& bias, bool accumulate, const TensorView& d) {
  if (cublaslt_) return gemm_cublaslt({spec, a, b, bias, accumulate, d});
  cuda::gemm(context_, spec, a, b, bias, accumulate, d);
}

void CudaBackend::gemm_cublaslt(const GemmCall& call) {
  const cpu::GemmPlan plan = cpu::plan_gemm(call.spec, call.a.spec, call.b.spec, call.a.k);
  CublasLtGemm gemm(*cublaslt_, call, library_a(plan));
  gemm.prepare(context_, static_cast<std::byte*>(context_.workspace(gemm.scratch_bytes())),
               call.spec.split_k);
  gemm.run(context_);
  gemm_algorithm_ = cublaslt_version() + ": " + gemm.algorithm();
}

void CudaBackend::compensate(const QuantizedOperand& a, const TensorView& a_source,
                             bool transpose_a, const QuantizedOperand& b,
                             const TensorView& b_source, bool transpose_b, const TensorView& d) {
  cuda::compensate(context_, a, a_source, transpose_a, b, b_source, transpose_b, d);
}

void CudaBackend::operand_statistics(const TensorView& source, bool transpose,
                                     const QuantizedOperand& operand, const TensorView& record) {
  cpu::Checks("operand_statistics")
      .vector("record", record, sizeof(OperandStatistics), {DType::u8});
  const OperandStatistics statistics =
      cuda::operand_statistics(context_, source, transpose, operand);
  upload(record, &statistics);
}

void CudaBackend::embedding_forward(const TensorView& tokens, const TensorView& table,
                                    const TensorView& out) {
  cuda::embedding_forward(context_, tokens, table, out);
}

void CudaBackend::embedding_backward(const TensorView& tokens, const TensorView& dout,
                                     const TensorView& dtable) {
  cuda::embedding_backward(context_, tokens, dout, dtable);
}

void CudaBackend::rmsnorm_forward(const TensorView& x, const TensorView& weight, float epsilon,
                                  const TensorView& y, const TensorView& rstd) {
  cuda::rmsnorm_forward(context_, x, weight, epsilon, y, rstd);
}

void CudaBackend::rmsnorm_backward(const TensorView& dy, const TensorView& x,
                                   const TensorView& weight, const TensorView& rstd,
                                   const TensorView& dx, const TensorView& dweight) {
  cuda::rmsnorm_backward(context_, dy, x, weight, rstd, dx, dweight);
}

void CudaBackend::add(const TensorView& a, const TensorView& b, const TensorView& sum) {
  cuda::add(context_, a, b, sum);
}

void CudaBackend::bias_backward(const TensorView& dy, const TensorView& dbias) {
  cuda::bias_backward(context_, dy, dbias);
}

void CudaBackend::rope(const TensorView& x, const TensorView& positions, const TensorView& cosine,
                       const TensorView& sine, std::int64_t head_dim, bool inverse) {
  cuda::rope(context_, x, positions, cosine, sine, head_dim, inverse);
}

void CudaBackend::attention_forward(const AttentionShape& shape, const TensorView& q,
                                    const TensorView& k, const TensorView& v,
                                    const TensorView& document_start, const TensorView& out,
                                    const TensorView& lse) {
  cuda::attention_forward(context_, shape, q, k, v, document_start, out, lse);
}

void CudaBackend::attention_backward(const AttentionShape& shape, const TensorView& q,
                                     const TensorView& k, const TensorView& v,
                                     const TensorView& document_start, const TensorView& out,
                                     const TensorView& lse, const TensorView& dout,
                                     const TensorView& dq, const TensorView& dk,
                                     const TensorView& dv) {
  cuda::attention_backward(context_, shape, q, k, v, document_start, out, lse, dout, dq, dk, dv);
}

void CudaBackend::attention_cached(const AttentionShape& shape, const TensorView& q,
                                   const TensorView& k, const TensorView& v,
                                   const TensorView& query_start, const TensorView& cached,
                                   const TensorView& k_cache, const TensorView& v_cache,
                                   const TensorView& out) {
  cuda::attention_cached(context_, shape, q, k, v, query_start, cached, k_cache, v_cache, out);
}

void CudaBackend::swiglu_forward(const TensorView& gate_up, const TensorView& out) {
  cuda::swiglu_forward(context_, gate_up, out);
}

void CudaBackend::swiglu_backward(const TensorView& gate_up, const TensorView& dout,
                                  const TensorView& dgate_up) {
  cuda::swiglu_backward(context_, gate_up, dout, dgate_up);
}

void CudaBackend::rmsnorm_quantize(const TensorView& x, const TensorView& weight, float epsilon,
                                   const TensorView& y, const TensorView& rstd,
                                   const RandomKey& key, const TensorView& state,
                                   QuantizedOperand& operand) {
  if (weight.cols != x.cols || !can_quantize_norm(x, weight, y, operand.spec)) {
    return Backend::rmsnorm_quantize(x, weight, epsilon, y, rstd, key, state, operand);
  }
  cuda::rmsnorm_quantize(context_, x, weight, epsilon, y, rstd, state, operand);
}

void CudaBackend::swiglu_quantize(const TensorView& gate_up, const TensorView& out,
                                  const RandomKey& key, const TensorView& state,
                                  QuantizedOperand& operand) {
  if (!can_quantize_swiglu(gate_up, out, operand.spec)) {
    return Backend::swiglu_quantize(gate_up, out, key, state, operand);
  }
  cuda::swiglu_quantize(context_, gate_up, out, state, operand);
}

void CudaBackend::cross_entropy(const TensorView& logits, const TensorView& targets,
                                const TensorView& weights, const TensorView& scalars,
                                const TensorView& token_loss, const TensorView& dlogits) {
  cuda::cross_entropy(context_, logits, targets, weights, scalars, token_loss, dlogits);
}

void CudaBackend::argmax(const TensorView& logits, const TensorView& out) {
  cuda::argmax(context_, logits, out);
}

void CudaBackend::accumulate_square_sum(const TensorView& gradient, const TensorView& scalars) {
  cuda::accumulate_square_sum(context_, gradient, scalars);
}

void CudaBackend::begin_update(const AdamWSpec& spec, const TensorView& scalars) {
  cuda::begin_update(context_, spec, scalars);
}

void CudaBackend::adamw(const AdamWSpec& spec, const TensorView& scalars, float decay_mask,
                        const AdamWTensors& tensors) {
  cuda::adamw(context_, spec, scalars, decay_mask, tensors);
}

}  // namespace fp8lab::cuda
