// POSIX file descriptor with RAII ownership.
#pragma once

#include <unistd.h>

#include <cerrno>
#include <string>
#include <utility>

namespace fp8lab {

/// Returns the text of an errno value, for example "No space left on device".
std::string error_text(int error);

/// Owns a descriptor and closes it on destruction. Not copyable.
class FileDescriptor {
 public:
  FileDescriptor() = default;
  explicit FileDescriptor(int descriptor) : descriptor_(descriptor) {}
  FileDescriptor(FileDescriptor&& other) noexcept
      : descriptor_(std::exchange(other.descriptor_, -1)) {}
  FileDescriptor& operator=(FileDescriptor&& other) noexcept {
    std::swap(descriptor_, other.descriptor_);
    return *this;
  }
  ~FileDescriptor() { close(); }

  bool valid() const { return descriptor_ >= 0; }
  int get() const { return descriptor_; }

  /// Closes the descriptor; returns 0 or errno. Some file systems report a full disk only here.
  int close() {
    if (descriptor_ < 0) return 0;
    return ::close(std::exchange(descriptor_, -1)) == 0 ? 0 : errno;
  }

 private:
  int descriptor_ = -1;
};

/// A pipe whose descriptors close on exec. Throws RuntimeFailure if it cannot be created.
struct Pipe {
  Pipe();
  FileDescriptor output, input;
};

}  // namespace fp8lab
