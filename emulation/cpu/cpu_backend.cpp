#include "emulation/cpu/cpu_backend.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <limits>

#include <fmt/format.h>
#include <omp.h>

#include "emulation/base/default_threads.hpp"
#include "emulation/base/error.hpp"
#include "emulation/base/machine.hpp"
#include "emulation/cpu/operations.hpp"
#include "emulation/cpu/simd/target.hpp"
#include "emulation/ops/gemm/gemm_plan.hpp"
#include "emulation/reference/start_threads.hpp"

namespace fp8lab::cpu {
namespace {

constexpr std::size_t kAlignment = 64;
constexpr std::size_t kPage = std::size_t{2} << 20;  ///< size of a large page on x86-64 and ARM

/// Returns "model name" of the first processor, or the architecture if /proc/cpuinfo has no name.
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

/// Only what quantizes or multiplies codes can be refused; all other operations are supported.
template <class Op>
Support refusal(const Op&) {
  return {};
}

Support refusal(const ops::Quantize& op) { return supports_quantization(op.operand.spec); }

Support refusal(const ops::Gemm& op) { return {gemm_refusal(op.spec, op.a.spec, op.b.spec)}; }

Support refusal(const ops::QuantizedAttentionForward& op) { return op.support(); }
Support refusal(const ops::QuantizedAttentionBackward& op) { return op.support(); }
Support refusal(const ops::QuantizedAttentionCached& op) { return op.support(); }

}  // namespace

struct CpuBackend::Memory {
  explicit Memory(std::size_t size)
      : data(std::aligned_alloc(size < kPage ? kAlignment : kPage, size)), bytes(size) {
    if (data == nullptr) {
      throw RuntimeFailure("allocate: no memory for " + std::to_string(bytes) + " bytes");
    }
    if (size >= kPage) ::madvise(data, bytes, MADV_HUGEPAGE);  // advice only
    auto* const begin = static_cast<std::byte*>(data);
    // The first write to a page is slow: spread the pages over the threads.
#pragma omp parallel for schedule(static) if (size > kPage)
    for (std::size_t at = 0; at < size; at += kPage) {
      std::memset(begin + at, 0, std::min(kPage, size - at));
    }
  }
  ~Memory() { std::free(data); }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  void* data;
  std::size_t bytes;
};

CpuBackend::CpuBackend(int threads)
    : threads_(checked_threads(threads, "threads") == 0 ? default_threads() : threads),
      memory_limit_(static_cast<std::size_t>(machine_memory())) {
  active_target();  // throws here, and not in the middle of a run, if no kernels fit the processor
  start_threads(threads_);
}

CpuBackend::~CpuBackend() = default;

std::unique_ptr<Backend> make_cpu_backend(int threads) {
  return std::make_unique<CpuBackend>(threads);
}

void CpuBackend::use_threads() const { omp_set_num_threads(threads_); }

std::string CpuBackend::device() const {
  return processor_name() + ", " + std::string(name_of(active_target())) + ", " +
         std::to_string(threads_) + (threads_ == 1 ? " thread" : " threads");
}

std::size_t CpuBackend::allocation_bytes(DType dtype, std::int64_t rows, std::int64_t cols) const {
  const auto limit = std::numeric_limits<std::int64_t>::max() / 16;
  if (rows < 0 || cols < 0 || (cols > 0 && rows > limit / cols)) {
    throw Error("allocate: no tensor of shape (" + std::to_string(rows) + ", " +
                std::to_string(cols) + ")");
  }
  const std::size_t bytes = static_cast<std::size_t>(rows * cols) * size_of(dtype);
  return (bytes / kAlignment + 1) * kAlignment;
}

TensorView CpuBackend::allocate(DType dtype, std::int64_t rows, std::int64_t cols) {
  const std::size_t padded = allocation_bytes(dtype, rows, cols);
  // Memory is written when it is allocated. If the machine lacked it, the system's out-of-memory
  // killer would end the process instead of an allocation failing, so check first.
  if (held_ + padded > memory_limit_) {
    require_memory(
        static_cast<double>(held_ + padded),
        fmt::format("allocate: a tensor of shape ({}, {}), with all others,", rows, cols),
        static_cast<double>(memory_limit_));
  }
  use_threads();
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

void CpuBackend::download_all(std::span<const Download> downloads) {
  for (const auto& [destination, source] : downloads) {
    const std::size_t bytes = static_cast<std::size_t>(source.cols) * size_of(source.dtype);
    auto* to = static_cast<std::byte*>(destination);
    for (std::int64_t row = 0; row < source.rows; ++row, to += bytes) {
      std::memcpy(to, source.row_range(row, 1).data, bytes);
    }
  }
}

void CpuBackend::fill_zero(const TensorView& view) {
  const std::size_t bytes = static_cast<std::size_t>(view.cols) * size_of(view.dtype);
  for (std::int64_t row = 0; row < view.rows; ++row) {
    std::memset(view.row_range(row, 1).data, 0, bytes);
  }
}

#define FP8LAB_OPERATION(Name)                                                    \
  Support CpuBackend::supports(const ops::Name& op) const { return refusal(op); } \
  void CpuBackend::run(const ops::Name& op) {                                     \
    use_threads();                                                                \
    cpu::run(op);                                                                 \
  }
FP8LAB_FOR_EACH_OPERATION(FP8LAB_OPERATION)
#undef FP8LAB_OPERATION

}  // namespace fp8lab::cpu
