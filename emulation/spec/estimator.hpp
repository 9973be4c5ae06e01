// Names of gradient estimators and of scale statistics.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "emulation/numerics/estimator.hpp"

namespace fp8lab {

/// Returns "ste", "clip_mask" or "dge:K:CAP".
std::string estimator_name(const numerics::Estimator& estimator);

/// Inverse of estimator_name, with K from 1 to 64 and CAP above 0 and at most
/// 1024. Empty for other names.
std::optional<numerics::Estimator> estimator_from_name(std::string_view name);

/// The names that estimator_from_name accepts, for messages.
inline constexpr std::string_view kEstimatorNames =
    "ste, clip_mask, dge:K:CAP such as dge:5:3 with K from 1 to 64 and CAP above 0 and at most "
    "1024";

/// Returns the name of ScaleRule::deviations: "amax", or "std:C" for C standard deviations.
std::string statistic_name(float deviations);

/// Inverse of statistic_name, with C above 0 and at most 64. Empty for other names.
std::optional<float> statistic_from_name(std::string_view name);

/// The names that statistic_from_name accepts, for messages.
inline constexpr std::string_view kStatisticNames =
    "amax, std:C such as std:2.92247856 with C above 0 and at most 64";

}  // namespace fp8lab
