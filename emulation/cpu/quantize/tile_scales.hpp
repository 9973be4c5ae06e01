// Scales of tiles computed from their amaxes, for one quantization.
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

/// Computes the scales of tiles from their amaxes. If the amaxes are ordinary, powers of two take
/// one addition and FP32 scales two divisions. Otherwise uses a cache of the last results: the
/// amaxes of BF16 tiles of one tensor take few values, mostly in two binades, and the low bits of
/// the index distinguish these.
class TileScales {
 public:
  /// `tensor_factor` affects two-level scales only.
  TileScales(const QuantSpec& spec, float tensor_factor)
      : spec_(spec), tensor_factor_(tensor_factor), rule_(ordinary_rule(spec)) {}

  /// Computes the decode scales of `count` tiles, and the factors that multiply their elements, or
  /// divide them if the rule divides.
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
    std::uint32_t amax = ~0u;  ///< no magnitude has these bits
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
