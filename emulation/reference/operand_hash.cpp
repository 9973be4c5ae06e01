#include "emulation/reference/operand_hash.hpp"

#include <bit>
#include <cstddef>
#include <cstring>

#include "emulation/numerics/operand_hash.hpp"

namespace fp8lab::reference {
namespace {

using numerics::hash_term;
using numerics::HashedPart;

static_assert(std::endian::native == std::endian::little, "words are little-endian");

constexpr std::size_t kWordBytes = sizeof(std::uint64_t);

std::uint64_t hash_row(const std::byte* row, std::size_t bytes, std::uint64_t index) {
  std::uint64_t sum = 0;
  for (std::size_t at = 0; at < bytes; at += kWordBytes, ++index) {
    std::uint64_t word = 0;
    if (at + kWordBytes <= bytes) {
      std::memcpy(&word, row + at, kWordBytes);
    } else {
      std::memcpy(&word, row + at, bytes - at);
    }
    sum += hash_term(HashedPart::codes, index, word);
  }
  return sum;
}

std::uint64_t hash_codes(const TensorView& codes) {
  const std::size_t element = size_of(codes.dtype);
  const std::size_t bytes = static_cast<std::size_t>(codes.cols) * element;
  const std::size_t words = (bytes + kWordBytes - 1) / kWordBytes;
  const auto stride = static_cast<std::size_t>(codes.row_stride) * element;
  const auto* const first = static_cast<const std::byte*>(codes.data);
  std::uint64_t sum = 0;
#pragma omp parallel for schedule(static) reduction(+ : sum) if (codes.rows > 1)
  for (std::int64_t r = 0; r < codes.rows; ++r) {
    const auto row = static_cast<std::size_t>(r);
    sum += hash_row(first + row * stride, bytes, row * words);
  }
  return sum;
}

std::uint64_t hash_scales(const TensorView& scales) {
  std::uint64_t sum = 0;
#pragma omp parallel for schedule(static) reduction(+ : sum) if (scales.rows > 1)
  for (std::int64_t i = 0; i < scales.rows; ++i) {
    const float* row = scales.row<float>(i);
    for (std::int64_t j = 0; j < scales.cols; ++j) {
      sum += hash_term(HashedPart::scales, static_cast<std::uint64_t>(i * scales.cols + j),
                       numerics::float_bits(row[j]));
    }
  }
  return sum;
}

}  // namespace

std::uint64_t operand_hash(const QuantizedOperand& operand) {
  return hash_codes(operand.codes) + (operand.scales.empty() ? 0 : hash_scales(operand.scales));
}

}  // namespace fp8lab::reference
