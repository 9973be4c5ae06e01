// The list of the operations of a training step.
//
// The list generates the virtual functions of Backend, the functions that an implementation must
// define (a missing one fails to link), and all code that iterates over operations. To add an
// operation, add its header in this folder with check() and its cost (cost.hpp), a line here,
// one definition of `run` in emulation/cpu, emulation/reference and kernels, and its random
// cases in emulation/cases.
#pragma once

#include "emulation/ops/adamw.hpp"
#include "emulation/ops/add.hpp"
#include "emulation/ops/add_norm.hpp"
#include "emulation/ops/argmax.hpp"
#include "emulation/ops/attention.hpp"
#include "emulation/ops/bias.hpp"
#include "emulation/ops/compensate.hpp"
#include "emulation/ops/copy.hpp"
#include "emulation/ops/cross_entropy.hpp"
#include "emulation/ops/delayed_scale.hpp"
#include "emulation/ops/dequantize.hpp"
#include "emulation/ops/embedding.hpp"
#include "emulation/ops/estimator_factor.hpp"
#include "emulation/ops/gelu.hpp"
#include "emulation/ops/gemm.hpp"
#include "emulation/ops/hash_tensors.hpp"
#include "emulation/ops/layernorm.hpp"
#include "emulation/ops/operand_statistics.hpp"
#include "emulation/ops/produce.hpp"
#include "emulation/ops/product.hpp"
#include "emulation/ops/quantize.hpp"
#include "emulation/ops/rmsnorm.hpp"
#include "emulation/ops/rope.hpp"
#include "emulation/ops/rotate_back.hpp"
#include "emulation/ops/row_cosines.hpp"
#include "emulation/ops/smoothing.hpp"
#include "emulation/ops/stored_state.hpp"
#include "emulation/ops/swiglu.hpp"
#include "emulation/ops/update.hpp"

/// Calls X(Name) for every operation that each backend implements.
#define FP8LAB_FOR_EACH_OPERATION(X) \
  X(Copy)                            \
  X(Quantize)                        \
  X(Dequantize)                      \
  X(UpdateDelayedScale)              \
  X(SmoothingFactors)                \
  X(Gemm)                            \
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
  X(BiasBackward)                    \
  X(Rope)                            \
  X(AttentionForward)                \
  X(AttentionBackward)               \
  X(AttentionCached)                 \
  X(SwigluForward)                   \
  X(SwigluBackward)                  \
  X(GeluForward)                     \
  X(GeluBackward)                    \
  X(CrossEntropy)                    \
  X(Argmax)                          \
  X(AccumulateSquareSum)             \
  X(BeginUpdate)                     \
  X(AdamW)                           \
  X(StoreState)                      \
  X(LoadState)                       \
  X(AdvanceMoments)                  \
  X(UpdateWeights)                   \
  X(RowCosines)                      \
  X(HashTensors)

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
