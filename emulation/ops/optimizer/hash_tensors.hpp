// Hash of the bits of tensors.
#pragma once

#include <cstdint>
#include <span>

#include "emulation/base/tensor_view.hpp"
#include "emulation/numerics/operand_hash.hpp"
#include "emulation/ops/cost.hpp"
#include "emulation/ops/tensors.hpp"

namespace fp8lab::ops {

/// sum (u8, 1 x 8: a 64-bit number, little-endian) += numerics::hash_term(part, first + i, word i)
/// over the words of the tensors, modulo 2^64. Words are counted tensor by tensor. Each row, of any
/// type, is padded with zeros to a multiple of 8 bytes and split into words, which are counted row
/// by row.
struct HashTensors {
  static constexpr std::string_view kName = "hash_tensors";
  static constexpr WorkClass kClass = WorkClass::measurement;

  std::span<const TensorView> tensors;
  numerics::HashedPart part = numerics::HashedPart::weights;
  std::uint64_t first = 0;
  TensorView sum;

  template <class Visit>
  void for_each_tensor(const Visit& visit) const {
    for (const TensorView& tensor : tensors) visit(reads("tensor", tensor));
    visit(updates("sum", sum));
  }
  void check() const;
  /// Elements read.
  double work() const {
    double all = 0.0;
    for (const TensorView& tensor : tensors) all += elements(tensor);
    return all;
  }

  static std::uint64_t words(const TensorView& tensor) {
    const auto bytes = static_cast<std::uint64_t>(tensor.cols) * size_of(tensor.dtype);
    return static_cast<std::uint64_t>(tensor.rows) * ((bytes + 7) / 8);
  }
  /// Calls visit(tensor, number of its first word).
  template <class Visit>
  void for_each(const Visit& visit) const {
    std::uint64_t word = first;
    for (const TensorView& tensor : tensors) {
      visit(tensor, word);
      word += words(tensor);
    }
  }
};

}  // namespace fp8lab::ops
