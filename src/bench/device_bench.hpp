// What the benchmarks of CUDA kernels share: a device, values, and time on its stream.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/runtime/context.hpp"

namespace fp8lab {

/// Measurements before the first that counts.
inline constexpr int kBenchWarmUps = 2;

/// An event of a CUDA stream.
class DeviceEvent {
 public:
  DeviceEvent();
  ~DeviceEvent();
  DeviceEvent(const DeviceEvent&) = delete;
  DeviceEvent& operator=(const DeviceEvent&) = delete;

  void record(cudaStream_t stream);
  double seconds_since(const DeviceEvent& start) const;

 private:
  cudaEvent_t event_ = nullptr;
};

/// Device 0. Throws Error without one.
class DeviceBench {
 public:
  DeviceBench();

  cuda::Context& context() { return context_; }

  /// Enqueues: `bytes` at `to` become bell-shaped BF16 values, the same over and over.
  void fill(std::byte* to, std::size_t bytes);

  /// Seconds from the first to the last of what `action` enqueues, after a write that empties the
  /// L2 cache and also hides the time of the launch. Waits for it.
  template <class Action>
  double seconds_of(const Action& action) {
    flush();
    start_.record(context_.stream());
    action();
    stop_.record(context_.stream());
    context_.synchronize();
    return stop_.seconds_since(start_);
  }

 private:
  void flush();

  cuda::Context context_{0};
  cuda::DeviceArray<std::byte> flushed_;
  cuda::DeviceArray<std::uint16_t> pool_;
  DeviceEvent start_, stop_;
};

/// The middle one; of an even number the higher of the two.
double median(std::vector<double> values);

}  // namespace fp8lab
