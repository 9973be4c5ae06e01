#include "emulation/reference/operand_hash.hpp"

#include <bit>
#include <cstddef>
#include <cstring>
#include <vector>

#include "emulation/numerics/operand_hash.hpp"
#include "emulation/reference/operand_decode.hpp"

namespace fp8lab::reference {
namespace {

using numerics::hash_term;
using numerics::HashedPart;

static_assert(std::endian::native == std::endian::little, "words are little-endian");

constexpr std::size_t kWordBytes = sizeof(std::uint64_t);

std::uint64_t hash_row(HashedPart part, const std::byte* row, std::size_t bytes,
                       std::uint64_t index) {
  std::uint64_t sum = 0;
  for (std::size_t at = 0; at < bytes; at += kWordBytes, ++index) {
    std::uint64_t word = 0;
    if (at + kWordBytes <= bytes) {
      std::memcpy(&word, row + at, kWordBytes);
    } else {
      std::memcpy(&word, row + at, bytes - at);
    }
    sum += hash_term(part, index, word);
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

std::uint64_t tensor_hash(HashedPart part, const TensorView& tensor, std::uint64_t first) {
  const std::size_t element = size_of(tensor.dtype);
  const std::size_t bytes = static_cast<std::size_t>(tensor.cols) * element;
  const std::size_t words = (bytes + kWordBytes - 1) / kWordBytes;
  const auto stride = static_cast<std::size_t>(tensor.row_stride) * element;
  const auto* const begin = static_cast<const std::byte*>(tensor.data);
  std::uint64_t sum = 0;
#pragma omp parallel for schedule(static) reduction(+ : sum) if (tensor.rows > 1)
  for (std::int64_t r = 0; r < tensor.rows; ++r) {
    const auto row = static_cast<std::size_t>(r);
    sum += hash_row(part, begin + row * stride, bytes, first + row * words);
  }
  return sum;
}

std::uint64_t operand_hash(const QuantizedOperand& operand) {
  const TensorView& codes = operand.codes;
  std::vector<std::byte> transposed;
  TensorView along_k = codes;
  if (operand.has_rows_contiguous()) {
    transposed.resize(static_cast<std::size_t>(codes.size()) * size_of(codes.dtype));
    along_k = {transposed.data(), codes.dtype, codes.cols, codes.rows, codes.rows};
    copy_transposed(codes, along_k);
  }
  return tensor_hash(HashedPart::codes, along_k, 0) +
         (operand.scales.empty() ? 0 : hash_scales(operand.scales));
}

void hash_tensors(const ops::HashTensors& op) {
  op.check();
  auto* const bytes = static_cast<std::byte*>(op.sum.data);
  std::uint64_t sum = 0;
  std::memcpy(&sum, bytes, sizeof sum);
  op.for_each([&](const TensorView& tensor, std::uint64_t first) {
    sum += tensor_hash(op.part, tensor, first);
  });
  std::memcpy(bytes, &sum, sizeof sum);
}

}  // namespace fp8lab::reference
