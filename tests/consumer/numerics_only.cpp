// The header-only numerics, without the library.
#include <cstdio>

#include "emulation/numerics/codec.hpp"
#include "emulation/numerics/exact_math.hpp"
#include "emulation/numerics/mma.hpp"
#include "emulation/numerics/operand_hash.hpp"
#include "emulation/numerics/philox.hpp"
#include "emulation/numerics/scaling.hpp"
#include "emulation/numerics/schedule.hpp"
#include "emulation/numerics/tree_sum.hpp"

int main() {
  using namespace fp8lab::numerics;  // NOLINT: the subject of every line
  static_assert(decode(kE4M3, 0x7E) == 448.0f);
  const volatile float x = 0x1.08p0f;  // its square is just above 1.0625, the tie of 1 and 1.125
  const std::uint32_t code =
      encode(kE4M3, float_bits(x * x), Rounding::nearest, Overflow::saturate);
  if (decode(kE4M3, code) == 1.125f) return 0;
  std::printf("code %02x decodes to %g\n", code, static_cast<double>(decode(kE4M3, code)));
  return 1;
}
