#include "src/bench/device_copy.hpp"

#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>

#include "kernels/cuda_backend.hpp"
#include "src/bench/device_bench.hpp"

namespace fp8lab {
namespace {

constexpr std::int64_t kSizes[] = {std::int64_t{1} << 20, std::int64_t{1} << 24,
                                   std::int64_t{1} << 30};

/// Page-locked host memory.
class PageLocked {
 public:
  explicit PageLocked(std::size_t bytes) {
    cuda::check(cudaMallocHost(reinterpret_cast<void**>(&data_), bytes), "cudaMallocHost");
  }
  ~PageLocked() { cudaFreeHost(data_); }
  PageLocked(const PageLocked&) = delete;
  PageLocked& operator=(const PageLocked&) = delete;

  std::byte* data() const { return data_; }

 private:
  std::byte* data_ = nullptr;
};

double seconds_of(const std::function<void()>& action) {
  const auto begin = std::chrono::steady_clock::now();
  action();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

void copy(void* to, const void* from, std::int64_t bytes, cudaMemcpyKind kind) {
  cuda::check(cudaMemcpy(to, from, static_cast<std::size_t>(bytes), kind), "cudaMemcpy");
  cuda::check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
}

/// The buffers for one size.
class Bench {
 public:
  Bench(Backend& backend, std::int64_t bytes, int repeats)
      : backend_(backend),
        bytes_(bytes),
        repeats_(repeats),
        tensor_(backend.allocate(DType::u8, 1, bytes)),
        pageable_(static_cast<std::size_t>(bytes)),
        page_locked_(static_cast<std::size_t>(bytes)) {
    backend.synchronize();
  }

  DeviceCopyRow upload() {
    constexpr cudaMemcpyKind kKind = cudaMemcpyHostToDevice;
    return measure(
        "upload",
        [&] {
          backend_.upload(tensor_, pageable_.data());
          backend_.synchronize();
        },
        [&] { copy(tensor_.data, pageable_.data(), bytes_, kKind); },
        [&] { copy(tensor_.data, page_locked_.data(), bytes_, kKind); });
  }

  DeviceCopyRow download() {
    constexpr cudaMemcpyKind kKind = cudaMemcpyDeviceToHost;
    return measure(
        "download", [&] { backend_.download(pageable_.data(), tensor_); },
        [&] { copy(pageable_.data(), tensor_.data, bytes_, kKind); },
        [&] { copy(page_locked_.data(), tensor_.data, bytes_, kKind); });
  }

 private:
  DeviceCopyRow measure(const char* direction, const std::function<void()>& own,
                        const std::function<void()>& pageable,
                        const std::function<void()>& page_locked) const {
    std::vector<double> own_seconds, pageable_seconds, page_locked_seconds;
    for (int i = -kBenchWarmUps; i < repeats_; ++i) {
      const double of_own = seconds_of(own), of_pageable = seconds_of(pageable);
      const double of_page_locked = seconds_of(page_locked);
      if (i < 0) continue;
      own_seconds.push_back(of_own);
      pageable_seconds.push_back(of_pageable);
      page_locked_seconds.push_back(of_page_locked);
    }
    DeviceCopyRow row{direction, bytes_, speed(own_seconds), speed(pageable_seconds),
                      speed(page_locked_seconds)};
    row.ratio = row.own / row.page_locked;
    return row;
  }

  double speed(const std::vector<double>& seconds) const {
    return 1e-9 * static_cast<double>(bytes_) / median(seconds);
  }

  Backend& backend_;
  std::int64_t bytes_;
  int repeats_;
  TensorView tensor_;
  std::vector<std::byte> pageable_;
  PageLocked page_locked_;
};

}  // namespace

DeviceCopyBench bench_device_copy(int repeats) {
  cuda::CudaBackend backend(0);
  DeviceCopyBench result{backend.device(), {}};
  std::vector<DeviceCopyRow> downloads;
  for (const std::int64_t bytes : kSizes) {
    const std::size_t mark = backend.memory_mark();
    {
      Bench bench(backend, bytes, repeats);
      result.rows.push_back(bench.upload());
      downloads.push_back(bench.download());
    }
    backend.release_to(mark);
  }
  result.rows.insert(result.rows.end(), downloads.begin(), downloads.end());
  return result;
}

}  // namespace fp8lab
