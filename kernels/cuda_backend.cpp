#include "kernels/cuda_backend.hpp"

#include <limits>
#include <optional>

#include "emulation/base/error.hpp"
#include "emulation/ops/gemm/gemm_plan.hpp"
#include "emulation/ops/quantize/operand_checks.hpp"
#include "kernels/gemm/gemm.hpp"
#include "kernels/plan/fusion.hpp"
#include "kernels/pointwise/rmsnorm.hpp"
#include "kernels/quantize/quantize.hpp"
#include "kernels/quantize/quantize_fused.hpp"
#include "kernels/quantize/statistics/operand_statistics.hpp"
#include "kernels/runtime/graph.hpp"
#include "kernels/runtime/operations.hpp"

namespace fp8lab::cuda {
namespace {

constexpr std::size_t kAlignment = 256;

/// Addresses of the context's memory, which change when it grows. A graph contains them.
struct Scratch {
  void *workspace, *tensor, *postponed;

  explicit Scratch(Context& context)
      : workspace(context.workspace(1)),
        tensor(context.tensor_memory(1)),
        postponed(context.postponed_memory(1)) {}
  bool operator==(const Scratch&) const = default;
};

struct RecordedGraph final : Recorded {
  explicit RecordedGraph(const Scratch& memory) : scratch(memory) {}
  Scratch scratch;
  std::optional<Graph> graph;
};

/// Only quantizers, GEMMs and attention on quantized operands can be refused.
template <class Op>
Support refusal(const Op&) {
  return {};
}

Support refusal(const ops::Quantize& op) { return supports_quantization(op.operand.spec); }

Support refusal(const ops::Gemm& op) {
  return {device_gemm_refusal(op.spec, op.a.spec, op.b.spec)};
}

Support refusal(const ops::QuantizedAttentionForward& op) { return op.support(); }
Support refusal(const ops::QuantizedAttentionBackward& op) { return op.support(); }
Support refusal(const ops::QuantizedAttentionCached& op) { return op.support(); }

// The composites with a fused kernel: runs `op` by it. Precondition: fusion_of(op).

void run_fused(Context& context, const ops::AddRmsNormForward& op) { add_rmsnorm(context, op); }

void run_fused(Context& context, const ops::RmsNormBackwardAdd& op) {
  rmsnorm_backward_add(context, op);
}

void run_fused(Context& context, const ops::QuantizeBoth& op) {
  quantize_both(context, op, plan_quantize_both(op.first.spec, op.second.spec).value());
}

void run_fused(Context& context, const ops::MeasureBoth& op) { measure_both(context, op); }

void run_fused(Context& context, const ops::ProduceQuantize& op) {
  produce_quantize(context, op, plan_fusion(op).value());
}

template <class Op>
void run_fused(Context&, const Op&) {
  FP8LAB_ASSERT(false);  // no row of the table of fusions
}

}  // namespace

CudaBackend::CudaBackend(int device, Launches launches) : context_(device), launches_(launches) {}

CudaBackend::~CudaBackend() = default;

std::unique_ptr<Backend> make_cuda_backend(GemmImplementation implementation, Launches launches) {
  if (implementation == GemmImplementation::cublaslt) {
    return std::make_unique<CublasLtBackend>(0, launches);
  }
  return std::make_unique<CudaBackend>(0, launches);
}

std::string CudaBackend::device() const { return context_.description(); }

std::size_t CudaBackend::allocation_bytes(DType dtype, std::int64_t rows, std::int64_t cols) const {
  const auto limit = std::numeric_limits<std::int64_t>::max() / 16;
  if (rows < 0 || cols < 0 || (cols > 0 && rows > limit / cols)) {
    throw Error("allocate: no tensor of shape (" + std::to_string(rows) + ", " +
                std::to_string(cols) + ")");
  }
  const std::size_t bytes = static_cast<std::size_t>(rows * cols) * size_of(dtype);
  return (bytes / kAlignment + 1) * kAlignment;
}

void CudaBackend::reserve(std::size_t bytes) { memory_.reserve(bytes); }

std::optional<std::size_t> CudaBackend::free_bytes() const {
  std::size_t free = 0, total = 0;
  check(cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
  return free;
}

TensorView CudaBackend::allocate(DType dtype, std::int64_t rows, std::int64_t cols) {
  const std::size_t bytes = allocation_bytes(dtype, rows, cols);
  std::byte* const memory = memory_.allocate(bytes);
  check(cudaMemsetAsync(memory, 0, bytes, context_.stream()), "cudaMemsetAsync");
  return {memory, dtype, rows, cols, cols};
}

void CudaBackend::release_to(std::size_t mark) {
  context_.synchronize();
  memory_.release_to(mark);
}

void CudaBackend::upload(const TensorView& destination, const void* source) {
  if (destination.size() == 0) return;
  context_.catch_up();
  const std::size_t size = size_of(destination.dtype);
  staging_.upload(static_cast<std::byte*>(destination.data),
                  static_cast<std::size_t>(destination.row_stride) * size,
                  static_cast<const std::byte*>(source),
                  static_cast<std::size_t>(destination.cols) * size,
                  static_cast<std::size_t>(destination.rows), context_.stream());
}

void CudaBackend::download_all(std::span<const Download> downloads) {
  context_.catch_up();
  Collection collection(staging_, context_.stream());
  for (const auto& [destination, source] : downloads) {
    if (source.size() == 0) continue;
    const std::size_t size = size_of(source.dtype);
    collection.add(static_cast<std::byte*>(destination), static_cast<const std::byte*>(source.data),
                   static_cast<std::size_t>(source.row_stride) * size,
                   static_cast<std::size_t>(source.cols) * size,
                   static_cast<std::size_t>(source.rows));
  }
  collection.finish();
  context_.synchronize();  // throws if a kernel has reported a fault
}

void CudaBackend::fill_zero(const TensorView& view) {
  if (view.size() == 0) return;
  context_.catch_up();
  const std::size_t size = size_of(view.dtype);
  check(cudaMemset2DAsync(view.data, static_cast<std::size_t>(view.row_stride) * size, 0,
                          static_cast<std::size_t>(view.cols) * size,
                          static_cast<std::size_t>(view.rows), context_.stream()),
        "cudaMemset2DAsync");
}

void CudaBackend::repeat(std::unique_ptr<Recorded>& recorded,
                         const std::function<void()>& enqueue) {
  if (launches_ == Launches::single) return enqueue();
  // A graph contains all work that its own operations postpone, and no other.
  context_.catch_up();
  const auto enqueue_whole = [&] {
    enqueue();
    context_.catch_up();
  };
  auto* kept = static_cast<RecordedGraph*>(recorded.get());
  if (kept == nullptr || kept->scratch != Scratch(context_)) {
    // In this first run the operations allocate all memory that they need besides tensors.
    enqueue_whole();
    recorded = std::make_unique<RecordedGraph>(Scratch(context_));
    return;
  }
  if (!kept->graph) {
    try {
      kept->graph.emplace(context_.stream(), enqueue_whole);
    } catch (...) {
      context_.postponed().reset();  // belonged to the aborted capture
      throw;
    }
  }
  kept->graph->launch(context_.stream());
}

#define FP8LAB_OPERATION(Name)                                                     \
  Support CudaBackend::supports(const ops::Name& op) const { return refusal(op); } \
  void CudaBackend::run(const ops::Name& op) { cuda::run(context_, op); }
FP8LAB_FOR_EACH_OPERATION(FP8LAB_OPERATION)
#undef FP8LAB_OPERATION

#define FP8LAB_COMPOSITE(Name)                                             \
  Support CudaBackend::supports(const ops::Name& op) const {               \
    Support support = Backend::supports(op);                               \
    const Fusion* const fusion = support ? fusion_of(op) : nullptr;        \
    if (fusion != nullptr) support.fused_by = fusion->name();              \
    return support;                                                        \
  }                                                                        \
  void CudaBackend::run(const ops::Name& op) {                             \
    fusion_of(op) != nullptr ? run_fused(context_, op) : Backend::run(op); \
  }
FP8LAB_FOR_EACH_COMPOSITE(FP8LAB_COMPOSITE)
#undef FP8LAB_COMPOSITE

CublasLtBackend::CublasLtBackend(int device, Launches launches) : CudaBackend(device, launches) {}

std::string CublasLtBackend::device() const {
  return CudaBackend::device() + ", GEMM by " + cublaslt_version();
}

Support CublasLtBackend::supports(const ops::Gemm& op) const {
  return {cublaslt_refusal(op.spec, op.a.spec, op.b.spec)};
}

void CublasLtBackend::run(const ops::Gemm& op) {
  const GemmPlan plan = plan_gemm(op.spec, op.a.spec, op.b.spec, op.a.k);
  CublasLtGemm gemm(library_, {op.spec, op.a, op.b, op.bias, op.accumulate, op.d}, library_a(plan));
  gemm.prepare(context_, static_cast<std::byte*>(context_.workspace(gemm.scratch_bytes())),
               op.spec.split_k);
  gemm.run(context_);
  gemm_algorithm_ = cublaslt_version() + ": " + gemm.algorithm();
}

}  // namespace fp8lab::cuda
