// Parameters of the quantization of one operand: independent fields, no named special cases.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "emulation/base/tensor_view.hpp"
#include "emulation/numerics/element_cast.hpp"
#include "emulation/numerics/estimator.hpp"
#include "emulation/numerics/format.hpp"
#include "emulation/numerics/scale_rule.hpp"
#include "emulation/spec/transform.hpp"

namespace fp8lab {

/// Extent of the elements that share one scale, over the operand's (rows, K) matrix. 0 means the
/// whole extent: {0, 0} is the tensor, {1, 0} one scale per row, {1, 128} a 1x128 group along K.
/// Short tiles at the edges are ordinary tiles with fewer elements.
struct TileShape {
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  constexpr bool operator==(const TileShape&) const = default;
  constexpr bool is_tensor() const { return rows == 0 && cols == 0; }
  constexpr bool is_row() const { return rows == 1 && cols == 0; }
};

/// Source of the amax behind a scale.
enum class ScaleSource : std::uint8_t {
  current,       ///< the tile itself
  delayed,       ///< a history of earlier steps (tile must be the tensor)
  static_scale,  ///< `static_scale`, given in the recipe
  none,          ///< no scale: values are only cast
};

/// The entries of a delayed history that count.
enum class AmaxAlgorithm : std::uint8_t {
  max,          ///< the largest
  most_recent,  ///< the newest
  window,       ///< the largest, evaluated once every `history_length` steps and then forgotten
};

/// Source of the second orientation of a tensor (wgrad's x and dy, dgrad's w).
enum class OrientationSource : std::uint8_t {
  high_precision,  ///< the unquantized tensor
  requantized,     ///< the dequantized first orientation, quantized again along the other axis
  dequantized,     ///< the dequantized first orientation, used without quantizing it again
  /// The dequantized first orientation in the space of its transform. The transform is undone in
  /// the product: with x H in fprop, dW = (dy^T Q(x H)) H^T.
  transformed,
};

/// Source of a quantized weight.
enum class WeightSource : std::uint8_t { bf16, master };

/// `scale` is always the decode factor: x ~ scale * q.
struct QuantSpec {
  numerics::FormatSpec format = numerics::kBF16;
  TileShape tile{};
  numerics::ScaleRule scale{};
  ScaleSource scale_source = ScaleSource::none;
  numerics::Rounding rounding = numerics::Rounding::nearest;
  int random_bits = 0;                         ///< as ElementCast::random_bits
  numerics::FormatSpec via = numerics::kFP32;  ///< as ElementCast::via
  numerics::Overflow overflow = numerics::Overflow::saturate;
  float static_scale = 1.0f;  ///< decode factor for ScaleSource::static_scale
  int history_length = 1024;  ///< delayed: steps in the history
  AmaxAlgorithm amax_algorithm = AmaxAlgorithm::max;
  int warmup_steps = 0;  ///< delayed: first steps of a history that use their own amax
  OrientationSource orientation_source = OrientationSource::high_precision;
  WeightSource weight_source = WeightSource::bf16;
  Transform transform{};            ///< applied first; scales are those of its result
  numerics::Estimator estimator{};  ///< fprop.x and fprop.w: factors of dx and dw

  bool operator==(const QuantSpec&) const = default;

  /// Returns true for codes of at most 8 bits. Wider formats are stored as
  /// values and take no scale.
  bool is_quantized() const { return format.bits() <= 8; }
  /// Returns true if values are rounded on their way into the operand: for all formats but bf16 and
  /// fp32, which only name the storage of unchanged values.
  bool is_cast() const { return format != numerics::kBF16 && format != numerics::kFP32; }
  /// Returns how a scaled value becomes a code.
  numerics::ElementCast cast() const { return {format, rounding, overflow, random_bits, via}; }
  /// Returns the type of the operand's codes: u8, or the narrowest of bf16 and
  /// f32 that holds all values.
  DType storage() const;
  /// Returns true if codes are meaningless without the codebook of their tile (LogFMT, expansion).
  bool has_codebooks() const {
    return format.encoding == numerics::Encoding::tile_logarithm || transform.is<RangeExpansion>();
  }
  /// Returns the numbers stored per tile: its scale, LogFMT's step, an
  /// expansion's exponent and center.
  int tile_numbers() const { return transform.is<RangeExpansion>() ? 3 : has_codebooks() ? 2 : 1; }
  bool has_scale() const { return scale_source != ScaleSource::none; }
  /// Returns the tile that shares one scale: the whole tensor if there is no scale.
  TileShape scale_tile() const { return has_scale() ? tile : TileShape{}; }

