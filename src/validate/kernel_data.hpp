// Data and shapes for kernel validation.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "src/validate/case_generator.hpp"
#include "src/validate/kernel_call.hpp"

namespace fp8lab {

/// Draws tensors; everything follows from the seed.
class KernelData {
 public:
  explicit KernelData(std::uint64_t seed)
      : generator_(seed), words_(seed ^ 0x9E3779B97F4A7C15ull) {}

  std::uint32_t word() { return words_.next(); }
  /// Uniform in [low, high].
  std::int64_t integer(std::int64_t low, std::int64_t high) {
    return low + static_cast<std::int64_t>(word() % static_cast<std::uint64_t>(high - low + 1));
  }

  /// bf16 or f32 values of every kind of case_generator.hpp, a different one in every tile; NaN and
  /// infinities only with `specials`.
  HostTensor values(DType dtype, std::int64_t rows, std::int64_t cols, bool specials);
  /// Values of ordinary size, so that sums and exponentials stay finite.
  HostTensor ordinary(DType dtype, std::int64_t rows, std::int64_t cols, float size = 1.0f);
  HostTensor integers(std::int64_t count, std::int64_t low, std::int64_t high);
  /// An output; what it holds before matters to operations that accumulate.
  HostTensor output(DType dtype, std::int64_t rows, std::int64_t cols);

 private:
  CaseGenerator generator_;
  RandomWords words_;
};

/// (rows, cols) of a matrix in this round: one element, odd, more than a tree-sum chunk, large.
struct MatrixShape {
  std::int64_t rows, cols;
};
MatrixShape matrix_shape(KernelData& data, int round);

std::string describe(const MatrixShape& shape);

/// `tensor` without gaps between its rows.
inline HostTensor flat(HostTensor tensor) {
  tensor.contiguous = true;
  return tensor;
}

/// Current scaling of `tile`, by the default rule of `scale`.
QuantSpec quantized(const numerics::FormatSpec& format, TileShape tile,
                    numerics::ScaleFormat scale);

/// `operand` with codes and scales at t[first] and t[first + 1]; no scales when `spec` has none.
QuantizedOperand operand_at(const QuantSpec& spec, std::int64_t rows, std::int64_t k,
                            const std::vector<TensorView>& t, std::size_t first);

/// Room for the scales of an operand; one element when `spec` has none.
HostTensor scales_of(KernelData& data, const QuantSpec& spec, std::int64_t rows, std::int64_t k);

}  // namespace fp8lab
