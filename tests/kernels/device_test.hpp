// Runs an operation on the CPU and on the device with the same bytes and compares every byte.
#pragma once

#include <catch2/catch.hpp>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <initializer_list>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "emulation/base/tensor_view.hpp"
#include "kernels/runtime/context.hpp"
#include "kernels/runtime/cuda_handles.hpp"
#include "tests/emulation/cpu/matrix.hpp"

namespace fp8lab::test {

/// The context of the tests; null, with a message that ctest takes for a skip, where no device is.
inline cuda::Context* device_context() {
  static const std::unique_ptr<cuda::Context> context = [] {
    int count = 0;
    const bool found = cudaGetDeviceCount(&count) == cudaSuccess && count > 0;
    return found ? std::make_unique<cuda::Context>(0) : nullptr;
  }();
  if (context == nullptr) WARN("skipped: no CUDA device");
  return context.get();
}

/// What random bits a matrix is filled with.
enum class Fill : std::uint8_t {
  ordinary,   ///< uniform in (-3, 3)
  difficult,  ///< ordinary with NaN, infinities, subnormals, zeros of both signs, large numbers
  any_bits,   ///< every bit pattern of the type
};

/// Where the rows of a matrix lie, so that alignment varies.
struct Layout {
  std::int64_t padding = 0;  ///< elements between rows
  std::int64_t offset = 0;   ///< elements before the first row
};

/// A matrix that exists twice, in host and in device memory. The gaps of its layout hold random
/// bytes, which no operation may change.
class Twin {
 public:
  Twin(DType dtype, std::int64_t rows, std::int64_t cols, Fill fill, std::uint32_t seed,
       Layout layout = {})
      : dtype_(dtype), rows_(rows), cols_(cols), layout_(layout) {
    const std::int64_t elements = layout.offset + rows * stride() + 1;
    host_.resize(static_cast<std::size_t>(elements) * size_of(dtype));
    generator_.seed(seed);
    for (std::byte& byte : host_) byte = static_cast<std::byte>(generator_());
    for (std::int64_t i = 0; i < rows * cols && fill != Fill::any_bits; ++i) {
      set(i / cols, i % cols, value(fill));
    }
    device_ = std::make_unique<cuda::DeviceArray<std::byte>>(host_.size());
  }

  /// Writes an element of the host copy; to be called before upload().
  void set(std::int64_t row, std::int64_t col, double value) {
    Matrix element(dtype_, 1, 1);
    element.set(0, value);
    std::memcpy(host_.data() + byte_of(row, col), element.bytes().data(), size_of(dtype_));
  }

  /// Waits for the device: a copy from pageable memory may return before it has arrived there, and
  /// the context's stream does not wait for it.
  void upload() {
    cuda::check(cudaMemcpy(device_->data(), host_.data(), host_.size(), cudaMemcpyHostToDevice),
                "cudaMemcpy");
    cuda::check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  }
  TensorView host() { return view(host_.data()); }
  TensorView device() { return view(device_->data()); }

  /// Fails with the first differing element and both bit patterns.
  void check_equal(const std::string& name) const {
    std::vector<std::byte> bytes(host_.size());
    cuda::check(cudaMemcpy(bytes.data(), device_->data(), bytes.size(), cudaMemcpyDeviceToHost),
                "cudaMemcpy");
    const std::size_t size = size_of(dtype_);
    std::size_t wrong = 0;
    std::string first;
    for (std::size_t at = 0; at < bytes.size(); at += size) {
      if (std::memcmp(&bytes[at], &host_[at], size) == 0) continue;
      if (wrong++ == 0) {
        first = place(static_cast<std::int64_t>(at / size)) + ": cpu " + hex(&host_[at]) +
                ", device " + hex(&bytes[at]);
      }
    }
    INFO(name << " " << name_of(dtype_) << " (" << rows_ << ", " << cols_ << "), padding "
              << layout_.padding << ", offset " << layout_.offset << ", first difference at "
              << first);
    CHECK(wrong == 0);
  }

 private:
  std::int64_t stride() const { return cols_ + layout_.padding; }
  std::size_t byte_of(std::int64_t row, std::int64_t col) const {
    return static_cast<std::size_t>(layout_.offset + row * stride() + col) * size_of(dtype_);
  }
  TensorView view(std::byte* data) const {
    return {data + byte_of(0, 0), dtype_, rows_, cols_, stride()};
  }

  double value(Fill fill) {
    static constexpr double kSpecial[] = {HUGE_VAL,   -HUGE_VAL, NAN,  0x1p-130, -0x1p-133,
                                          0x1.8p-149, 0.0,       -0.0, 3e38,     -1e-20};
    const std::uint32_t bits = static_cast<std::uint32_t>(generator_());
    if (fill == Fill::difficult && bits % 29 == 0) return kSpecial[bits / 29 % 10];
    return 3.0 * (static_cast<double>(bits) * 0x1p-31 - 1.0);
  }

  std::string place(std::int64_t element) const {
    const std::int64_t inside = element - layout_.offset;
    if (inside < 0 || inside / stride() >= rows_ || inside % stride() >= cols_) {
      return "element " + std::to_string(inside) + " outside the matrix";
    }
    return "(" + std::to_string(inside / stride()) + ", " + std::to_string(inside % stride()) + ")";
  }

  std::string hex(const std::byte* element) const {
    std::uint64_t bits = 0;
    std::memcpy(&bits, element, size_of(dtype_));
    char text[24];
    std::snprintf(text, sizeof text, "0x%0*llX", static_cast<int>(2 * size_of(dtype_)),
                  static_cast<unsigned long long>(bits));
    return text;
  }

  DType dtype_;
  std::int64_t rows_, cols_;
  Layout layout_;
  std::mt19937 generator_;
  std::vector<std::byte> host_;
  std::unique_ptr<cuda::DeviceArray<std::byte>> device_;
};

using Named = std::pair<const char*, Twin*>;

/// Uploads the tensors, runs the operation on both sides and compares all tensors.
template <class OnCpu, class OnDevice>
void compare(cuda::Context& context, std::initializer_list<Named> tensors, const OnCpu& on_cpu,
             const OnDevice& on_device) {
  for (const Named& tensor : tensors) tensor.second->upload();
  on_cpu();
  on_device();
  context.synchronize();
  for (const Named& tensor : tensors) tensor.second->check_equal(tensor.first);
}

}  // namespace fp8lab::test
