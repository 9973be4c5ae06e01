// Common parts of the benchmarks of CUDA kernels: a device, input values, and timing on its stream.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/runtime/context.hpp"

namespace fp8lab {

/// Number of warm-up measurements, which are discarded.
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

/// Uses device 0. Throws Error if there is none.
class DeviceBench {
 public:
  DeviceBench();

  cuda::Context& context() { return context_; }

  /// Enqueues a fill of `bytes` bytes at `to` with bell-shaped BF16 values, repeated periodically.
  void fill(std::byte* to, std::size_t bytes);

  /// Returns the seconds from the start to the end of the work that `action` enqueues, and waits
  /// for it. A preceding write evicts the L2 cache and hides the launch latency.
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

/// Returns the middle value; for an even number of values, the higher of the middle two.
double median(std::vector<double> values);

}  // namespace fp8lab
