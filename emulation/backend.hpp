// The operations of a training step. The model is written once against this interface; the CPU
// emulator, the CUDA kernels and the double-precision truth path implement it.
//
// Contract. Operations are enqueued in call order on one stream. None returns a scalar to the host:
// amax, scales, clip factor, learning rate, step counters and losses live in backend memory.
// Memory is allocated before the first step. An intermediate rounds to its declared storage type
// whether or not an implementation stores it, so fusion never changes a bit. Shapes are (rows,
// cols) row-major; T is the number of tokens of a micro-batch, B sequences of S tokens, T = B * S.
// All arithmetic is FP32, round to nearest even, in the order that emulation/cpu writes down, and
// each result is rounded once to the storage type of its destination (bf16 or f32; the truth path
// computes and stores f64). Operations throw Error for shapes or types that do not fit.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "emulation/base/error.hpp"
#include "emulation/base/tensor_view.hpp"
#include "emulation/ops/list.hpp"
#include "emulation/ops/operand_checks.hpp"
#include "emulation/ops/step_scalars.hpp"
#include "emulation/spec/gemm_spec.hpp"
#include "emulation/spec/quant_spec.hpp"

namespace fp8lab {

/// A tensor in backend memory, and where its elements go on the host, row after row.
struct Download {
  void* destination = nullptr;
  TensorView source;
};

/// What a backend keeps of operations that are enqueued again and again.
class Recorded {
 public:
  virtual ~Recorded() = default;
};

class Backend {
 public:
  virtual ~Backend() = default;

  // --- identity -------------------------------------------------------------------------------
  virtual std::string name() const = 0;    ///< "cpu", "cuda", "truth"
  virtual std::string device() const = 0;  ///< one line for the run file
  virtual bool is_on_host() const = 0;     ///< memory is that of this machine, not of a device
  /// Storage type for activations and weights of a recipe that asks for `wanted` (truth: f64).
  virtual DType storage(DType wanted) const = 0;

  // --- memory ---------------------------------------------------------------------------------
  /// Zeroed, 64-byte aligned, contiguous; lives until released or as long as the backend.
  virtual TensorView allocate(DType dtype, std::int64_t rows, std::int64_t cols) = 0;
  /// Bytes that allocate() takes for such a tensor, with what its alignment adds. Throws Error for
  /// a shape that no tensor can have.
  virtual std::size_t allocation_bytes(DType dtype, std::int64_t rows, std::int64_t cols) const = 0;
  /// Makes room for the next allocations, `bytes` in all, where that is dear: a device gets them in
  /// one piece. Throws RuntimeFailure where it lacks them.
  virtual void reserve(std::size_t) {}
  /// Frees everything allocated after memory_mark() returned `mark`: the buffers of one stage.
  virtual std::size_t memory_mark() const = 0;
  virtual void release_to(std::size_t mark) = 0;
  /// Bytes that a device has left for allocations; nothing for memory of the host.
  virtual std::optional<std::size_t> free_bytes() const { return std::nullopt; }
  /// Bytes of what is allocated now, as allocation_bytes() counts it.
  virtual std::size_t memory_bytes() const = 0;
  /// Host to backend; `source` holds view.size() elements of the view's type. The copy is enqueued
  /// like an operation; `source` may be reused at once.
  virtual void upload(const TensorView& destination, const void* source) = 0;
  /// Backend to host, after everything enqueued before: waits once for all of them.
  virtual void download_all(std::span<const Download> downloads) = 0;
  void download(void* destination, const TensorView& source) {
    const Download one{destination, source};
    download_all({&one, 1});
  }
  virtual void fill_zero(const TensorView& view) = 0;
  /// Nobody reads what is in `view`, which others may use, before writing it again.
  virtual void discard(const TensorView&) {}
  virtual void synchronize() = 0;
  /// Enqueues what `enqueue` enqueues: operations and fill_zero() alone. A backend may keep it in
  /// `recorded`, and when it is given that again, enqueue the same without a call of `enqueue`. So
  /// the caller brings a `recorded` back only where `enqueue` would do the same once more, with the
  /// same settings in the same memory, and lets it go before the memory.
  virtual void repeat(std::unique_ptr<Recorded>& recorded, const std::function<void()>& enqueue);

  // --- operations -----------------------------------------------------------------------------
  // What each does, and the order of its arithmetic, stands in its header in emulation/ops.
  // supports() says why an operation would be refused whatever the data: it looks at numerics and
  // types, and views may be without memory.
#define FP8LAB_OPERATION(Name)                             \
  virtual Support supports(const ops::Name& op) const = 0; \
  virtual void run(const ops::Name& op) = 0;
  FP8LAB_FOR_EACH_OPERATION(FP8LAB_OPERATION)
#undef FP8LAB_OPERATION
  // One operation after the other, unless a backend does them in one pass.
#define FP8LAB_COMPOSITE(Name)                         \
  virtual Support supports(const ops::Name& op) const; \
  virtual void run(const ops::Name& op);
  FP8LAB_FOR_EACH_COMPOSITE(FP8LAB_COMPOSITE)
#undef FP8LAB_COMPOSITE
};

}  // namespace fp8lab
