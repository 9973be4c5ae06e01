// SwiGLU and its gradient, element by element.
#pragma once

#include "emulation/numerics/exact_math.hpp"

namespace fp8lab::cuda {

__device__ inline float swiglu(float gate, float up) { return numerics::silu(gate) * up; }

__device__ inline float swiglu_dgate(float gate, float up, float dout) {
  const float sig = numerics::sigmoid(gate);
  const float slope = sig * (1.0f + gate * (1.0f - sig));
  return (dout * up) * slope;
}

__device__ inline float swiglu_dup(float gate, float dout) { return dout * numerics::silu(gate); }

}  // namespace fp8lab::cuda
