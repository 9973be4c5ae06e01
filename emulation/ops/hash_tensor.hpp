// Identity of a tensor's bits.
#pragma once

#include <cstdint>

#include "emulation/base/tensor_view.hpp"
#include "emulation/numerics/operand_hash.hpp"
#include "emulation/ops/cost.hpp"

namespace fp8lab::ops {

/// sum (u8, 1 x 8: a 64-bit number, little-endian) += numerics::hash_term(part, first + i, word i)
/// over the words of the tensor, modulo 2^64. Each row, of any type, is padded with zeros to a
/// multiple of 8 bytes and cut into words, which are counted row by row.
struct HashTensor {
  static constexpr std::string_view kName = "hash_tensor";
  static constexpr WorkClass kClass = WorkClass::measurement;

  TensorView tensor;
  numerics::HashedPart part = numerics::HashedPart::weights;
  std::uint64_t first = 0;
  TensorView sum;

  void check() const;
  /// Elements read.
  double work() const { return elements(tensor); }
  /// Words that the tensor has: the `first` of the next one is so much higher.
  std::uint64_t words() const {
    const auto bytes = static_cast<std::uint64_t>(tensor.cols) * size_of(tensor.dtype);
    return static_cast<std::uint64_t>(tensor.rows) * ((bytes + 7) / 8);
  }
};

}  // namespace fp8lab::ops
