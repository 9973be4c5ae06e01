// Which composites a fused kernel runs: one table, which CudaBackend::supports() reports,
// CudaBackend::run() follows and `train --dry-run --kernels` prints.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "emulation/ops/list.hpp"
#include "kernels/plan/quantize_plan.hpp"

namespace fp8lab::cuda {

/// What a fused kernel makes of a producer's result.
enum class FusedWork : std::uint8_t {
  alone,           ///< the composite itself; no operand is quantized
  quantized,       ///< ops::ProduceQuantize in the orientation of the result
  quantized_both,  ///< ops::ProduceQuantize in both orientations
};

/// Types of the activations of a fused kernel; all of one operation have the same type.
enum class FusedTypes : std::uint8_t {
  bf16,
  bf16_or_f32,
  any,  ///< the plan of the composite decides
};

/// The kernel of a fused producer.
enum class FusedKernel : std::uint8_t {
  rows,         ///< whole rows in the registers of a block
  elements,     ///< element-wise in blocks of 128 x 128
  norm_blocks,  ///< a pass over rows for rstd, and for the sum; then blocks of 128 x 128
  row_columns,  ///< gradients of rows, with sums of columns in registers
  one_reading,  ///< one pass over a source for two operands
};

struct Fusion {
  std::string_view
      producer;  ///< kName of the operation, or of the producer of ops::ProduceQuantize
  FusedWork work;
  FusedTypes types;
  FusedKernel kernel;
  int parts = 1;  ///< elements: patches of a thread, one for each part of the result side by side

  /// Returns true if the kernel writes the result of the producer; false if it must not be kept.
  bool can_keep_output() const { return kernel != FusedKernel::norm_blocks; }
  /// "rows in registers", for plans and messages.
  std::string_view name() const;
};

/// All fused kernels.
std::span<const Fusion> fusions();

/// The fused kernel of ops::ProduceQuantize with the plans of its operands.
struct ProducePlan {
  const Fusion* fusion;
  QuantizePlan first;
  std::optional<QuantizePlan> second{};
};

/// Returns the plan of a fused kernel for `op`; empty if its parts run one after the other. Looks
/// at names, types, shapes, specs and the alignment of views, which may have no memory.
std::optional<ProducePlan> plan_fusion(const ops::ProduceQuantize& op);

/// "rows in registers: known_scale_kernel, row_kernel with the e4m3 instruction".
std::string describe(const ProducePlan& plan);

/// Return the fused kernel for `op`; null if its parts run one after the other.
const Fusion* fusion_of(const ops::ProduceQuantize& op);
const Fusion* fusion_of(const ops::AddRmsNormForward& op);
const Fusion* fusion_of(const ops::RmsNormBackwardAdd& op);
const Fusion* fusion_of(const ops::QuantizeBoth& op);
const Fusion* fusion_of(const ops::MeasureBoth& op);
inline const Fusion* fusion_of(const ops::AddLayerNormForward&) { return nullptr; }
inline const Fusion* fusion_of(const ops::LayerNormBackwardAdd&) { return nullptr; }
inline const Fusion* fusion_of(const ops::Product&) { return nullptr; }

/// Return true if a block can hold a row of the norm, all of its activations being bf16 or
/// all f32. The norms of heads are not among them.
bool has_held_rows(const ops::RmsNormForward& norm, DType type);
bool has_held_rows(const ops::AddRmsNormForward& op, DType type);

/// Returns true if registers hold rows of the gradients dy, x and `result`, which are bf16.
bool has_whole_rows(const ops::RmsNormBackward& op, const TensorView& result);

}  // namespace fp8lab::cuda