  /// Return the tiles down the rows and across K of a (rows, k) operand; 1 for whole extents.
  std::int64_t tile_rows(std::int64_t rows) const {
    return tile.rows == 0 ? 1 : (rows + tile.rows - 1) / tile.rows;
  }
  std::int64_t tile_cols(std::int64_t k) const {
    return tile.cols == 0 ? 1 : (k + tile.cols - 1) / tile.cols;
  }
  /// Returns the columns of the operand's scales: one per tile. With codebooks, the further numbers
  /// of the tiles follow after all the scales of the row.
  std::int64_t scale_cols(std::int64_t k) const { return tile_cols(k) * tile_numbers(); }
};

/// Returns the name of a format as in recipes ("e4m3fn"). An unnamed floating format is "eXmY" if
/// its bias is 2^(X-1)-1 and its top exponent holds infinity and NaN. Otherwise "fn" (one NaN
/// code), "fnuz" (NaN for -0, bias 2^(X-1)) or "f" (all codes finite) and "bN" (bias N) follow, for
/// example "e4m3fnb11". "ieee" stands for infinity and NaN if eXmY alone names another format
/// ("e3m4ieee"). Unnamed integers are "intN", unnamed logarithmic formats "lnsBgG": B bits, G steps
/// per octave; those with codebooks are "logfmtN". Formats of IEEE P3109 that are none of these are
/// "binaryKpP" with "s" or "u" (signed, unsigned) and "e" or "f" (extended with infinities,
/// finite), for example "binary8p4se".
std::string format_name(const numerics::FormatSpec& format);

/// Inverse of format_name: the named formats; eXmY[ieee|fnuz|fn|f][bN] with 1 <= X <= 8, Y <= 23
/// and every value an FP32 value; int3 to int8; lnsBgG with 3 <= B <= 16 and G = 1, 2, 4 .. 2048,
/// at most 2^(B-1), at least 2^(B-8), and at most 64 for B <= 8; logfmt3 to logfmt8;
/// binaryKpP[s|u][e|f] with 3 <= K <= 16 and at most 8 exponent bits (binary8p4sf is e4m3fnuz).
/// Empty for other names. Beware: "e4m3" is the IEEE-like format with maximum 240, "e4m3fn" the
/// OCP one with maximum 448.
std::optional<numerics::FormatSpec> format_by_name(std::string_view name);

/// Returns the name of a rounding as in recipes: "nearest", ..., "stochastic", or "stochastic:N"
/// for N random bits.
std::string rounding_name(numerics::Rounding rounding, int random_bits);

/// A rounding and its number of random bits, 0 for as many as are discarded.
struct RoundingChoice {
  numerics::Rounding rounding = numerics::Rounding::nearest;
  int random_bits = 0;
  bool operator==(const RoundingChoice&) const = default;
};

/// Inverse of rounding_name, with N from 1 to 32; empty for other names.
std::optional<RoundingChoice> rounding_from_name(std::string_view name);

/// Returns the name of a tile as in recipes: "tensor", "row" or "1x128".
std::string tile_name(const TileShape& tile);

/// Inverse of tile_name: "tensor", "row" or "RxC" with positive R and C; empty for other names.
std::optional<TileShape> tile_from_name(std::string_view name);

/// Returns the words of tables and run files, such as "e4m3fn/1x128/pow2/enc_floor": everything
/// that is not default, and always the rounding of powers of two. parse_quant_spec parses
/// effective(spec) back, except orientation_source and weight_source, which say what is quantized
/// and not how, and estimator, which concerns the gradient.
std::string label(const QuantSpec& spec);

/// Returns the bits of scale stored per element of a (rows, k) operand: 32 bits per tile for fp32
/// and pow2, 16 for bf16, 8 for e8m0, e4m3 and nv_two_level (which adds 32 for the tensor or for
/// each row), 32 more for the step of a codebook, none without a scale.
double scale_bits_per_element(const QuantSpec& spec, std::int64_t rows, std::int64_t k);

}  // namespace fp8lab
