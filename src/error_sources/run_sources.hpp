// The error sources that a run replaces by exact arithmetic (RunConfig::exact).
#pragma once

#include <memory>

#include "src/error_sources/partial_quantization.hpp"

namespace fp8lab {

/// Returns true if the run replaces any source.
inline bool has_exact_sources(const RunConfig& config) { return !config.exact.empty(); }

/// Returns the sources that a run keeps. Throws Error for a name that its model does not have, and
/// for a request to keep a source of scales alone, since a scale changes no value by itself.
Switches switches_of(const RunConfig& config);

/// Throws Error before the run starts if switches_of() refuses its sources, or if the backend is
/// not the CPU's: the operands of other backends cannot be replaced.
void check_exact_sources(const RunConfig& config, const Backend& backend);

/// Returns `recipe`, a recipe of the run's stages, without the replaced sources.
Recipe without_exact_sources(const RunConfig& config, const Recipe& recipe);
/// Returns the storage types of the run's weights, gradients and moments.
OptimizerConfig storage_of(const RunConfig& config);
/// Returns the backend that executes that recipe; null if `backend` itself does. Precondition:
/// `backend` outlives the result. Throws Error if switches_of() refuses the sources; whether a run
/// may execute on it, check_exact_sources() says before.
std::unique_ptr<Backend> backend_with_exact_sources(const RunConfig& config, Backend& backend);

}  // namespace fp8lab
