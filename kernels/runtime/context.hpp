// Shared state of all launches: the stream, scratch memory and the flags that report bad data.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>

#include "kernels/runtime/cuda_handles.hpp"

namespace fp8lab::cuda {

/// Bits that kernels set for data that the CPU backend refuses with an Error. A launch cannot throw
/// for data that only the device sees; Context::synchronize throws once the stream is drained.
enum class Fault : std::uint32_t {
  token_outside_table = 1u << 0,
  target_outside_vocabulary = 1u << 1,
  document_start = 1u << 2,
  position_outside_table = 1u << 3,
  cached_tokens = 1u << 4,
};

class Context;

/// Work that operations postpone, to run it for many of them in one launch: the last part of
/// results that only the host reads.
class Postponed {
 public:
  virtual ~Postponed() = default;
  /// Enqueues all postponed work.
  virtual void enqueue(Context& context) = 0;
};

/// One stream of one device, which is current on the calling thread: its own, or the one that use()
/// named last. The destructor waits for it.
class Context {
 public:
  /// Throws Error if the device is missing or is not of compute capability 9.0 (sm_90a code).
  explicit Context(int device);
  ~Context();
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;

  cudaStream_t stream() const { return stream_; }
  /// Makes the device current on the calling thread, and `stream`, which belongs to the caller and
  /// must outlive the next call, the stream of later work. That work runs after all earlier work,
  /// because both use the memory of this context. While `stream` is captured as a graph, the order
  /// is the caller's, and no call may need more memory than calls before the capture did.
  void use(cudaStream_t stream);
  int multiprocessors() const { return multiprocessors_; }
  /// For example "NVIDIA H200, CUDA 13.0".
  const std::string& description() const { return description_; }

  /// Returns at least `bytes` of device memory, aligned to 256 bytes, valid for the
  /// operations enqueued until the next call. It grows by reallocation, so that a training
  /// step allocates in its first pass only.
  void* workspace(std::size_t bytes);
  /// Returns a second such block, for a tensor that an operation derives from its source.
  void* tensor_memory(std::size_t bytes);
  /// Returns a third such block, for the inputs of Postponed work: it stays valid until
  /// that work is enqueued. Precondition: postponed work is enqueued before a call for
  /// more bytes than ever before.
  void* postponed_memory(std::size_t bytes);
  /// The postponed work: one kind, created by the first operation that needs it.
  std::unique_ptr<Postponed>& postponed() { return postponed_; }
  /// Enqueues postponed work, if there is any. Must be called before any other operation reads or
  /// writes such a result, and before and after each graph capture.
  void catch_up();
  /// Returns the core of numerics::hadamard_multiply of this order, (order, order); cached.
  const float* hadamard_core(int order);
  /// Returns kSignals device words for each multiprocessor. They are zero between kernels: a kernel
  /// that sets a word resets it.
  std::uint32_t* signals() const { return signals_->data(); }
  static constexpr int kSignals = 16;
  /// Returns the device word of Fault bits.
  std::uint32_t* faults() const { return faults_->data(); }

  /// Enqueues postponed work and waits for the stream. Throws RuntimeFailure if a kernel
  /// failed, and Error for a Fault.
  void synchronize();

 private:
  /// Returns `memory`, enlarged to at least `bytes`.
  void* grown(std::unique_ptr<DeviceArray<std::byte>>& memory, std::size_t bytes);

  int device_ = 0;
  cudaStream_t own_stream_ = nullptr, stream_ = nullptr;
  cudaEvent_t hand_over_ = nullptr;  ///< the end of all work on a stream before the next one's
  int multiprocessors_ = 0;
  std::string description_;
  std::unique_ptr<DeviceArray<std::uint32_t>> faults_;
  std::unique_ptr<DeviceArray<std::uint32_t>> signals_;
  std::unique_ptr<DeviceArray<std::byte>> workspace_, tensor_memory_, postponed_memory_;
  std::unique_ptr<Postponed> postponed_;
  std::map<int, std::unique_ptr<DeviceArray<float>>> hadamard_cores_;
};

/// Throws RuntimeFailure if the last launch failed; `kernel` is its name in the message.
void check_launch(const char* kernel);

}  // namespace fp8lab::cuda
