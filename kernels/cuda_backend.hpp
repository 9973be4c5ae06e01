// The CUDA kernels as a Backend, with the bits of the CPU emulator, on a Hopper GPU.
#pragma once

#include <memory>
#include <string>

#include "emulation/backend.hpp"
#include "kernels/library/gemm_cublaslt.hpp"
#include "kernels/runtime/arena.hpp"
#include "kernels/runtime/context.hpp"
#include "kernels/runtime/label_range.hpp"
#include "kernels/runtime/staging.hpp"

namespace fp8lab::cuda {

/// How repeated operations are launched; the bits are the same.
enum class Launches : std::uint8_t {
  graphs,  ///< Backend::repeat() captures and replays CUDA graphs
  single,  ///< each kernel separately
};

/// Enqueues every operation on one stream of one device.
class CudaBackend : public Backend {
 public:
  /// Throws Error if the device is missing or not of compute capability 9.0.
  explicit CudaBackend(int device, Launches launches = Launches::graphs);
  ~CudaBackend() override;

  std::string name() const override { return "cuda"; }
  std::string device() const override;
  DType storage(DType wanted) const override { return wanted; }
  bool is_on_host() const override { return false; }

  TensorView allocate(DType dtype, std::int64_t rows, std::int64_t cols) override;
  std::size_t allocation_bytes(DType dtype, std::int64_t rows, std::int64_t cols) const override;
  void reserve(std::size_t bytes) override;
  std::optional<std::size_t> free_bytes() const override;
  std::size_t memory_mark() const override { return memory_.count(); }
  void release_to(std::size_t mark) override;
  std::size_t memory_bytes() const override { return memory_.bytes(); }
  void upload(const TensorView& destination, const void* source) override;
  void download_all(std::span<const Download> downloads) override;
  void fill_zero(const TensorView& view) override;
  void synchronize() override { context_.synchronize(); }
  /// Enqueues later operations on `stream`, a cudaStream_t (Context::use).
  void enqueue_on(void* stream) { context_.use(static_cast<cudaStream_t>(stream)); }
  /// Runs `enqueue` at the first call, captures it as a graph at the second, unless the workspace
  /// has moved in between, and replays the graph from then on.
  void repeat(std::unique_ptr<Recorded>& recorded, const std::function<void()>& enqueue) override;

  using Backend::run;
  using Backend::supports;
#define FP8LAB_OPERATION(Name)                          \
  Support supports(const ops::Name& op) const override; \
  void run(const ops::Name& op) override;
  FP8LAB_FOR_EACH_OPERATION(FP8LAB_OPERATION)
#undef FP8LAB_OPERATION
#define FP8LAB_COMPOSITE(Name)                          \
  Support supports(const ops::Name& op) const override; \
  void run(const ops::Name& op) override;
  FP8LAB_FOR_EACH_COMPOSITE(FP8LAB_COMPOSITE)
#undef FP8LAB_COMPOSITE

 protected:
  Context context_;

 private:
  /// Shows the label as a range to profilers. A replayed graph is within the range of its call.
  void label_changed() override { range_.enter(label()); }

  Arena memory_;
  Staging staging_;
  Launches launches_;
  LabelRange range_;
};

/// A CudaBackend that computes GEMMs by cuBLASLt: the same bits, but the library refuses more.
class CublasLtBackend final : public CudaBackend {
 public:
  /// Throws as CudaBackend does.
  explicit CublasLtBackend(int device, Launches launches = Launches::graphs);

  std::string device() const override;
  Support supports(const ops::Gemm& op) const override;
  using CudaBackend::run;
  using CudaBackend::supports;
  void run(const ops::Gemm& op) override;

  /// Names the library and the algorithm that it used for the last GEMM.
  const std::string& gemm_algorithm() const { return gemm_algorithm_; }

 private:
  CublasLt library_;
  std::string gemm_algorithm_;
};

/// The implementation of GEMMs. Both give the bits of the CPU emulator; cuBLASLt refuses more.
enum class GemmImplementation : std::uint8_t { own, cublaslt };

/// Creates a CudaBackend, or a CublasLtBackend, on device 0.
std::unique_ptr<Backend> make_cuda_backend(
    GemmImplementation implementation = GemmImplementation::own,
    Launches launches = Launches::graphs);

}  // namespace fp8lab::cuda
