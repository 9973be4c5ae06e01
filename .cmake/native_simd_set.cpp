// Prints the best instruction set that this processor runs.
#include <cstdio>

#include "emulation/cpu/simd/target.hpp"

int main() {
  const fp8lab::cpu::SimdTarget best = fp8lab::cpu::active_target();
  std::printf("%s", fp8lab::cpu::name_of(best).data());
}
