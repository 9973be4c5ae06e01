// Transforms of an operand before its quantization.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>

namespace fp8lab {

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

/// No transform: the tensor itself is quantized.
struct NoTransform {
  static constexpr bool kIsLinear = false;

  bool operator==(const NoTransform&) const = default;
};

/// Multiplies the vectors along K by an orthonormal Hadamard matrix, or those along the rows
/// (`left`), which ops::RotateBack undoes in the product.
struct Hadamard {
  static constexpr bool kIsLinear = true;
  static constexpr int kMaxBlock = 1024;
  static constexpr int kMaxPattern = 256;

  int block = 0;      ///< elements transformed together; 0: all of K, or all rows
  bool left = false;  ///< along the rows, as a matrix on the left of the operand (HALO)
  SignSource signs = SignSource::none;
  SignSide side = SignSide::before;
  int pattern_length = 0;                         ///< signs of a fixed pattern
  std::array<std::uint64_t, 4> negative_signs{};  ///< bit i of the pattern: sign i is minus

  bool operator==(const Hadamard&) const = default;
  bool is_negative(std::int64_t position) const {
    const auto i = static_cast<std::size_t>(position % pattern_length);
    return (negative_signs[i / 64] >> (i % 64) & 1u) != 0;
  }
};

/// Divides position j of K by s_j in A and multiplies it by s_j in B, where
/// s_j = amax_j(A)^strength / amax_j(B)^(1 - strength).
struct Smoothing {
  static constexpr bool kIsLinear = true;

  float strength = 0.0f;
  bool is_static = false;  ///< s of the first micro-batch of a stage, else of each

  bool operator==(const Smoothing&) const = default;
};

/// Raises each tile to the power that fits its range to the format (numerics::ExpandedGroup).
/// Undone before the operand is multiplied, so it does not affect the other operand.
struct RangeExpansion {
  static constexpr bool kIsLinear = false;

  bool operator==(const RangeExpansion&) const = default;
};

/// Moves elements beyond two quantiles of the tensor to these quantiles. The other operand does
/// not change; the residual may be multiplied separately (ops::Compensate).
struct Clamp {
  static constexpr bool kIsLinear = false;

  double quantile = 1.0;  ///< of the upper bound; 1 - quantile is that of the lower one
  Compensation compensation = Compensation::none;  ///< of its residual

  bool operator==(const Clamp&) const = default;
};

/// The transform of an operand before quantization: one of the kinds above. The linear ones, along
/// K and the same for both operands A and B of A B^T, leave their product unchanged except for
/// rounding.
struct Transform {
  std::variant<NoTransform, Hadamard, Smoothing, RangeExpansion, Clamp> kind{};

  bool operator==(const Transform&) const = default;
  explicit operator bool() const { return !is<NoTransform>(); }
  template <class Kind>
  bool is() const {
    return std::holds_alternative<Kind>(kind);
  }
  /// Returns the parameters of a transform of this kind; null for another kind.
  template <class Kind>
  const Kind* as() const {
    return std::get_if<Kind>(&kind);
  }
  /// Returns true for a linear map, which ops::Dequantize undoes.
  bool is_linear() const {
    return std::visit([]<class Kind>(const Kind&) { return Kind::kIsLinear; }, kind);
  }
  /// Returns true for a transform along the rows.
  bool is_left() const { return is<Hadamard>() && as<Hadamard>()->left; }
  /// Returns true if it cancels in the product with the same transform of the other operand.
  bool is_along_k() const { return is_linear() && !is_left(); }
  bool has_drawn_signs() const {
    return is<Hadamard>() && as<Hadamard>()->signs == SignSource::drawn;
  }
  /// Returns the compensation of a clamp, none for the other kinds.
  Compensation compensation() const {
    return is<Clamp>() ? as<Clamp>()->compensation : Compensation::none;
  }
  bool is_compensated() const { return compensation() != Compensation::none; }
};

/// Returns "none", "hadamard:BLOCK[:SIGNS[:after]]", the same after "left:",
/// "smooth:STRENGTH[:static]", "expand" or "clamp:QUANTILE[:compensated[:quantized]]". BLOCK
/// elements of K, after "left:" BLOCK rows, are transformed together, "full" for all of them. SIGNS
/// is "drawn" or the pattern itself, such as "+-+-".
std::string transform_name(const Transform& transform);

/// Inverse of transform_name. Empty for other names, for a block that is not the order of a
/// Hadamard matrix from 2 to Hadamard::kMaxBlock, for patterns of more than Hadamard::kMaxPattern
/// signs or of a length that does not divide the block, for strengths outside 0 to 1, and for
/// quantiles that are not above 0.5 and at most 1.
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
