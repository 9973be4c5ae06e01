#include "emulation/spec/estimator.hpp"

#include <fmt/format.h>

#include <charconv>

#include "emulation/spec/fields.hpp"

namespace fp8lab {
namespace {

constexpr std::string_view kStd = "std:";
constexpr std::string_view kDge = "dge:";
constexpr float kSteepest = 64.0f, kLargestCap = 1024.0f, kMostDeviations = 64.0f;

/// Parses a number above 0 and at most `most`.
std::optional<float> positive(std::string_view text, float most) {
  float value = 0.0f;
  const char* const last = text.data() + text.size();
  const auto [end, error] = std::from_chars(text.data(), last, value);
  if (error != std::errc{} || end != last || !(value > 0.0f && value <= most)) return std::nullopt;
  return value;
}

}  // namespace

std::string estimator_name(const numerics::Estimator& estimator) {
  switch (estimator.kind) {
    case numerics::EstimatorKind::straight_through: return "ste";
    case numerics::EstimatorKind::clip_mask: return "clip_mask";
    case numerics::EstimatorKind::dge:
      return fmt::format("dge:{}:{}", fields::shortest_double(estimator.steepness),
                         fields::shortest_double(estimator.cap));
  }
  return "?";
}

std::optional<numerics::Estimator> estimator_from_name(std::string_view name) {
  numerics::Estimator estimator;
  if (name == "ste") return estimator;
  if (name == "clip_mask") {
    estimator.kind = numerics::EstimatorKind::clip_mask;
    return estimator;
  }
  if (!name.starts_with(kDge)) return std::nullopt;
  name.remove_prefix(kDge.size());
  const std::size_t colon = name.find(':');
  if (colon == std::string_view::npos) return std::nullopt;
  const std::optional<float> steepness = positive(name.substr(0, colon), kSteepest);
  const std::optional<float> cap = positive(name.substr(colon + 1), kLargestCap);
  if (!steepness || !cap || *steepness < 1.0f) return std::nullopt;
  estimator.kind = numerics::EstimatorKind::dge;
  estimator.steepness = *steepness;
  estimator.cap = *cap;
  return estimator;
}

std::string statistic_name(float deviations) {
  if (deviations == 0.0f) return "amax";
  return fmt::format("std:{}", fields::shortest_double(deviations));
}

std::optional<float> statistic_from_name(std::string_view name) {
  if (name == "amax") return 0.0f;
  if (!name.starts_with(kStd)) return std::nullopt;
  return positive(name.substr(kStd.size()), kMostDeviations);
}

}  // namespace fp8lab
