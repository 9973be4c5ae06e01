#include "src/io/files/file_descriptor.hpp"

#include <fcntl.h>
#include <fmt/core.h>

#include <array>
#include <system_error>

#include "emulation/base/error.hpp"

namespace fp8lab {

std::string error_text(int error) { return std::generic_category().message(error); }

Pipe::Pipe() {
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) {
    throw RuntimeFailure(fmt::format("cannot make a pipe: {}", error_text(errno)));
  }
  output = FileDescriptor(ends[0]);
  input = FileDescriptor(ends[1]);
}

}  // namespace fp8lab
