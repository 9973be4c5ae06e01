// What every launch needs: the stream, scratch memory and a place to report bad data.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>

#include "kernels/runtime/cuda_handles.hpp"

namespace fp8lab::cuda {

/// Bits that kernels set for data that the CPU backend refuses with an Error. A launch cannot
/// throw for what only the device sees; Context::synchronize does, once the stream is drained.
enum class Fault : std::uint32_t {
  token_outside_table = 1u << 0,
  target_outside_vocabulary = 1u << 1,
  document_start = 1u << 2,
  position_outside_table = 1u << 3,
  cached_tokens = 1u << 4,
};

class Context;

/// Work that operations put off, to do it for many at once: what is left of results that the host
/// alone reads.
class Postponed {
 public:
  virtual ~Postponed() = default;
  /// Enqueues it; nothing is put off then.
  virtual void enqueue(Context& context) = 0;
};

/// One stream of one device, current on the calling thread. Not copyable; outlives its launches.
class Context {
 public:
  /// Throws Error when the device is missing or is not of compute capability 9.0 (sm_90a code).
  explicit Context(int device);
  ~Context();
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;

  cudaStream_t stream() const { return stream_; }
  int multiprocessors() const { return multiprocessors_; }
  /// "NVIDIA H200, CUDA 13.0".
  const std::string& description() const { return description_; }

  /// At least `bytes` of device memory, 256-byte aligned, valid for the operations enqueued until
  /// the next call. Grows by reallocation, so that a training step allocates in its first pass
  /// only.
  void* workspace(std::size_t bytes);
  /// The same beside it, for a tensor that an operation makes of its source.
  void* tensor_memory(std::size_t bytes);
  /// The same for what Postponed work will read: it stays until that is enqueued, which comes
  /// before a call for more bytes than ever.
  void* postponed_memory(std::size_t bytes);
  /// What operations put off: one kind of work, made by the first operation that needs it.
  std::unique_ptr<Postponed>& postponed() { return postponed_; }
  /// Enqueues what is put off, if anything. Comes before whatever reads or writes such a result
  /// besides the operation that makes it, and around each recording.
  void catch_up();
  /// The core of numerics::hadamard_multiply of this order, (order, order); kept.
  const float* hadamard_core(int order);
  /// kSignals device words for each multiprocessor. They are zero between kernels: one that sets a
  /// word sets it back.
  std::uint32_t* signals() const { return signals_->data(); }
  static constexpr int kSignals = 16;
  /// Device word of Fault bits.
  std::uint32_t* faults() const { return faults_->data(); }

  /// Waits for the stream, and for what is put off; throws RuntimeFailure for a failed kernel and
  /// Error for a Fault.
  void synchronize();

 private:
  /// `memory` with at least `bytes`.
  void* grown(std::unique_ptr<DeviceArray<std::byte>>& memory, std::size_t bytes);

  cudaStream_t stream_ = nullptr;
  int multiprocessors_ = 0;
  std::string description_;
  std::unique_ptr<DeviceArray<std::uint32_t>> faults_;
  std::unique_ptr<DeviceArray<std::uint32_t>> signals_;
  std::unique_ptr<DeviceArray<std::byte>> workspace_, tensor_memory_, postponed_memory_;
  std::unique_ptr<Postponed> postponed_;
  std::map<int, std::unique_ptr<DeviceArray<float>>> hadamard_cores_;
};

/// Throws RuntimeFailure when the last launch could not be made; `kernel` names it.
void check_launch(const char* kernel);

}  // namespace fp8lab::cuda
