// A build for one instruction set, on a processor without it: target.cpp with a list of its own.
#include <catch2/catch.hpp>

#include "emulation/base/error.hpp"
#include "emulation/cpu/simd/target.hpp"

using namespace fp8lab;

TEST_CASE("a processor without the compiled instruction set is refused by name") {
  if (!cpu::available_targets().empty()) {
    WARN("this processor has AMX: nothing to refuse");
    return;
  }
  CHECK_THROWS_AS(cpu::active_target(), RuntimeFailure);
  CHECK_THROWS_WITH(cpu::active_target(), Catch::Contains("avx512_amx"));
  CHECK_THROWS_AS(cpu::set_active_target(cpu::SimdTarget::portable), Error);
}
