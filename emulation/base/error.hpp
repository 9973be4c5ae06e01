// Errors for the user and assertions for developers.
#pragma once

#include <stdexcept>
#include <string>

namespace fp8lab {

/// Bad input. The message says what is wrong, where (file:line:key, tensor and shape) and what is
/// accepted. The command line prints it as one line and exits with status 2.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// A failure of the machine (disk full, device lost). The command line exits with status 1.
class RuntimeFailure : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

namespace detail {
[[noreturn]] void assertion_failed(const char* condition, const char* file, int line);
}  // namespace detail

}  // namespace fp8lab

/// Checks an internal invariant in every build; not for hot loops.
#define FP8LAB_ASSERT(condition)                                                          \
  do {                                                                                    \
    if (!(condition)) ::fp8lab::detail::assertion_failed(#condition, __FILE__, __LINE__); \
  } while (false)
