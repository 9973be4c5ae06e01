// SwiGLU, GEGLU, GELU, squared ReLU and their gradients on groups of elements. NaN results need not
// be canonical.
#pragma once

#include "emulation/numerics/exact_math.hpp"
#include "emulation/numerics/gelu.hpp"
#include "emulation/numerics/relu2.hpp"
#include "emulation/ops/pointwise/activation.hpp"
#include "emulation/ops/pointwise/gated.hpp"
#include "kernels/pointwise/reciprocal.cuh"
#include "kernels/pointwise/rows.cuh"

namespace fp8lab::cuda {

static_assert(numerics::kExp2Normal < 126.0f);  // for divisors below kLargestDivisor

/// Computes numerics::sigmoid of each element. For NaN the result is any number: the
/// product with the NaN stays NaN.
__device__ inline void sigmoid(const float (&x)[kGroup], float (&result)[kGroup]) {
  bool ordinary = true;
#pragma unroll
  for (int i = 0; i < kGroup; ++i) {
    const float exponent = numerics::sigmoid_exponent(x[i]);
    ordinary &= fabsf(exponent) <= numerics::kExp2Normal;
    result[i] = reciprocal(1.0f + numerics::exp2_normal(exponent));
  }
  if (ordinary) return;
#pragma unroll
  for (int i = 0; i < kGroup; ++i) result[i] = 1.0f / numerics::sigmoid_divisor(x[i]);
}

__device__ inline void swiglu(const float (&gate)[kGroup], const float (&up)[kGroup],
                              float (&out)[kGroup]) {
  float sig[kGroup];
  sigmoid(gate, sig);
#pragma unroll
  for (int i = 0; i < kGroup; ++i) out[i] = (gate[i] * sig[i]) * up[i];
}

__device__ inline void swiglu_gradient(const float (&gate)[kGroup], const float (&up)[kGroup],
                                       const float (&dout)[kGroup], float (&dgate)[kGroup],
                                       float (&dup)[kGroup]) {
  float sig[kGroup];
  sigmoid(gate, sig);
#pragma unroll
  for (int i = 0; i < kGroup; ++i) {
    const float slope = sig[i] * (1.0f + gate[i] * (1.0f - sig[i]));
    dgate[i] = (dout[i] * up[i]) * slope;
    dup[i] = dout[i] * (gate[i] * sig[i]);
  }
}

/// Computes the sigmoid of GELU and its gradient. Its argument is NaN only for NaN.
__device__ inline void gelu_sigmoid(const float (&x)[kGroup], float (&sig)[kGroup]) {
  float arguments[kGroup];
#pragma unroll
  for (int i = 0; i < kGroup; ++i) arguments[i] = numerics::gelu_argument(x[i]);
  sigmoid(arguments, sig);
}

__device__ inline void gelu(const float (&x)[kGroup], float (&out)[kGroup]) {
  float sig[kGroup];
  gelu_sigmoid(x, sig);
#pragma unroll
  for (int i = 0; i < kGroup; ++i) out[i] = x[i] * sig[i];
}

__device__ inline void gelu_gradient(const float (&x)[kGroup], const float (&dout)[kGroup],
                                     float (&dx)[kGroup]) {
  float sig[kGroup];
  gelu_sigmoid(x, sig);
#pragma unroll
  for (int i = 0; i < kGroup; ++i) dx[i] = dout[i] * numerics::gelu_slope(x[i], sig[i]);
}

__device__ inline void geglu(const float (&gate)[kGroup], const float (&up)[kGroup],
                             float (&out)[kGroup]) {
  float sig[kGroup];
  gelu_sigmoid(gate, sig);
#pragma unroll
  for (int i = 0; i < kGroup; ++i) out[i] = (gate[i] * sig[i]) * up[i];
}

__device__ inline void geglu_gradient(const float (&gate)[kGroup], const float (&up)[kGroup],
                                      const float (&dout)[kGroup], float (&dgate)[kGroup],
                                      float (&dup)[kGroup]) {
  float sig[kGroup];
  gelu_sigmoid(gate, sig);
#pragma unroll
  for (int i = 0; i < kGroup; ++i) {
    dgate[i] = (dout[i] * up[i]) * numerics::gelu_slope(gate[i], sig[i]);
    dup[i] = dout[i] * (gate[i] * sig[i]);
  }
}

template <Activation kKind>
__device__ inline void activate(const float (&x)[kGroup], float (&out)[kGroup]) {
  if constexpr (kKind == Activation::gelu_tanh) {
    gelu(x, out);
  } else {
#pragma unroll
    for (int i = 0; i < kGroup; ++i) out[i] = numerics::relu2(x[i]);
  }
}

template <Activation kKind>
__device__ inline void activate_gradient(const float (&x)[kGroup], const float (&dout)[kGroup],
                                         float (&dx)[kGroup]) {
  if constexpr (kKind == Activation::gelu_tanh) {
    gelu_gradient(x, dout, dx);
  } else {
#pragma unroll
    for (int i = 0; i < kGroup; ++i) dx[i] = numerics::relu2_gradient(x[i], dout[i]);
  }
}

/// Calls body.operator()<gate>() with the gate as a template argument.
template <class Body>
void with_gate(Gate gate, const Body& body) {
  switch (gate) {
    case Gate::silu: return body.template operator()<Gate::silu>();
    case Gate::gelu_tanh: return body.template operator()<Gate::gelu_tanh>();
  }
}

/// Calls body.operator()<kind>() with the kind as a template argument.
template <class Body>
void with_activation(Activation kind, const Body& body) {
  switch (kind) {
    case Activation::gelu_tanh: return body.template operator()<Activation::gelu_tanh>();
    case Activation::relu2: return body.template operator()<Activation::relu2>();
  }
}

}  // namespace fp8lab::cuda
