#include "src/cli/standard_streams.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <cstdlib>

namespace fp8lab::cli {

void open_standard_streams() {
  for (int descriptor = STDIN_FILENO; descriptor <= STDERR_FILENO; ++descriptor) {
    if (fcntl(descriptor, F_GETFD) >= 0) continue;
    const int mode = descriptor == STDIN_FILENO ? O_RDONLY : O_WRONLY;
    // The lowest descriptor that is free: this one, since those below are open.
    if (open("/dev/null", mode) != descriptor) std::_Exit(1);
  }
}

}  // namespace fp8lab::cli
