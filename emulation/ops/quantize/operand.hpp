// Operands of a GEMM, and the keys and states of their quantization.
#pragma once

#include <cstdint>
#include <string_view>

#include "emulation/base/tensor_view.hpp"
#include "emulation/numerics/host_device.hpp"
#include "emulation/spec/quant_spec.hpp"

namespace fp8lab {

/// Identifies the random bits of one quantization: Philox key (seed, step, tensor, orientation),
/// with the logical element index in the source tensor as counter.
struct RandomKey {
  std::uint64_t seed = 0;
  std::uint32_t step = 0;
  std::uint32_t tensor = 0;
  std::uint32_t orientation = 0;  ///< 0: first orientation, 1: transposed
  /// Identifies the drawn signs of a transform within seed and step. It is that of the GEMM, so
  /// that its two operands share the signs.
  std::uint32_t rotation = 0;
  /// In backend memory, added to `step`: a training step reads its number there, so that the same
  /// enqueued operations can be replayed. Null: 0.
  const std::uint32_t* step_counter = nullptr;

  /// Returns the step number. Precondition: `step_counter` is readable from the caller.
  FP8LAB_HD std::uint32_t step_number() const {
    if (step_counter == nullptr) return step;
#ifdef __CUDA_ARCH__
    return step + __ldg(step_counter);  // nothing writes it while a kernel runs
#else
    return step + *step_counter;
#endif
  }
};

/// The extent of an operand that is contiguous in memory. Instructions read BF16 in either
/// order and FP8 along K only.
enum class StorageOrder : std::uint8_t { k_contiguous, rows_contiguous };

/// The space of values along one of their extents: the linear transform that produced them, with
/// all that its inverse needs.
struct Space {
  Transform transform{};         ///< a Hadamard transform or a smoothing;
                                 ///< none: the tensor's own space
  RandomKey key{};               ///< key of drawn signs
  TensorView channel_factors{};  ///< factors of a smoothing, f32 (1, extent)
  bool is_right = false;         ///< elements were multiplied by the factors, not divided

  explicit operator bool() const { return static_cast<bool>(transform); }
};

/// One GEMM operand in the form the multiplier reads: `rows` vectors of length `k`.
struct QuantizedOperand {
  QuantSpec spec;
  std::int64_t rows = 0;
  std::int64_t k = 0;
  /// (rows, k): u8 codes, or bf16/f32/f64 values if spec is not quantized. With rows contiguous (k,
  /// rows), for values only: a tensor is read along its other extent without a copy.
  TensorView codes;
  TensorView scales;  ///< (tile_rows, scale_cols) f32 decode scales; empty without a scale
  /// Key of the quantization that produces it, set by the caller; determines the random bits of the
  /// rounding and the drawn signs of a transform.
  RandomKey key{};
  /// Factors of a smoothing, by ops::SmoothingFactors: (1, k) f32, the same for both operands.
  TensorView channel_factors{};
  /// Operand B of A B^T: its elements are multiplied by the factors, those of A divided.
  bool is_right = false;
  /// Bounds of a clamp, written by ops::Quantize: (1, 2) f32, the lower and the upper bound.
  TensorView clamp_bounds{};
  StorageOrder order = StorageOrder::k_contiguous;
  /// Space of its rows, if it was quantized from values that were left in the space of another
  /// operand's K (ops::Dequantize).
  Space source_space{};
  std::string_view name{};  ///< "fprop.x", set by the caller; in traces

  /// Returns the space of its linear transform, along K or with `left` along the rows.
  Space own_space() const { return {spec.transform, key, channel_factors, is_right}; }
  /// Returns the space that ops::RotateBack undoes in the product.
  Space space_of_rows() const { return spec.transform.is_left() ? own_space() : source_space; }
  bool has_rows_contiguous() const { return order == StorageOrder::rows_contiguous; }
  /// Distance in memory, in elements, between neighbours along k and along the rows.
  std::int64_t k_step() const { return has_rows_contiguous() ? codes.row_stride : 1; }
  std::int64_t row_step() const { return has_rows_contiguous() ? 1 : codes.row_stride; }
  /// Returns element (row, i) of codes; T is their storage type.
  template <class T>
  T& element(std::int64_t row, std::int64_t i) const {
    return static_cast<T*>(codes.data)[row * row_step() + i * k_step()];
  }

  /// Returns an operand with specs and shapes only, for queries before any memory is allocated.
  static QuantizedOperand without_memory(const QuantSpec& spec, std::int64_t rows, std::int64_t k) {
    return {spec, rows, k, TensorView::without_memory(spec.storage(), rows, k), {}};
  }
};

/// Layout of the f32 vector that holds delayed-scaling state (specification.md, "Scales"). A zeroed
/// vector is the state before the first step: scale 1. Amaxes are compared as bits, so that a NaN
/// or infinity in the tensor is kept in kAmax and in the history.
struct DelayedState {
  static constexpr std::int64_t kScale = 0;  ///< current decode scale; 0 stands for 1
  static constexpr std::int64_t kAmax = 1;   ///< running amax of the current step
  /// Factor applied before the cast, TileScale::multiplier of kScale: RN(Qmax/amax) is not always
  /// RN(1/scale). 0 stands for 1.
  static constexpr std::int64_t kMultiplier = 2;
  static constexpr std::int64_t kHistory = 3;  ///< first of `history_length` amaxes, newest first
  /// AmaxAlgorithm::window: one more value follows the history, the number of steps in it.
  static std::int64_t length(const QuantSpec& spec) {
    return kHistory + spec.history_length + (spec.amax_algorithm == AmaxAlgorithm::window ? 1 : 0);
  }
};

}  // namespace fp8lab
