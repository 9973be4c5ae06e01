// Scales of tiles by their amaxes, for one quantization.
#pragma once

#include <array>
#include <cstdint>

#include "emulation/cpu/simd/quantize_kernels.hpp"
#include "emulation/numerics/ordinary_scales.hpp"
#include "emulation/numerics/scaling.hpp"
#include "emulation/spec/quant_spec.hpp"

namespace fp8lab::cpu {

inline bool is_two_level(const QuantSpec& spec) {
  return spec.has_scale() && spec.scale.format == numerics::ScaleFormat::nv_two_level;
}

/// The scales of tiles by their amaxes: by one addition for powers of two and by two divisions for
/// FP32 scales, where the amaxes are ordinary ones. For the others with a memory of the last
/// results: the amaxes of BF16 tiles of one tensor take few values, mostly of two binades, which is
/// what the low bits of the index tell apart.
class TileScales {
 public:
  /// `tensor_factor` matters for two-level scales only.
  TileScales(const QuantSpec& spec, float tensor_factor)
      : spec_(spec), tensor_factor_(tensor_factor), rule_(ordinary_rule(spec)) {}

  /// The decode scales of `count` tiles, and the factors that their elements are multiplied with,
  /// or divided by where the rule divides.
  void of_all(const std::uint32_t* amax, std::int64_t count, float* decode, float* factor) {
    if (quantize_kernels().scales(&rule_, amax, count, decode, factor)) return;
    for (std::int64_t i = 0; i < count; ++i) {
      const numerics::TileScale& scale = remembered(amax[i]);
      decode[i] = scale.decode;
      factor[i] = scale.divide ? scale.decode : scale.multiplier;
    }
  }

 private:
  static constexpr std::uint32_t kEntries = 256;
  struct Entry {
    std::uint32_t amax = ~0u;  ///< not the bits of a magnitude
    numerics::TileScale scale;
  };

  static ScalesRule ordinary_rule(const QuantSpec& spec) {
    const numerics::OrdinaryScales scales = numerics::ordinary_scales(spec.scale, spec.format);
    return {scales.lowest,    scales.count,        scales.carry,  scales.offset,
            scales.quotients, scales.encode_first, scales.divide, scales.target};
  }
  const numerics::TileScale& remembered(std::uint32_t amax) {
    Entry& entry = entries_[(amax >> 16) % kEntries];
    if (entry.amax != amax) entry = {amax, compute(numerics::bits_float(amax))};
    return entry.scale;
  }
  numerics::TileScale compute(float amax) const {
    return is_two_level(spec_) ? numerics::nv_tile_scale(spec_.format, tensor_factor_, amax)
                               : numerics::tile_scale(spec_.scale, spec_.format, amax);
  }

  const QuantSpec& spec_;
  float tensor_factor_;
  ScalesRule rule_;
  std::array<Entry, kEntries> entries_;
};

}  // namespace fp8lab::cpu
