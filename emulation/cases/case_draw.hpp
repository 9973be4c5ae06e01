// Draws random cases of operations: shapes, tensors and random words.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "emulation/cases/case_generator.hpp"
#include "emulation/cases/operation_case.hpp"

namespace fp8lab {

using Views = std::vector<TensorView>;

/// Storage types of activations and weights.
inline constexpr std::array<DType, 2> kActivationTypes = {DType::bf16, DType::f32};

struct MatrixShape {
  std::int64_t rows, cols;

  MatrixShape transposed_if(bool transpose) const {
    return transpose ? MatrixShape{cols, rows} : *this;
  }
};

std::string describe(const MatrixShape& shape);

/// Returns `tensor` without gaps between its rows.
inline HostTensor flat(HostTensor tensor) {
  tensor.contiguous = true;
  return tensor;
}

/// Returns `tensor` as one that the case reads and writes.
inline HostTensor updated(HostTensor tensor) {
  tensor.output = true;
  return tensor;
}

/// Returns `tensor`, bf16 or f32, with the signs of all elements cleared.
HostTensor magnitudes(HostTensor tensor);

/// Returns `tensor` with all bits 0.
HostTensor zeroed(HostTensor tensor);

/// Draws the cases of one round and passes each to `visit`; the seed determines everything.
class CaseDraw {
 public:
  /// `visit` must outlive this.
  CaseDraw(std::uint64_t seed, int round, const CaseVisitor& visit)
      : generator_(seed), words_(seed ^ 0x9E3779B97F4A7C15ull), round_(round), visit_(visit) {}

  int round() const { return round_; }
  std::uint32_t word() { return words_.next(); }
  /// Returns a uniform integer in [low, high].
  std::int64_t integer(std::int64_t low, std::int64_t high) {
    return low + static_cast<std::int64_t>(word() % static_cast<std::uint64_t>(high - low + 1));
  }
  /// Returns true once in `n` times.
  bool one_in(std::uint32_t n) { return word() % n == 0; }
  DType activation_type() { return one_in(3) ? DType::f32 : DType::bf16; }
  /// Returns the shape of a matrix for this round: one element, odd, more than
  /// a tree-sum chunk, large.
  MatrixShape shape();
  /// Returns the shape of one to six whole blocks of 128 x 128, for which kernels check no bounds.
  MatrixShape whole_blocks() { return {128 * integer(1, 3), 128 * integer(1, 2)}; }

  /// Draws bf16 or f32 values of every ValueKind, another kind in every tile; NaN and
  /// infinities only with `specials`.
  HostTensor values(DType dtype, std::int64_t rows, std::int64_t cols, bool specials);
  /// Draws values of ordinary size, so that sums and exponentials stay finite.
  HostTensor ordinary(DType dtype, std::int64_t rows, std::int64_t cols, float size = 1.0f);
  HostTensor integers(std::int64_t count, std::int64_t low, std::int64_t high);
  /// Draws arbitrary bits, below 2^bits in each byte.
  HostTensor bytes(std::int64_t rows, std::int64_t cols, int bits = 8);
  /// Draws an output; its earlier contents matter to operations that accumulate.
  HostTensor output(DType dtype, std::int64_t rows, std::int64_t cols);
  /// Draws the scalars of a step (StepScalar), all positive.
  HostTensor step_scalars();

  template <class Run>
  void add(std::string name, std::string what, std::vector<HostTensor> tensors, const Run& run) {
    visit_({std::move(name), std::move(what), std::move(tensors), run});
  }
  /// Adds a case of tensors of `dtype` and `shape`.
  template <class Run>
  void add(std::string name, DType dtype, const MatrixShape& shape, std::vector<HostTensor> tensors,
           const Run& run) {
    add(std::move(name), std::string(name_of(dtype)) + " " + describe(shape), std::move(tensors),
        run);
  }

 private:
  CaseGenerator generator_;
  RandomWords words_;
  int round_;
  const CaseVisitor& visit_;
};

}  // namespace fp8lab
