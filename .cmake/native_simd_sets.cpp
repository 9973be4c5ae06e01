// Prints the instruction sets that this processor runs, as a CMake list.
#include <cstdio>

#include "emulation/cpu/simd/target.hpp"

int main() {
  const char* separator = "";
  for (const fp8lab::cpu::SimdTarget target : fp8lab::cpu::available_targets()) {
    std::printf("%s%s", separator, fp8lab::cpu::name_of(target).data());
    separator = ";";
  }
}
