// The CPU emulator as a Backend: bit-exact tensor-core arithmetic, no GPU needed.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "emulation/backend.hpp"

namespace fp8lab::cpu {

/// Runs every operation to completion on the calling thread and `threads` OpenMP threads. The bits
/// do not depend on the number of threads or the SIMD target.
class CpuBackend final : public Backend {
 public:
  /// `threads` = 0: as many threads as this process may use. Throws Error if `threads` is negative
  /// or above thread_limit().
  explicit CpuBackend(int threads);
  ~CpuBackend() override;

  std::string name() const override { return "cpu"; }
  std::string device() const override;
  DType storage(DType wanted) const override { return wanted; }
  bool is_on_host() const override { return true; }

  TensorView allocate(DType dtype, std::int64_t rows, std::int64_t cols) override;
  std::size_t allocation_bytes(DType dtype, std::int64_t rows, std::int64_t cols) const override;
  std::size_t memory_mark() const override { return memory_.size(); }
  void release_to(std::size_t mark) override;
  std::size_t memory_bytes() const override;
  void upload(const TensorView& destination, const void* source) override;
  void download_all(std::span<const Download> downloads) override;
  void fill_zero(const TensorView& view) override;
  void synchronize() override {}

  using Backend::run;
  using Backend::supports;
#define FP8LAB_OPERATION(Name)                          \
  Support supports(const ops::Name& op) const override; \
  void run(const ops::Name& op) override;
  FP8LAB_FOR_EACH_OPERATION(FP8LAB_OPERATION)
#undef FP8LAB_OPERATION

 private:
  struct Memory;

  /// Makes OpenMP regions of the calling thread use `threads_` threads.
  void use_threads() const;

  int threads_ = 1;
  std::vector<std::unique_ptr<Memory>> memory_;
  std::size_t held_ = 0;  ///< bytes of memory_
  std::size_t memory_limit_ = 0;
};

/// Returns a CpuBackend, see its constructor.
std::unique_ptr<Backend> make_cpu_backend(int threads);

}  // namespace fp8lab::cpu
