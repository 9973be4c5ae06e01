// Statistics of every tensor that a step computes, also outside of GEMMs.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "src/diagnosis/checkpoint_step.hpp"

namespace fp8lab {

/// Statistics of one bf16, f32 or f64 output of an operation of the forward or backward pass, taken
/// right after the operation. Sums are in double precision, in element order.
struct StepTensor {
  std::string phase;      ///< "weights", "forward" or "backward"
  std::string layer;      ///< "layers.0.attention.qkv", "layers.0.mlp"; empty: no layer
  std::string operation;  ///< "rmsnorm_forward"; for a product also its GEMM, in parentheses
  std::string output;     ///< OperationTensor::name: "d", "dx"
  std::int64_t rows = 0, cols = 0;
  double mean = 0, deviation = 0;  ///< of all elements; NaN if one is not finite
  double amax = 0;                 ///< largest magnitude of the finite elements
  double zeros = 0;                ///< fraction of elements
  std::int64_t nonfinite = 0;
};

/// Runs `step` under the run's own recipe and returns all its tensors in the order of their
/// writing. Operations that are otherwise enqueued together run one by one.
std::vector<StepTensor> tensors_of_step(Backend& backend, const CheckpointedRun& run,
                                        const StepBatch& step);

}  // namespace fp8lab
