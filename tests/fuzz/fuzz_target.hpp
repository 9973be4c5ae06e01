// What the fuzz targets share. A target is one function on bytes; libFuzzer drives it in the preset
// "fuzz", replay.cpp in every other build.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>

#include "emulation/base/error.hpp"

/// Runs one input. Returns 0; every fault aborts.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace fp8lab::fuzz {

/// Aborts with `what` when the condition does not hold.
inline void require(bool condition, const std::string& what) {
  if (condition) return;
  std::fprintf(stderr, "fuzz: %s\n", what.c_str());
  std::abort();
}

/// Runs a reader; the only way it may fail is an Error of one line.
template <class Read>
void accept_error(Read&& read) {
  try {
    read();
  } catch (const Error& error) {
    const std::string_view message = error.what();
    require(!message.empty(), "an Error says nothing");
  }
}

inline std::string text_of(const std::uint8_t* data, std::size_t size) {
  return size == 0 ? std::string() : std::string(reinterpret_cast<const char*>(data), size);
}

/// An input as a sequence of choices; zeros once it is used up.
class Choices {
 public:
  Choices(const std::uint8_t* data, std::size_t size) : data_(data), size_(size) {}

  template <class T>
  T value() {
    T taken{};
    const std::size_t count = sizeof(T) < size_ - used_ ? sizeof(T) : size_ - used_;
    if (count > 0) std::memcpy(&taken, data_ + used_, count);
    used_ += count;
    return taken;
  }
  /// In [0, count).
  std::uint32_t below(std::uint32_t count) {
    return count <= 256 ? value<std::uint8_t>() % count : value<std::uint32_t>() % count;
  }
  bool empty() const { return used_ == size_; }

 private:
  const std::uint8_t* data_;
  std::size_t size_;
  std::size_t used_ = 0;
};

/// A file in memory, for readers that take a path.
class MemoryFile {
 public:
  MemoryFile() : descriptor_(memfd_create("fuzz", MFD_CLOEXEC)) {
    require(descriptor_ >= 0, "no memory file");
  }
  ~MemoryFile() { close(descriptor_); }
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;

  void assign(const void* data, std::size_t size) {
    const bool written = ftruncate(descriptor_, 0) == 0 &&
                         pwrite(descriptor_, data, size, 0) == static_cast<ssize_t>(size);
    require(written, "the memory file cannot be written");
  }
  std::string path() const { return "/proc/self/fd/" + std::to_string(descriptor_); }

 private:
  int descriptor_;
};

}  // namespace fp8lab::fuzz
