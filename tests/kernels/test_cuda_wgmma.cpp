// wgmma with A from registers: the bits of A from shared memory, and of the model.
#include <catch2/catch.hpp>

#include <cstdint>
#include <vector>

#include "emulation/cases/case_generator.hpp"
#include "kernels/probes/wgmma_probe.hpp"
#include "tests/kernels/device_test.hpp"

namespace {

using fp8lab::CaseGenerator;
using fp8lab::cuda::WgmmaTypes;
using fp8lab::numerics::FormatSpec;

constexpr int kTiles = 2048;
constexpr int kPartners = 128;

template <class Code>
void compare(WgmmaTypes types, const FormatSpec& format_a, const FormatSpec& format_b) {
  constexpr std::int64_t kK = 32 / sizeof(Code);
  CaseGenerator generator(17 + static_cast<std::uint64_t>(types));
  const auto a = generator.codes<Code>(format_a, kTiles * 64, kK, 16, kK, true);
  const auto b = generator.codes<Code>(format_b, kTiles * 8, kK, 8, kK, true);
  std::vector<float> c(kTiles * 64 * 8);
  for (float& value : c) value = generator.accumulator();
  fp8lab::cuda::WgmmaProbe probe;
  probe.types = types;
  probe.tiles = kTiles;
  probe.partners = kPartners;
  probe.a = a.data();
  probe.b = b.data();
  probe.c = c.data();
  const auto result = fp8lab::cuda::probe_wgmma_registers(probe);
  INFO("types " << static_cast<int>(types) << ", first difference at " << result.first);
  CHECK(result.outputs == std::uint64_t{kTiles} * kPartners * 64 * 8);
  CHECK(result.registers_shared == 0);
  CHECK(result.registers_model == 0);
}

}  // namespace

TEST_CASE("wgmma returns the same bits with A from registers and from shared memory") {
  if (fp8lab::test::device_backend() == nullptr) return;
  using fp8lab::numerics::kBF16;
  using fp8lab::numerics::kE4M3;
  using fp8lab::numerics::kE5M2;
  compare<std::uint8_t>(WgmmaTypes::e4m3_e4m3, kE4M3, kE4M3);
  compare<std::uint8_t>(WgmmaTypes::e4m3_e5m2, kE4M3, kE5M2);
  compare<std::uint8_t>(WgmmaTypes::e5m2_e4m3, kE5M2, kE4M3);
  compare<std::uint8_t>(WgmmaTypes::e5m2_e5m2, kE5M2, kE5M2);
  compare<std::uint16_t>(WgmmaTypes::bf16, kBF16, kBF16);
}
