// The forms of mma.sync that the probe of a card runs.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

#include "emulation/numerics/format.hpp"
#include "kernels/ptx/mma_types.hpp"

namespace fp8lab::cuda {

/// One row for each MmaTypes, in their order.
struct MmaForm {
  MmaTypes types;
  std::string_view name;  ///< "e4m3 x e4m3 + f32"
  numerics::FormatSpec a, b;
  bool to_f16 = false;    ///< FP16 accumulator and results, else FP32
  int k = 32;             ///< products along K: 32 bytes
  int architecture = 80;  ///< smallest compute capability, times 10
};

inline constexpr std::array<MmaForm, 10> kMmaForms = {{
    {MmaTypes::e4m3_e4m3_f32, "e4m3 x e4m3 + f32", numerics::kE4M3, numerics::kE4M3, false, 32, 89},
    {MmaTypes::e4m3_e5m2_f32, "e4m3 x e5m2 + f32", numerics::kE4M3, numerics::kE5M2, false, 32, 89},
    {MmaTypes::e5m2_e4m3_f32, "e5m2 x e4m3 + f32", numerics::kE5M2, numerics::kE4M3, false, 32, 89},
    {MmaTypes::e5m2_e5m2_f32, "e5m2 x e5m2 + f32", numerics::kE5M2, numerics::kE5M2, false, 32, 89},
    {MmaTypes::e4m3_e4m3_f16, "e4m3 x e4m3 + f16", numerics::kE4M3, numerics::kE4M3, true, 32, 89},
    {MmaTypes::e5m2_e5m2_f16, "e5m2 x e5m2 + f16", numerics::kE5M2, numerics::kE5M2, true, 32, 89},
    {MmaTypes::bf16_f32, "bf16 x bf16 + f32", numerics::kBF16, numerics::kBF16, false, 16, 80},
    {MmaTypes::f16_f32, "f16 x f16 + f32", numerics::kFP16, numerics::kFP16, false, 16, 80},
    {MmaTypes::f16_f16, "f16 x f16 + f16", numerics::kFP16, numerics::kFP16, true, 16, 80},
    {MmaTypes::tf32_f32, "tf32 x tf32 + f32", numerics::kTF32, numerics::kTF32, false, 8, 80},
}};

constexpr const MmaForm& form_of(MmaTypes types) {
  return kMmaForms[static_cast<std::size_t>(types)];
}
/// Of form_of, for device code.
template <MmaTypes kTypes>
inline constexpr bool kToF16 = form_of(kTypes).to_f16;
constexpr bool is_fp8(MmaTypes types) { return form_of(types).k == 32; }

}  // namespace fp8lab::cuda
