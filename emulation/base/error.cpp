#include "emulation/base/error.hpp"

#include <cstdio>
#include <cstdlib>

namespace fp8lab::detail {

void assertion_failed(const char* condition, const char* file, int line) {
  std::fprintf(stderr, "fp8lab: internal error: %s (%s:%d)\n", condition, file, line);
  std::abort();
}

}  // namespace fp8lab::detail
