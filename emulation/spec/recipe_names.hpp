// The words of recipe files and their values: one table for reading and for printing.
#pragma once

#include <array>
#include <optional>
#include <string_view>

#include "emulation/spec/gemm_spec.hpp"
#include "emulation/spec/quant_spec.hpp"

namespace fp8lab {

/// A value and the word that names it.
template <class T>
struct Named {
  std::string_view name;
  T value;
};

inline constexpr std::array<Named<numerics::ScaleFormat>, 6> kScaleFormatNames = {{
    {"fp32", numerics::ScaleFormat::fp32},
    {"pow2", numerics::ScaleFormat::pow2},
    {"e8m0", numerics::ScaleFormat::e8m0},
    {"bf16", numerics::ScaleFormat::bf16},
    {"e4m3", numerics::ScaleFormat::e4m3},
    {"nv_two_level", numerics::ScaleFormat::nv_two_level},
}};

inline constexpr std::array<Named<numerics::EpsilonMode>, 2> kEpsilonModeNames = {{
    {"floor", numerics::EpsilonMode::floor},
    {"add", numerics::EpsilonMode::add},
}};

inline constexpr std::array<Named<numerics::EncodeLimit>, 2> kEncodeLimitNames = {{
    {"fp32", numerics::EncodeLimit::fp32},
    {"bf16", numerics::EncodeLimit::bf16},
}};

inline constexpr std::array<Named<numerics::ScaleOverflow>, 2> kScaleOverflowNames = {{
    {"saturate", numerics::ScaleOverflow::saturate},
    {"nan", numerics::ScaleOverflow::nan},
}};

inline constexpr std::array<Named<numerics::FourOverSix>, 3> kFourOverSixNames = {{
    {"none", numerics::FourOverSix::none},
    {"mae", numerics::FourOverSix::mae},
    {"mse", numerics::FourOverSix::mse},
}};

inline constexpr std::array<Named<numerics::OuterScale>, 2> kOuterScaleNames = {{
    {"tensor", numerics::OuterScale::tensor},
    {"row", numerics::OuterScale::row},
}};

inline constexpr std::array<Named<numerics::ScaleRounding>, 7> kScaleRoundingNames = {{
    {"nearest", numerics::ScaleRounding::nearest},
    {"ceil", numerics::ScaleRounding::ceil},
    {"enc_floor", numerics::ScaleRounding::enc_floor},
    {"ocp_floor", numerics::ScaleRounding::ocp_floor},
    {"rceil", numerics::ScaleRounding::rceil},
    {"even", numerics::ScaleRounding::even},
    {"floor", numerics::ScaleRounding::floor},
}};

inline constexpr std::array<Named<numerics::ScaleArithmetic>, 3> kScaleArithmeticNames = {{
    {"enc_div", numerics::ScaleArithmetic::enc_div},
    {"dec_div_recip", numerics::ScaleArithmetic::dec_div_recip},
    {"dec_div", numerics::ScaleArithmetic::dec_div},
}};

inline constexpr std::array<Named<ScaleSource>, 4> kScaleSourceNames = {{
    {"current", ScaleSource::current},
    {"delayed", ScaleSource::delayed},
    {"static", ScaleSource::static_scale},
    {"none", ScaleSource::none},
}};

inline constexpr std::array<Named<numerics::Rounding>, 5> kRoundingNames = {{
    {"nearest", numerics::Rounding::nearest},
    {"ties_down", numerics::Rounding::ties_down},
    {"ties_positive", numerics::Rounding::ties_positive},
    {"toward_zero", numerics::Rounding::toward_zero},
    {"stochastic", numerics::Rounding::stochastic},
}};

inline constexpr std::array<Named<numerics::Overflow>, 2> kOverflowNames = {{
    {"saturate", numerics::Overflow::saturate},
    {"special", numerics::Overflow::special},
}};

inline constexpr std::array<Named<AmaxAlgorithm>, 3> kAmaxAlgorithmNames = {{
    {"max", AmaxAlgorithm::max},
    {"most_recent", AmaxAlgorithm::most_recent},
    {"window", AmaxAlgorithm::window},
}};

inline constexpr std::array<Named<OrientationSource>, 4> kOrientationSourceNames = {{
    {"high_precision", OrientationSource::high_precision},
    {"requantized", OrientationSource::requantized},
    {"dequantized", OrientationSource::dequantized},
    {"transformed", OrientationSource::transformed},
}};

inline constexpr std::array<Named<WeightSource>, 2> kWeightSourceNames = {{
    {"bf16", WeightSource::bf16},
    {"master", WeightSource::master},
}};

inline constexpr std::array<Named<ScaleOrder>, 6> kScaleOrderNames = {{
    {"automatic", ScaleOrder::automatic},
    {"epilogue", ScaleOrder::epilogue},
    {"b_then_a", ScaleOrder::b_then_a},
    {"a_then_b", ScaleOrder::a_then_b},
    {"product_first", ScaleOrder::product_first},
    {"in_instruction", ScaleOrder::in_instruction},
}};

/// Storage types that configuration files may name.
inline constexpr std::array<Named<DType>, 2> kStorageNames = {{
    {"bf16", DType::bf16},
    {"fp32", DType::f32},
}};

/// Returns the word for `value`, "?" if the table lacks it.
template <class T, std::size_t N>
constexpr std::string_view word_for(const std::array<Named<T>, N>& table, T value) {
  for (const Named<T>& entry : table) {
    if (entry.value == value) return entry.name;
  }
  return "?";
}

/// Returns the value of `word`; nothing if the table lacks it.
template <class T, std::size_t N>
constexpr std::optional<T> value_for(const std::array<Named<T>, N>& table, std::string_view word) {
  for (const Named<T>& entry : table) {
    if (entry.name == word) return entry.value;
  }
  return std::nullopt;
}

}  // namespace fp8lab
