// The fast conversions against the reference, one FP32 value and one format an input.
#include "emulation/numerics/codec.hpp"
#include "emulation/numerics/nearest_codec.hpp"
#include "emulation/spec/quant_spec.hpp"
#include "tests/fuzz/fuzz_target.hpp"

using namespace fp8lab;  // NOLINT: the subject of every line below
using numerics::Overflow;
using numerics::Rounding;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  fuzz::Choices choices(data, size);
  const auto bits = choices.value<std::uint32_t>();
  const float x = numerics::bits_float(bits);
  const auto reference = [&](const numerics::FormatSpec& format, Overflow overflow) {
    return numerics::encode(format, bits, Rounding::nearest, overflow);
  };
  fuzz::require(numerics::to_e4m3(x) == reference(numerics::kE4M3, Overflow::saturate), "to_e4m3");
  fuzz::require(numerics::to_e5m2(x) == reference(numerics::kE5M2, Overflow::saturate), "to_e5m2");
  fuzz::require(numerics::to_bf16(x) == reference(numerics::kBF16, Overflow::special), "to_bf16");
  fuzz::require(numerics::encode_e8m0(bits, false, Overflow::saturate) ==
                    numerics::encode(numerics::kE8M0, bits, Rounding::toward_zero),
                "encode_e8m0");
  const numerics::FormatSpec format =
      numerics::kNamedFormats[choices.below(std::size(numerics::kNamedFormats))].format;
  const auto rounding = static_cast<Rounding>(choices.below(3));
  const auto overflow = static_cast<Overflow>(choices.below(2));
  const std::uint32_t code =
      numerics::encode(format, bits, rounding, overflow, choices.value<std::uint32_t>());
  fuzz::require(code <= (format.sign_mask() | format.magnitude_mask()), "a code is too wide");
  // A value of the format is its own code under every rounding.
  const std::uint32_t again =
      numerics::encode(format, numerics::decode_bits(format, code), rounding, overflow, ~0u);
  const bool infinite = (numerics::decode_bits(format, code) & 0x7FFFFFFFu) >= 0x7F800000u;
  fuzz::require(infinite || again == code, "a code of " + format_name(format) + " changes");
  return 0;
}
