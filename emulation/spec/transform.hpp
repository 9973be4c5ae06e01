// Transforms of an operand before its quantization.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace fp8lab {

enum class TransformKind : std::uint8_t {
  none,
  /// Multiplies the vectors along K by an orthonormal Hadamard matrix, or those along the rows
  /// (`left`), which ops::RotateBack undoes in the product.
  hadamard,
  smoothing,  ///< position j of K is divided by s_j in A and multiplied by s_j in B
  /// Raises each tile to the power that fits its range to the format (numerics::ExpandedGroup).
  /// Undone before the operand is multiplied, so it does not affect the other operand.
  expansion,
  /// Moves elements beyond two quantiles of the tensor to these quantiles. The other operand does
  /// not change; the residual may be multiplied separately (ops::Compensate).
  clamp,
};

/// The random signs of a randomised Hadamard transform.
enum class SignSource : std::uint8_t {
  none,
  fixed,  ///< the recipe's pattern, repeated along K
  drawn,  ///< one per position of K, new for every layer, GEMM and step
};

/// Position of the signs D.
enum class SignSide : std::uint8_t {
  before,  ///< x D H: a randomised Hadamard transform
  after,   ///< x H D
};

/// The factor of a clamp's sparse residual in an FP32 product (ops::Compensate).
enum class Compensation : std::uint8_t {
  none,       ///< none: the residual is lost
  original,   ///< the other operand's tensor before it was quantized
  quantized,  ///< the values of the other operand's codes
};

/// The transform of an operand before quantization. A Hadamard transform and a smoothing map the
/// vectors along K, the same for both operands A and B of A B^T, and leave their product
/// unchanged except for rounding.
struct Transform {
  static constexpr int kMaxBlock = 1024;
  static constexpr int kMaxPattern = 256;

  TransformKind kind = TransformKind::none;
  int block = 0;      ///< elements transformed together; 0: all of K, or all rows
  bool left = false;  ///< Hadamard: along the rows, as a matrix on the left of the operand (HALO)
  SignSource signs = SignSource::none;
  SignSide side = SignSide::before;
  int pattern_length = 0;                         ///< signs of a fixed pattern
  std::array<std::uint64_t, 4> negative_signs{};  ///< bit i of the pattern: sign i is minus
  float strength = 0.0f;   ///< smoothing: s_j = amax_j(A)^strength / amax_j(B)^(1 - strength)
  bool is_static = false;  ///< smoothing: s of the first micro-batch of a stage, else of each
  double quantile = 1.0;   ///< clamp: quantile of the upper bound; 1 - quantile
                           ///< is that of the lower one
  Compensation compensation = Compensation::none;  ///< clamp: of its residual

  bool operator==(const Transform&) const = default;
  explicit operator bool() const { return kind != TransformKind::none; }
  bool is_smoothing() const { return kind == TransformKind::smoothing; }
  bool is_expansion() const { return kind == TransformKind::expansion; }
  bool is_clamp() const { return kind == TransformKind::clamp; }
  bool is_compensated() const { return compensation != Compensation::none; }
  /// Returns true for a linear map, which ops::Dequantize undoes.
  bool is_linear() const { return *this && !is_expansion() && !is_clamp(); }
  /// Returns true if it cancels in the product with the same transform of the other operand.
  bool is_along_k() const { return is_linear() && !left; }
  bool is_negative(std::int64_t position) const {
    const auto i = static_cast<std::size_t>(position % pattern_length);
    return (negative_signs[i / 64] >> (i % 64) & 1u) != 0;
  }
};

/// Returns "none", "hadamard:BLOCK[:SIGNS[:after]]", the same after "left:",
/// "smooth:STRENGTH[:static]", "expand" or "clamp:QUANTILE[:compensated[:quantized]]". BLOCK
/// elements of K, after "left:" BLOCK rows, are transformed together, "full" for all of them. SIGNS
/// is "drawn" or the pattern itself, such as "+-+-".
std::string transform_name(const Transform& transform);

/// Inverse of transform_name. Empty for other names, for a block that is not the order of a
/// Hadamard matrix from 2 to kMaxBlock, for patterns of more than kMaxPattern signs or of a length
/// that does not divide the block, for strengths outside 0 to 1, and for quantiles that are not
/// above 0.5 and at most 1.
std::optional<Transform> transform_from_name(std::string_view name);

/// The names that transform_from_name accepts, for messages.
inline constexpr std::string_view kTransformNames =
    "none, hadamard:BLOCK[:SIGNS[:after]] with BLOCK full or the order of a Hadamard matrix from 2 "
    "to 1024 such as 16, SIGNS drawn or a pattern such as +-+- that divides the block; the same "
    "after left:, along the rows; "
    "smooth:STRENGTH[:static] with STRENGTH from 0 to 1; expand; "
    "clamp:QUANTILE[:compensated[:quantized]] with QUANTILE above 0.5 and at most 1";

/// Returns why `transform` cannot be applied to an operand (rows, k); empty if it can.
std::string transform_refusal(const Transform& transform, std::int64_t rows, std::int64_t k);

}  // namespace fp8lab
