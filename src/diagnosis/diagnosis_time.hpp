// Estimates the time of a diagnosis before it begins.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "src/diagnosis/checkpoint_step.hpp"
#include "src/error_sources/switches.hpp"

namespace fp8lab {

/// Seconds of the forward and backward pass of one micro-batch, by plan_time.
struct PassTime {
  double gemms = 0, rest = 0;
};

/// Seconds of timing for the estimate of a whole diagnosis.
inline constexpr double kEstimateSeconds = 1.5;

/// Estimates the time of a micro-batch of `run` under `recipe` on `backend` by operations timed for
/// about `within` seconds, with the sources of error `exact` replaced (RunConfig::exact).
PassTime time_pass(const CheckpointedRun& run, const Recipe& recipe, Backend& backend,
                   double within, std::vector<std::string> exact = {});

/// Estimates the seconds of a gradient with the error sources in `switches`. `emulated` is the time
/// with every source, `exact` the time with none. A GEMM whose operands keep only some errors needs
/// two exact products in addition to the emulated one (PartialQuantization).
double gradient_seconds(const Switches& switches, const std::vector<LinearDeclaration>& linears,
                        const PassTime& emulated, const PassTime& exact);

/// Returns true if timing the operations would take longer than `passes` passes.
bool takes_no_time(const CheckpointedRun& run, const Recipe& recipe, const Backend& backend,
                   std::size_t passes);

/// Estimates the seconds of replay_step; none if the estimate would take longer than the replay.
std::optional<double> replay_seconds(Backend& backend, const CheckpointedRun& run,
                                     const std::vector<Recipe>& recipes,
                                     const std::vector<std::string>& layers);

}  // namespace fp8lab
