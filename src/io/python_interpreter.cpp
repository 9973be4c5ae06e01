#include "src/io/python_interpreter.hpp"

#include <cstdlib>

namespace fp8lab {

std::string python_interpreter() {
  const char* const chosen = std::getenv(kPythonVariable);
  return chosen == nullptr || *chosen == '\0' ? "python3" : chosen;
}

}  // namespace fp8lab
