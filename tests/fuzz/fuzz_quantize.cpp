// Quantization on every SIMD target against the scalar reference: any values, spec and shape.
#include <vector>

#include "emulation/cpu/operations.hpp"
#include "emulation/cpu/simd/target.hpp"
#include "src/validate/scalar_arithmetic.hpp"
#include "tests/fuzz/fuzz_target.hpp"

using namespace fp8lab;  // NOLINT: the subject of every line below

namespace {

QuantSpec choose_spec(fuzz::Choices& choices) {
  constexpr numerics::FormatSpec kFormats[] = {numerics::kE4M3, numerics::kE5M2, numerics::kE3M4,
                                               numerics::kE2M3, numerics::kE3M2, numerics::kE2M1};
  QuantSpec spec;
  spec.format = kFormats[choices.below(std::size(kFormats))];
  spec.scale_source = choices.below(4) == 0 ? ScaleSource::none : ScaleSource::current;
  spec.rounding = static_cast<numerics::Rounding>(choices.below(3));
  spec.overflow = static_cast<numerics::Overflow>(choices.below(2));
  if (!spec.has_scale()) return spec;
  spec.tile = {choices.below(6), choices.below(40)};
  spec.scale.format = static_cast<numerics::ScaleFormat>(choices.below(3));
  spec.scale.rounding = static_cast<numerics::ScaleRounding>(choices.below(6));
  spec.scale.arithmetic = static_cast<numerics::ScaleArithmetic>(choices.below(3));
  spec.scale.margin = static_cast<int>(choices.below(5)) - 2;
  return spec;
}

struct Result {
  std::vector<std::uint8_t> codes;
  std::vector<float> scales;
  QuantizedOperand operand;

  Result(const QuantSpec& spec, std::int64_t rows, std::int64_t k) {
    codes.resize(static_cast<std::size_t>(rows * k));
    operand.spec = spec;
    operand.rows = rows;
    operand.k = k;
    operand.codes = {codes.data(), DType::u8, rows, k, k};
    if (!spec.has_scale()) return;
    const std::int64_t high = spec.tile_rows(rows), wide = spec.tile_cols(k);
    scales.resize(static_cast<std::size_t>(high * wide));
    operand.scales = {scales.data(), DType::f32, high, wide, wide};
  }
  bool same_scales(const Result& other) const {
    return scales.empty() ||
           std::memcmp(scales.data(), other.scales.data(), scales.size() * sizeof(float)) == 0;
  }
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const Implementation scalar = scalar_implementation();
  fuzz::Choices choices(data, size);
  const QuantSpec spec = choose_spec(choices);
  const bool transpose = choices.below(2) == 1;
  const bool bf16 = choices.below(2) == 1;
  const std::int64_t rows = 1 + choices.below(24), cols = 1 + choices.below(80);
  const RandomKey key{choices.value<std::uint64_t>(), choices.value<std::uint32_t>(), 3,
                      transpose ? 1u : 0u};
  // The rest of the input are the first values, repeated with other signs.
  std::vector<float> f32(static_cast<std::size_t>(rows * cols));
  std::vector<std::uint16_t> half(f32.size());
  std::size_t given = 0;
  while (given < f32.size() && !choices.empty()) {
    f32[given++] = numerics::bits_float(choices.value<std::uint32_t>());
  }
  for (std::size_t i = given; i < f32.size() && given > 0; ++i) f32[i] = -f32[i - given];
  for (std::size_t i = 0; i < f32.size(); ++i) half[i] = numerics::to_bf16(f32[i]);
  const TensorView source{bf16 ? static_cast<void*>(half.data()) : f32.data(),
                          bf16 ? DType::bf16 : DType::f32, rows, cols, cols};
  const std::int64_t operand_rows = transpose ? cols : rows, k = transpose ? rows : cols;
  Result want(spec, operand_rows, k);
  scalar.quantize(source, transpose, key, want.operand);
  for (const cpu::SimdTarget target : cpu::available_targets()) {
    cpu::set_active_target(target);
    Result got(spec, operand_rows, k);
    got.operand.key = key;
    cpu::run(ops::Quantize{.source = source, .transpose = transpose, .operand = got.operand});
    const std::string where = label(spec) + " on " + std::string(cpu::name_of(target));
    fuzz::require(got.codes == want.codes, "codes of " + where);
    fuzz::require(got.same_scales(want), "scales of " + where);
  }
  return 0;
}
