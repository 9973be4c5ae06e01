// The truth path: the same model in double precision, without quantization, for gradient checks.
#pragma once

#include <memory>

#include "emulation/backend.hpp"

namespace fp8lab::reference {

/// Every real tensor is f64 and every operation is the textbook formula; recipes are read but not
/// applied. An implementation independent of the emulator's: it shares no arithmetic with it.
std::unique_ptr<Backend> make_truth_backend(int threads);

}  // namespace fp8lab::reference
