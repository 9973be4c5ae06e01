#include "emulation/cpu/cpu_backend.hpp"

#include <cstdlib>
#include <cstring>
#include <fstream>
#include <limits>

#include <fmt/format.h>
#include <omp.h>

#include "emulation/api/error.hpp"
#include "emulation/api/machine.hpp"
#include "emulation/cpu/checks.hpp"
#include "emulation/cpu/clamp.hpp"
#include "emulation/cpu/gemm.hpp"
#include "emulation/cpu/gemm_plan.hpp"
#include "emulation/cpu/operations.hpp"
#include "emulation/cpu/quantize.hpp"
#include "emulation/cpu/simd/target.hpp"
#include "emulation/cpu/statistics.hpp"
#include "emulation/cpu/transform.hpp"

namespace fp8lab::cpu {
namespace {

constexpr std::size_t kAlignment = 64;

/// "model name" of the first processor, or the architecture where the system does not say.
std::string processor_name() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    const std::size_t colon = line.find(": ");
    if (line.rfind("model name", 0) == 0 && colon != std::string::npos) {
      return line.substr(colon + 2);
    }
  }
  return "unknown processor";
}

}  // namespace

struct CpuBackend::Memory {
  explicit Memory(std::size_t size) : data(std::aligned_alloc(kAlignment, size)), bytes(size) {
    if (data == nullptr) {
      throw RuntimeFailure("allocate: no memory for " + std::to_string(bytes) + " bytes");
    }
    std::memset(data, 0, bytes);
  }
  ~Memory() { std::free(data); }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  void* data;
  std::size_t bytes;
};

CpuBackend::CpuBackend(int threads)
    : threads_(checked_threads(threads, "threads") == 0 ? omp_get_num_procs() : threads),
      memory_limit_(static_cast<std::size_t>(machine_memory())) {}

CpuBackend::~CpuBackend() = default;

std::unique_ptr<Backend> make_cpu_backend(int threads) {
  return std::make_unique<CpuBackend>(threads);
}

void CpuBackend::use_threads() const { omp_set_num_threads(threads_); }

std::string CpuBackend::device() const {
  return processor_name() + ", " + std::string(name_of(active_target())) + ", " +
         std::to_string(threads_) + (threads_ == 1 ? " thread" : " threads");
}

Support CpuBackend::supports(const GemmSpec& spec, const QuantSpec& a, const QuantSpec& b) const {
  return {gemm_refusal(spec, a, b)};
}

Support CpuBackend::supports(const QuantSpec& spec) const { return supports_quantization(spec); }

TensorView CpuBackend::allocate(DType dtype, std::int64_t rows, std::int64_t cols) {
  const auto limit = std::numeric_limits<std::int64_t>::max() / 16;
  if (rows < 0 || cols < 0 || (cols > 0 && rows > limit / cols)) {
    throw Error("allocate: no tensor of shape (" + std::to_string(rows) + ", " +
                std::to_string(cols) + ")");
  }
  const std::size_t bytes = static_cast<std::size_t>(rows * cols) * size_of(dtype);
  const std::size_t padded = (bytes / kAlignment + 1) * kAlignment;
  // Memory is written as it is handed out: what the machine lacks would end in its killer of
  // processes, not in a failed allocation.
  if (held_ + padded > memory_limit_) {
    require_memory(
        static_cast<double>(held_ + padded),
        fmt::format("allocate: a tensor of shape ({}, {}), with all others,", rows, cols),
        static_cast<double>(memory_limit_));
  }
  memory_.push_back(std::make_unique<Memory>(padded));
  held_ += padded;
  return {memory_.back()->data, dtype, rows, cols, cols};
}

void CpuBackend::release_to(std::size_t mark) {
  FP8LAB_ASSERT(mark <= memory_.size());
  for (std::size_t i = mark; i < memory_.size(); ++i) held_ -= memory_[i]->bytes;
  memory_.resize(mark);
}

std::size_t CpuBackend::memory_bytes() const { return held_; }

void CpuBackend::upload(const TensorView& destination, const void* source) {
  const std::size_t bytes = static_cast<std::size_t>(destination.cols) * size_of(destination.dtype);
  const auto* from = static_cast<const std::byte*>(source);
  for (std::int64_t row = 0; row < destination.rows; ++row, from += bytes) {
    std::memcpy(destination.row_range(row, 1).data, from, bytes);
  }
}

void CpuBackend::download(void* destination, const TensorView& source) {
  const std::size_t bytes = static_cast<std::size_t>(source.cols) * size_of(source.dtype);
  auto* to = static_cast<std::byte*>(destination);
  for (std::int64_t row = 0; row < source.rows; ++row, to += bytes) {
    std::memcpy(to, source.row_range(row, 1).data, bytes);
  }
}

void CpuBackend::fill_zero(const TensorView& view) {
  const std::size_t bytes = static_cast<std::size_t>(view.cols) * size_of(view.dtype);
  for (std::int64_t row = 0; row < view.rows; ++row) {
    std::memset(view.row_range(row, 1).data, 0, bytes);
  }
}

void CpuBackend::copy(const TensorView& source, const TensorView& destination) {
  use_threads();
  cpu::copy(source, destination);
}

void CpuBackend::quantize(const TensorView& source, bool transpose, const RandomKey& key,
                          const TensorView& state, QuantizedOperand& operand) {
  use_threads();
  cpu::quantize(source, transpose, key, state, operand);
}

void CpuBackend::smoothing_factors(const Transform& transform, const TensorView& a,
                                   bool transpose_a, const TensorView& b, bool transpose_b,
                                   const TensorView& factors) {
  cpu::smoothing_factors(transform, a, transpose_a, b, transpose_b, factors);
}

