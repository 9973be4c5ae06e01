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
#include <utility>

#include "emulation/base/error.hpp"
#include "emulation/base/tensor_view.hpp"
#include "emulation/label.hpp"
#include "emulation/ops/list.hpp"
#include "emulation/ops/quantize/operand_checks.hpp"
#include "emulation/ops/step_scalars.hpp"
#include "emulation/spec/gemm_spec.hpp"
#include "emulation/spec/quant_spec.hpp"

namespace fp8lab {

/// One copy from backend to host: the source tensor, and the host memory that gets its elements in
/// row-major order.
struct Download {
  void* destination = nullptr;
  TensorView source;
};

/// A captured sequence of operations that repeat() can replay, such as a CUDA graph.
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
  virtual bool is_on_host() const = 0;     ///< backend memory is host memory
  /// The type that the backend stores activations and weights in when a recipe asks for `wanted`;
  /// the truth path stores f64.
  virtual DType storage(DType wanted) const = 0;

  // --- memory ---------------------------------------------------------------------------------
  /// A zeroed, contiguous tensor, aligned to 64 bytes. It lives until release_to() frees it, or as
  /// long as the backend.
  virtual TensorView allocate(DType dtype, std::int64_t rows, std::int64_t cols) = 0;
  /// Bytes that allocate() takes for such a tensor, padding included. Throws Error for an invalid
  /// shape.
  virtual std::size_t allocation_bytes(DType dtype, std::int64_t rows, std::int64_t cols) const = 0;
  /// Reserves one contiguous block of `bytes` for the next allocations; does nothing on the host.
  /// Throws RuntimeFailure if the device has not enough memory.
  virtual void reserve(std::size_t) {}
  /// release_to(mark) frees everything that was allocated after memory_mark() returned `mark`, such
  /// as the buffers of one stage.
  virtual std::size_t memory_mark() const = 0;
  virtual void release_to(std::size_t mark) = 0;
  /// Free bytes of the device; empty for a backend in host memory.
  virtual std::optional<std::size_t> free_bytes() const { return std::nullopt; }
  /// Bytes allocated now, counted as allocation_bytes() counts them.
  virtual std::size_t memory_bytes() const = 0;
  /// Copies from host to backend. `source` holds destination.size() elements of the destination's
  /// type. The copy is enqueued like an operation; the caller may reuse `source` at once.
  virtual void upload(const TensorView& destination, const void* source) = 0;
  /// Copies from backend to host after all operations enqueued before, with one wait for all.
  virtual void download_all(std::span<const Download> downloads) = 0;
  void download(void* destination, const TensorView& source) {
    const Download one{destination, source};
    download_all({&one, 1});
  }
  virtual void fill_zero(const TensorView& view) = 0;
  /// Declares the contents of `view` dead: the next access is a write. The memory may be shared.
  virtual void discard(const TensorView&) {}
  virtual void synchronize() = 0;
  /// Runs `enqueue`, or replays what an earlier call captured in `recorded`. `enqueue` may enqueue
  /// operations and fill_zero() only. Precondition of a replay: `enqueue` would enqueue the same
  /// operations with the same settings on the same memory. `recorded` must be destroyed before that
  /// memory is freed.
  virtual void repeat(std::unique_ptr<Recorded>& recorded, const std::function<void()>& enqueue);

  // --- labels ---------------------------------------------------------------------------------
  /// What the next operations are part of. An operation has the label that is set when it is
  /// enqueued; repeat() replays operations without labels of their own.
  const Label& label() const { return label_; }
  void enter(Label label) {
    label_ = std::move(label);
    label_changed();
  }

  // --- operations -----------------------------------------------------------------------------
  // Headers in emulation/ops define what each operation computes and in which order. supports()
  // says why an operation would be refused for any data: it looks at numerics and types only, so
  // views may have no memory.
#define FP8LAB_OPERATION(Name)                             \
  virtual Support supports(const ops::Name& op) const = 0; \
  virtual void run(const ops::Name& op) = 0;
  FP8LAB_FOR_EACH_OPERATION(FP8LAB_OPERATION)
#undef FP8LAB_OPERATION
  // Composites run their operations one after another, unless the backend fuses them.
#define FP8LAB_COMPOSITE(Name)                         \
  virtual Support supports(const ops::Name& op) const; \
  virtual void run(const ops::Name& op);
  FP8LAB_FOR_EACH_COMPOSITE(FP8LAB_COMPOSITE)
#undef FP8LAB_COMPOSITE

 private:
  /// Called after each enter().
  virtual void label_changed() {}

  Label label_;
};

/// Sets a label for as long as it lives, then the one before.
class LabelScope {
 public:
  LabelScope(Backend& backend, Label label) : backend_(backend), before_(backend.label()) {
    backend_.enter(std::move(label));
  }
  ~LabelScope() { backend_.enter(std::move(before_)); }
  LabelScope(const LabelScope&) = delete;
  LabelScope& operator=(const LabelScope&) = delete;

 private:
  Backend& backend_;
  Label before_;
};

}  // namespace fp8lab
