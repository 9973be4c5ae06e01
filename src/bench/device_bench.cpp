#include "src/bench/device_bench.hpp"

#include <algorithm>

#include "src/bench/bell_values.hpp"

namespace fp8lab {
namespace {

constexpr std::size_t kFlushBytes = std::size_t{256} << 20;
constexpr std::int64_t kPoolValues = std::int64_t{1} << 22;

}  // namespace

DeviceEvent::DeviceEvent() { cuda::check(cudaEventCreate(&event_), "cudaEventCreate"); }

DeviceEvent::~DeviceEvent() { cudaEventDestroy(event_); }

void DeviceEvent::record(cudaStream_t stream) {
  cuda::check(cudaEventRecord(event_, stream), "cudaEventRecord");
}

double DeviceEvent::seconds_since(const DeviceEvent& start) const {
  float milliseconds = 0;
  cuda::check(cudaEventElapsedTime(&milliseconds, start.event_, event_), "cudaEventElapsedTime");
  return 1e-3 * static_cast<double>(milliseconds);
}

DeviceBench::DeviceBench() : flushed_(kFlushBytes), pool_(static_cast<std::size_t>(kPoolValues)) {
  const std::vector<std::uint16_t> values = bell_values(kPoolValues);
  cuda::check(cudaMemcpyAsync(pool_.data(), values.data(), values.size() * sizeof(std::uint16_t),
                              cudaMemcpyHostToDevice, context_.stream()),
              "cudaMemcpyAsync");
  context_.synchronize();
}

void DeviceBench::fill(std::byte* to, std::size_t bytes) {
  const std::size_t chunk = pool_.size() * sizeof(std::uint16_t);
  for (std::size_t at = 0; at < bytes; at += chunk) {
    cuda::check(cudaMemcpyAsync(to + at, pool_.data(), std::min(chunk, bytes - at),
                                cudaMemcpyDeviceToDevice, context_.stream()),
                "cudaMemcpyAsync");
  }
}

void DeviceBench::flush() {
  cuda::check(cudaMemsetAsync(flushed_.data(), 0, flushed_.size(), context_.stream()),
              "cudaMemsetAsync");
}

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace fp8lab
