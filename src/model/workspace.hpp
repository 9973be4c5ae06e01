// Buffers that layers use one after another: reserved by all, allocated once at the largest size.
#pragma once

#include <algorithm>
#include <cstddef>
#include <map>
#include <string>

#include "emulation/backend.hpp"

namespace fp8lab {

class Workspace {
 public:
  explicit Workspace(Backend& backend) : backend_(backend) {}

  /// Declares a use of buffer `name` with this extent. Before allocate().
  void reserve(const std::string& name, DType dtype, std::int64_t rows, std::int64_t cols) {
    FP8LAB_ASSERT(bytes_.empty());
    auto& size = sizes_[name];
    size = std::max(size, rows * cols * static_cast<std::int64_t>(size_of(dtype)));
  }

  void allocate() {
    for (const auto& [name, size] : sizes_) bytes_[name] = backend_.allocate(DType::u8, 1, size);
  }

  /// Buffer `name` seen as a contiguous matrix. Contents are those of its last user.
  TensorView view(const std::string& name, DType dtype, std::int64_t rows,
                  std::int64_t cols) const {
    const TensorView& buffer = bytes_.at(name);
    FP8LAB_ASSERT(rows * cols * static_cast<std::int64_t>(size_of(dtype)) <= buffer.cols);
    return {buffer.data, dtype, rows, cols, cols};
  }

 private:
  Backend& backend_;
  std::map<std::string, std::int64_t> sizes_;
  std::map<std::string, TensorView> bytes_;
};

}  // namespace fp8lab
