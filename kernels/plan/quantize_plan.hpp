// The choice of quantizer kernels, as plain data: the passes over the source, the origin of the
// scales and the kernel that writes the codes. kernels/quantize executes a plan; describe() prints
// it, on any machine, since nothing here asks a device. The limits are those of compute capability
// 9.0.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "emulation/spec/quant_spec.hpp"

namespace fp8lab::cuda {

/// The kernel that writes the codes of an operand.
enum class CodeKernel : std::uint8_t {
  cast,      ///< formats of more than 8 bits: rounds each element, or copies it
  codebook,  ///< tiles with codebooks: a warp or a block a tile
  block,     ///< blocks of 128 x 128 elements, in registers from amax to codes
  row,       ///< whole rows of the source, in registers from amax to codes
  element,   ///< any format, rounding and tile, with scales from memory
};

/// How a kernel encodes one value.
enum class Encoder : std::uint8_t {
  e4m3_instruction,  ///< `validate codec` proves it equal to numerics::encode on all 2^32 inputs
  e5m2_instruction,
  e2m1,        ///< saturating, to nearest, by FP32 additions
  int8,        ///< saturating, to nearest, by an FP32 addition
  nearest,     ///< numerics::NearestCodec
  stochastic,  ///< numerics::StochasticCodec, one block of random words for four neighbours
  general,     ///< numerics::encode
};

/// The origin of the scales of an operand.
enum class ScaleStep : std::uint8_t {
  none,         ///< the operand has no scales
  in_kernel,    ///< the code kernel computes them from the amaxes of its own tiles or rows
  two_level,    ///< as in_kernel, after a kernel that computes the tensor's factors from its amax
  from_amaxes,  ///< scale_kernel, one thread a tile, reads the amaxes that passes have left
  known,        ///< one scale that is delayed, given in the recipe, or 1
};

/// Transforms of the source before all else.
enum class TransformStep : std::uint8_t {
  none,
  hadamard,
  smoothing,
  clamp,  ///< a kernel that finds the bounds, and one that clamps
};

/// Passes over the source, before the one that writes codes, that find amaxes.
struct AmaxPasses {
  bool tensor = false;
  bool rows = false;   ///< of each row of the source
  bool cols = false;   ///< of each column of the source; together with `rows` in one pass
  bool tiles = false;  ///< of any tiles, beside those of rows or columns for factors of rows

  bool operator==(const AmaxPasses&) const = default;
};

struct QuantizePlan {
  TransformStep transform = TransformStep::none;
  AmaxPasses amaxes{};
  ScaleStep scales = ScaleStep::none;
  CodeKernel codes = CodeKernel::cast;
  Encoder encoder = Encoder::general;
  /// Delayed scales: the code kernel raises the running amax. If it does not, the pass of `amaxes`
  /// over the tensor does.
  bool raises_amax = false;

  bool operator==(const QuantizePlan&) const = default;
};

/// Plans of two operands whose codes one launch of the block kernel writes.
struct QuantizeBothPlan {
  QuantizePlan first, second;

  bool operator==(const QuantizeBothPlan&) const = default;
  /// Returns the passes for both.
  AmaxPasses amaxes() const;
  bool raises_amax() const { return first.raises_amax || second.raises_amax; }
};

/// Returns the plan of ops::Quantize for a source (rows, cols), which is quantized by `spec` or,
/// with `transpose`, whose transpose is. Preconditions: supports_quantization(spec), and the source
/// has elements.
QuantizePlan plan_quantize(const QuantSpec& spec, std::int64_t rows, std::int64_t cols,
                           bool transpose);

/// Returns the plan of ops::QuantizeBoth, in which `second` is the transpose. Empty if the source
/// must be quantized twice: for transforms, random bits, tiles that do not lie in a block, or specs
/// that differ in format, overflow, or division by the scale.
std::optional<QuantizeBothPlan> plan_quantize_both(const QuantSpec& first, const QuantSpec& second);

/// Returns the plan for rows that a kernel holds in registers, in the orientation of the source;
/// empty if a scale depends on more than parts of a row.
std::optional<QuantizePlan> plan_rows(const QuantSpec& spec);

/// Returns how the block and row kernels encode values of `spec`; general for those that they do
/// not take.
Encoder encoder_of(const QuantSpec& spec);

/// Returns true if an element is divided by its scale, not multiplied by a factor.
inline bool divides(const QuantSpec& spec) { return spec.has_scale() && spec.scale.divides(); }

/// "amax of the tensor, scale_kernel, block_kernel with the e4m3 instruction".
std::string describe(const QuantizePlan& plan);
/// The same for both operands: passes and scales, then one launch for the codes.
std::string describe(const QuantizeBothPlan& plan);

}  // namespace fp8lab::cuda
