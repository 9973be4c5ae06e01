// The list of the operations of a training step.
//
// The list generates the virtual functions of Backend, the functions that an implementation must
// define (a missing one fails to link), and all code that iterates over operations. To add an
// operation, add its header in this folder with its tensors (tensors.hpp), check() and its cost
// (cost.hpp), a line here, one definition of `run` in emulation/cpu, emulation/reference and
// kernels, and its random cases in emulation/cases.
#pragma once

#include "emulation/ops/attention/attention.hpp"
#include "emulation/ops/attention/quantized_attention.hpp"
#include "emulation/ops/attention/rope.hpp"
#include "emulation/ops/gemm/compensate.hpp"
#include "emulation/ops/gemm/estimator_factor.hpp"
#include "emulation/ops/gemm/gemm.hpp"
#include "emulation/ops/gemm/join_products.hpp"
#include "emulation/ops/gemm/product.hpp"
#include "emulation/ops/gemm/rotate_back.hpp"
#include "emulation/ops/optimizer/adamw.hpp"
#include "emulation/ops/optimizer/hash_tensors.hpp"
#include "emulation/ops/optimizer/orthogonalize.hpp"
#include "emulation/ops/optimizer/stored_state.hpp"
#include "emulation/ops/optimizer/update.hpp"
#include "emulation/ops/pointwise/activation.hpp"
#include "emulation/ops/pointwise/add.hpp"
#include "emulation/ops/pointwise/add_norm.hpp"
#include "emulation/ops/pointwise/argmax.hpp"
#include "emulation/ops/pointwise/bias.hpp"
#include "emulation/ops/pointwise/copy.hpp"
#include "emulation/ops/pointwise/cross_entropy.hpp"
#include "emulation/ops/pointwise/dynamic_tanh.hpp"
#include "emulation/ops/pointwise/embedding.hpp"
#include "emulation/ops/pointwise/gated.hpp"
#include "emulation/ops/pointwise/layernorm.hpp"
#include "emulation/ops/pointwise/rmsnorm.hpp"
#include "emulation/ops/pointwise/row_cosines.hpp"
#include "emulation/ops/pointwise/square_distance.hpp"
#include "emulation/ops/pointwise/weighted_sum.hpp"
#include "emulation/ops/pointwise/xielu.hpp"
#include "emulation/ops/produce.hpp"
#include "emulation/ops/quantize/delayed_scale.hpp"
#include "emulation/ops/quantize/dequantize.hpp"
#include "emulation/ops/quantize/operand_statistics.hpp"
#include "emulation/ops/quantize/partial_values.hpp"
#include "emulation/ops/quantize/quantize.hpp"
#include "emulation/ops/quantize/smoothing.hpp"

/// Calls X(Name) for every operation that each backend implements.
#define FP8LAB_FOR_EACH_OPERATION(X) \
  X(Copy)                            \
  X(Quantize)                        \
  X(Dequantize)                      \
  X(PartialValues)                   \
  X(UpdateDelayedScale)              \
  X(SmoothingFactors)                \
  X(Gemm)                            \
  X(JoinProducts)                    \
  X(EstimatorFactor)                 \
  X(RotateBack)                      \
  X(Compensate)                      \
  X(MeasureOperand)                  \
  X(EmbeddingForward)                \
  X(EmbeddingBackward)               \
  X(RmsNormForward)                  \
  X(RmsNormBackward)                 \
  X(LayerNormForward)                \
  X(LayerNormBackward)               \
  X(Add)                             \
  X(WeightedSum)                     \
  X(BiasBackward)                    \
  X(Rope)                            \
  X(AttentionForward)                \
  X(AttentionBackward)               \
  X(AttentionCached)                 \
  X(QuantizedAttentionForward)       \
  X(QuantizedAttentionBackward)      \
  X(QuantizedAttentionCached)        \
  X(GatedForward)                    \
  X(GatedBackward)                   \
  X(ActivationForward)               \
  X(ActivationBackward)              \
  X(XieluForward)                    \
  X(XieluBackward)                   \
  X(DynamicTanhForward)              \
  X(DynamicTanhBackward)             \
  X(CrossEntropy)                    \
  X(Argmax)                          \
  X(AccumulateSquareSum)             \
  X(BeginUpdate)                     \
  X(AdamW)                           \
  X(StoreState)                      \
  X(LoadState)                       \
  X(AdvanceMoments)                  \
  X(Orthogonalize)                   \
  X(UpdateWeights)                   \
  X(RowCosines)                      \
  X(HashTensors)                     \
  X(SquareDistance)

/// Calls X(Name) for every operation that is composed of those above, by its for_each_part(). A
/// backend may fuse it into one pass over the data, with the bits of the composition.
#define FP8LAB_FOR_EACH_COMPOSITE(X) \
  X(AddRmsNormForward)               \
  X(AddLayerNormForward)             \
  X(RmsNormBackwardAdd)              \
  X(LayerNormBackwardAdd)            \
  X(QuantizeBoth)                    \
  X(MeasureBoth)                     \
  X(ProduceQuantize)                 \
  X(Product)
