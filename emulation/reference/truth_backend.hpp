// The truth path: the same model in double precision, without quantization, for gradient checks.
#pragma once

#include <memory>

#include "emulation/backend.hpp"

namespace fp8lab::reference {

/// Returns the truth backend. Every real tensor is f64 and every operation is the textbook formula;
/// recipes are read but not applied. The implementation shares no arithmetic with the emulator.
std::unique_ptr<Backend> make_truth_backend(int threads);

}  // namespace fp8lab::reference
