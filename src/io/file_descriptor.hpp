// POSIX file descriptor with an owner.
#pragma once

#include <unistd.h>

#include <cerrno>
#include <string>
#include <utility>

namespace fp8lab {

/// Text of an errno value, for example "No space left on device".
std::string error_text(int error);

/// Closes its descriptor when it goes out of scope. Not copyable.
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

  /// Closes now; returns 0 or errno, which on some file systems is where a full disk shows.
  int close() {
    if (descriptor_ < 0) return 0;
    return ::close(std::exchange(descriptor_, -1)) == 0 ? 0 : errno;
  }

 private:
  int descriptor_ = -1;
};

/// A pipe whose ends a new program does not inherit. Throws RuntimeFailure when there can be none.
struct Pipe {
  Pipe();
  FileDescriptor output, input;
};

}  // namespace fp8lab
