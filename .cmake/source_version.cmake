# Writes OUTPUT, a C++ source that defines build_identity(): the commit and a hash of the sources, as
# "COMMIT.HASH" with 12 and 16 hexadecimal digits; "unknown" for the commit outside a repository.
# Run at every build; OUTPUT changes only with its content.
file(GLOB_RECURSE sources LIST_DIRECTORIES false RELATIVE "${SOURCE}"
  "${SOURCE}/emulation/*" "${SOURCE}/kernels/*" "${SOURCE}/src/*")
list(FILTER sources INCLUDE REGEX "\\.(cpp|hpp|cu|cuh|txt)$")
list(SORT sources)
set(all "")
foreach(source IN LISTS sources)
  file(SHA256 "${SOURCE}/${source}" hash)
  string(APPEND all "${source} ${hash}\n")
endforeach()
string(SHA256 hash "${all}")
string(SUBSTRING "${hash}" 0 16 hash)

set(commit "unknown")
find_program(git git)
if(git)
  execute_process(COMMAND "${git}" -C "${SOURCE}" rev-parse --short=12 HEAD
    OUTPUT_VARIABLE found OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET RESULT_VARIABLE failed)
  if(NOT failed)
    set(commit "${found}")
  endif()
endif()

file(CONFIGURE OUTPUT "${OUTPUT}" @ONLY CONTENT [=[
#include "src/cli/version.hpp"

namespace fp8lab::cli {

const char* build_identity() { return "@commit@.@hash@"; }

}  // namespace fp8lab::cli
]=])
