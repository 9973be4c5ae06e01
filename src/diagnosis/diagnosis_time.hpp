// How long a diagnosis will take, before it begins.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "src/diagnosis/checkpoint_step.hpp"
#include "src/error_sources/switches.hpp"

namespace fp8lab {

/// Seconds of the forward and backward pass of one micro-batch, from timed operations (plan_time).
struct PassTime {
  double gemms = 0, rest = 0;
};

/// Of a micro-batch of `run` under `recipe` on `backend`, with the sources of error `exact`
/// replaced (RunConfig::exact).
PassTime time_pass(const CheckpointedRun& run, const Recipe& recipe, Backend& backend,
                   std::vector<std::string> exact = {});

/// Seconds of a gradient in which `switches` leave some sources of error, from `emulated`, its time
/// with all of them, and `exact`, with none: a GEMM whose operands keep only some of their errors
/// takes two exact products beside the emulated one (PartialQuantization).
double gradient_seconds(const Switches& switches, const std::vector<LinearDeclaration>& linears,
                        const PassTime& emulated, const PassTime& exact);

/// Whether `passes` passes are so little work that timing them would take longer.
bool takes_no_time(const CheckpointedRun& run, const Recipe& recipe, const Backend& backend,
                   std::size_t passes);

/// Seconds of replay_step; nothing where it is over sooner than it is estimated.
std::optional<double> replay_seconds(Backend& backend, const CheckpointedRun& run,
                                     const std::vector<Recipe>& recipes,
                                     const std::vector<std::string>& layers);

}  // namespace fp8lab
