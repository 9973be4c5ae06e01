// The sources of error that a run replaces by exact arithmetic (RunConfig::exact).
#pragma once

#include <memory>

#include "src/error_sources/partial_quantization.hpp"

namespace fp8lab {

/// True where a run replaces some.
inline bool has_exact_sources(const RunConfig& config) { return !config.exact.empty(); }

/// What a run keeps. Throws Error for a name that its model does not have, and for what makes no
/// whole: scales alone.
Switches switches_of(const RunConfig& config);

/// Throws Error, before anything runs, for what switches_of() refuses and for a backend other than
/// the CPU's, which keeps operands where they cannot be replaced.
void check_exact_sources(const RunConfig& config, const Backend& backend);

/// `recipe`, of one of the run's stages, as the run trains with it.
Recipe without_exact_sources(const RunConfig& config, const Recipe& recipe);
/// The types in which the run stores weights, gradients and moments.
OptimizerConfig storage_of(const RunConfig& config);
/// The backend on which that recipe runs; null where it is `backend` itself, which must outlive it.
/// Throws Error as check_exact_sources() does.
std::unique_ptr<Backend> backend_with_exact_sources(const RunConfig& config, Backend& backend);

}  // namespace fp8lab
