// Owned handles of CUDA resources; every status is checked and named.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <string>

#include "emulation/base/error.hpp"

namespace fp8lab::cuda {

/// Throws RuntimeFailure with the name of the call if it failed.
inline void check(cudaError_t status, const char* call) {
  if (status != cudaSuccess) {
    throw RuntimeFailure(std::string(call) + ": " + cudaGetErrorString(status));
  }
}

/// `count` elements of device memory.
template <class T>
class DeviceArray {
 public:
  explicit DeviceArray(std::size_t count) : count_(count) {
    check(cudaMalloc(reinterpret_cast<void**>(&data_), count * sizeof(T)), "cudaMalloc");
  }
  ~DeviceArray() { cudaFree(data_); }
  DeviceArray(const DeviceArray&) = delete;
  DeviceArray& operator=(const DeviceArray&) = delete;

  T* data() const { return data_; }
  std::size_t size() const { return count_; }

 private:
  T* data_ = nullptr;
  std::size_t count_;
};

}  // namespace fp8lab::cuda
