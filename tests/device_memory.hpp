// A backend whose memory the host cannot touch, such as a GPU's, on the CPU.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "emulation/base/error.hpp"
#include "emulation/recording/stand_in.hpp"

namespace fp8lab::test {

/// Computes on the wrapped backend. Its tensors lie in pages without access outside of operations
/// and copies: whoever reads them as host memory gets SIGSEGV.
class DeviceMemory final : public PassThrough {
 public:
  /// `original` computes in host memory and outlives this.
  explicit DeviceMemory(Backend& original) : PassThrough(original) {}
  ~DeviceMemory() override { release_to(0); }
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;

  bool is_on_host() const override { return false; }

  TensorView allocate(DType dtype, std::int64_t rows, std::int64_t cols) override {
    const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
    const std::size_t bytes = allocation_bytes(dtype, rows, cols);
    const std::size_t size = (bytes + page) / page * page;
    void* const data =
        ::mmap(nullptr, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    FP8LAB_ASSERT(data != MAP_FAILED);
    blocks_.push_back({data, size});
    return {data, dtype, rows, cols, cols};
  }
  void reserve(std::size_t) override {}
  std::size_t memory_mark() const override { return blocks_.size(); }
  std::size_t memory_bytes() const override {
    std::size_t bytes = 0;
    for (const Block& block : blocks_) bytes += block.size;
    return bytes;
  }
  void release_to(std::size_t mark) override {
    for (; blocks_.size() > mark; blocks_.pop_back()) {
      ::munmap(blocks_.back().data, blocks_.back().size);
    }
  }
  void upload(const TensorView& destination, const void* source) override {
    accessed([&] { original().upload(destination, source); });
  }
  void download_all(std::span<const Download> downloads) override {
    accessed([&] { original().download_all(downloads); });
  }
  void fill_zero(const TensorView& view) override {
    accessed([&] { original().fill_zero(view); });
  }

#define FP8LAB_OPERATION(Name)             \
  void run(const ops::Name& op) override { \
    accessed([&] { original().run(op); }); \
  }
  FP8LAB_FOR_EACH_OPERATION(FP8LAB_OPERATION)
  FP8LAB_FOR_EACH_COMPOSITE(FP8LAB_OPERATION)
#undef FP8LAB_OPERATION

 private:
  struct Block {
    void* data;
    std::size_t size;
  };

  void protect(int access) const {
    for (const Block& block : blocks_) ::mprotect(block.data, block.size, access);
  }
  template <class Work>
  void accessed(const Work& work) const {
    protect(PROT_READ | PROT_WRITE);
    work();
    protect(PROT_NONE);
  }

  std::vector<Block> blocks_;
};

}  // namespace fp8lab::test
