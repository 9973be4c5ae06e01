// The operations of emulation/ops on the CPU, as fast as it can with the bits that their headers
// define.
//
// Operators written there as + - * / sqrt are IEEE FP32 operations, each rounded to nearest even
// with subnormals kept; parentheses give the order and nothing is contracted. exp2, log2, sigmoid
// and silu are those of numerics/exact_math.hpp, tree_sum that of numerics/tree_sum.hpp. Inputs are
// widened exactly, results are rounded once on the store: to bf16 by to_bf16, to f32 with a NaN
// replaced by the canonical one. Unless said otherwise a tensor is bf16 or f32, and views may be
// strided. Each function throws Error naming the operation, the tensor and its shape when something
// does not fit. Work is spread with OpenMP over independent outputs: the bits do not depend on the
// number of threads, nor on the SIMD target.
#pragma once

#include "emulation/ops/list.hpp"

namespace fp8lab::cpu {

#define FP8LAB_OPERATION(Name) void run(const ops::Name& op);
FP8LAB_FOR_EACH_OPERATION(FP8LAB_OPERATION)
#undef FP8LAB_OPERATION

}  // namespace fp8lab::cpu
