// A backend that computes on tensors of the caller.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "emulation/recording/stand_in.hpp"

namespace fp8lab::interface {

/// One backend, which all layers of a device share. Its functions may be called by several threads.
class Device {
 public:
  /// `name` and `index` as for make_guest_backend().
  Device(const std::string& name, int index, int threads);

  /// The backend for as long as a call runs: no other thread uses it meanwhile.
  class Turn {
   public:
    /// Later operations are enqueued on `stream`, a cudaStream_t of the caller.
    Turn(Device& device, void* stream);
    Backend& backend() const { return *device_.backend_; }

   private:
    Device& device_;
    std::lock_guard<std::recursive_mutex> lock_;
  };

 private:
  friend class SmallMemory;

  std::unique_ptr<Backend> backend_;
  /// Recursive: a layer that is refused gives its memory back during the turn that made it.
  std::recursive_mutex mutex_;
  std::map<std::size_t, std::vector<TensorView>> free_;  ///< blocks by size in bytes
};

/// Memory for the few numbers that a layer keeps from call to call: a backend that passes every
/// operation on, whose allocations are blocks that the device takes back when this is destroyed.
/// Use it during a Turn only.
class SmallMemory final : public PassThrough {
 public:
  explicit SmallMemory(Device& device);
  ~SmallMemory() override;
  SmallMemory(const SmallMemory&) = delete;
  SmallMemory& operator=(const SmallMemory&) = delete;

  TensorView allocate(DType dtype, std::int64_t rows, std::int64_t cols) override;
#define FP8LAB_OPERATION(Name) \
  void run(const ops::Name& op) override { original().run(op); }
  FP8LAB_FOR_EACH_OPERATION(FP8LAB_OPERATION)
  FP8LAB_FOR_EACH_COMPOSITE(FP8LAB_OPERATION)
#undef FP8LAB_OPERATION

 private:
  Device& device_;
  std::vector<TensorView> blocks_;
};

}  // namespace fp8lab::interface
