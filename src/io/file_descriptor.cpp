#include "src/io/file_descriptor.hpp"

#include <system_error>

namespace fp8lab {

std::string error_text(int error) { return std::generic_category().message(error); }

}  // namespace fp8lab
