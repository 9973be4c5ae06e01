// CPU implementations of the operations of emulation/ops, as fast as possible with the bits that
// those headers define.
//
// Operators written there as + - * / sqrt are IEEE FP32 operations, each rounded to nearest even
// with subnormals kept; parentheses give the order and nothing is contracted. exp2, log2, sigmoid
// and silu are those of numerics/exact_math.hpp, tree_sum that of numerics/tree_sum.hpp. Inputs are
// widened exactly. Results are rounded once on the store: to bf16 by to_bf16, to f32 with a NaN
// replaced by the canonical one. Unless said otherwise a tensor is bf16 or f32, and views may be
// strided. Each function throws Error with the names of operation and tensor and the tensor's shape
// if an argument does not fit. OpenMP spreads the work over independent outputs: the bits depend
// neither on the number of threads nor on the SIMD target.
#pragma once

#include "emulation/ops/list.hpp"

namespace fp8lab::cpu {

#define FP8LAB_OPERATION(Name) void run(const ops::Name& op);
FP8LAB_FOR_EACH_OPERATION(FP8LAB_OPERATION)
#undef FP8LAB_OPERATION

}  // namespace fp8lab::cpu
