// What a step computes, tensor by tensor: also outside of GEMMs.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "src/diagnosis/checkpoint_step.hpp"

namespace fp8lab {

/// One tensor that an operation of the forward or backward pass wrote, of values in bf16, f32 or
/// f64, right after it. Sums in double, in the order of the elements.
struct StepTensor {
  std::string phase;      ///< "weights", "forward" or "backward"
  std::string layer;      ///< "layers.0.attention.qkv", "layers.0.mlp"; empty: of no layer
  std::string operation;  ///< "rmsnorm_forward"; of a product in brackets the GEMM
  std::string output;     ///< as the operation calls it: "d", "dx"
  std::int64_t rows = 0, cols = 0;
  double mean = 0, deviation = 0;  ///< of all elements; NaN where one is not finite
  double amax = 0;                 ///< of the finite ones
  double zeros = 0;                ///< fraction
  std::int64_t nonfinite = 0;
};

/// All tensors of `step`, in the order in which they are written, in the run's own recipe. The
/// operations of a step that are enqueued together are taken one by one.
std::vector<StepTensor> tensors_of_step(Backend& backend, const CheckpointedRun& run,
                                        const StepBatch& step);

}  // namespace fp8lab