void CpuBackend::dequantize(const QuantizedOperand& operand, bool transpose,
                            const TensorView& destination) {
  use_threads();
  cpu::dequantize(operand, transpose, destination);
}

void CpuBackend::update_delayed_scale(const QuantSpec& spec, const TensorView& state) {
  cpu::update_delayed_scale(spec, state);
}

void CpuBackend::gemm(const GemmSpec& spec, const QuantizedOperand& a, const QuantizedOperand& b,
                      const TensorView& bias, bool accumulate, const TensorView& d) {
  use_threads();
  cpu::gemm(spec, a, b, bias, accumulate, d);
}

void CpuBackend::compensate(const QuantizedOperand& a, const TensorView& a_source, bool transpose_a,
                            const QuantizedOperand& b, const TensorView& b_source, bool transpose_b,
                            const TensorView& d) {
  use_threads();
  cpu::compensate(a, a_source, transpose_a, b, b_source, transpose_b, d);
}

void CpuBackend::operand_statistics(const TensorView& source, bool transpose,
                                    const QuantizedOperand& operand, const TensorView& record) {
  use_threads();
  Checks("operand_statistics").vector("record", record, sizeof(OperandStatistics), {DType::u8});
  const OperandStatistics statistics = cpu::operand_statistics(source, transpose, operand);
  std::memcpy(record.data, &statistics, sizeof statistics);
}

void CpuBackend::embedding_forward(const TensorView& tokens, const TensorView& table,
                                   const TensorView& out) {
  use_threads();
  cpu::embedding_forward(tokens, table, out);
}

void CpuBackend::embedding_backward(const TensorView& tokens, const TensorView& dout,
                                    const TensorView& dtable) {
  use_threads();
  cpu::embedding_backward(tokens, dout, dtable);
}

void CpuBackend::rmsnorm_forward(const TensorView& x, const TensorView& weight, float epsilon,
                                 const TensorView& y, const TensorView& rstd) {
  use_threads();
  cpu::rmsnorm_forward(x, weight, epsilon, y, rstd);
}

void CpuBackend::rmsnorm_backward(const TensorView& dy, const TensorView& x,
                                  const TensorView& weight, const TensorView& rstd,
                                  const TensorView& dx, const TensorView& dweight) {
  use_threads();
  cpu::rmsnorm_backward(dy, x, weight, rstd, dx, dweight);
}

void CpuBackend::add(const TensorView& a, const TensorView& b, const TensorView& sum) {
  use_threads();
  cpu::add(a, b, sum);
}

void CpuBackend::bias_backward(const TensorView& dy, const TensorView& dbias) {
  use_threads();
  cpu::bias_backward(dy, dbias);
}

void CpuBackend::rope(const TensorView& x, const TensorView& positions, const TensorView& cosine,
                      const TensorView& sine, std::int64_t head_dim, bool inverse) {
  use_threads();
  cpu::rope(x, positions, cosine, sine, head_dim, inverse);
}

void CpuBackend::attention_forward(const AttentionShape& shape, const TensorView& q,
                                   const TensorView& k, const TensorView& v,
                                   const TensorView& document_start, const TensorView& out,
                                   const TensorView& lse) {
  use_threads();
  cpu::attention_forward(shape, q, k, v, document_start, out, lse);
}

void CpuBackend::attention_backward(const AttentionShape& shape, const TensorView& q,
                                    const TensorView& k, const TensorView& v,
                                    const TensorView& document_start, const TensorView& out,
                                    const TensorView& lse, const TensorView& dout,
                                    const TensorView& dq, const TensorView& dk,
                                    const TensorView& dv) {
  use_threads();
  cpu::attention_backward(shape, q, k, v, document_start, out, lse, dout, dq, dk, dv);
}

void CpuBackend::attention_cached(const AttentionShape& shape, const TensorView& q,
                                  const TensorView& k, const TensorView& v,
                                  const TensorView& query_start, const TensorView& cached,
                                  const TensorView& k_cache, const TensorView& v_cache,
                                  const TensorView& out) {
  use_threads();
  cpu::attention_cached(shape, q, k, v, query_start, cached, k_cache, v_cache, out);
}

void CpuBackend::swiglu_forward(const TensorView& gate_up, const TensorView& out) {
  use_threads();
  cpu::swiglu_forward(gate_up, out);
}

void CpuBackend::swiglu_backward(const TensorView& gate_up, const TensorView& dout,
                                 const TensorView& dgate_up) {
  use_threads();
  cpu::swiglu_backward(gate_up, dout, dgate_up);
}

void CpuBackend::cross_entropy(const TensorView& logits, const TensorView& targets,
                               const TensorView& weights, const TensorView& scalars,
                               const TensorView& token_loss, const TensorView& dlogits) {
  use_threads();
  cpu::cross_entropy(logits, targets, weights, scalars, token_loss, dlogits);
}

void CpuBackend::argmax(const TensorView& logits, const TensorView& out) {
  use_threads();
  cpu::argmax(logits, out);
}

void CpuBackend::accumulate_square_sum(const TensorView& gradient, const TensorView& scalars) {
  use_threads();
  cpu::accumulate_square_sum(gradient, scalars);
}

void CpuBackend::begin_update(const AdamWSpec& spec, const TensorView& scalars) {
  cpu::begin_update(spec, scalars);
}

void CpuBackend::adamw(const AdamWSpec& spec, const TensorView& scalars, float decay_mask,
                       const AdamWTensors& tensors) {
  use_threads();
  cpu::adamw(spec, scalars, decay_mask, tensors);
}

}  // namespace fp8lab::cpu
