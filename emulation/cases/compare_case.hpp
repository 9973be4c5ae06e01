// Runs one case of an operation on two backends and compares the results byte by byte: the one
// comparison of `fp8lab validate kernels` and of the tests of the kernels.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "emulation/cases/operation_case.hpp"

namespace fp8lab {

/// Wide rows with gaps; without gaps; odd starts of rows; wide rows that start unaligned.
inline constexpr RowLayout kRowLayouts[] = {{16, 0}, {0, 0}, {3, 0}, {8, 1}};

/// The first difference between two outputs.
struct KernelMismatch {
  std::string kernel, what;
  std::size_t tensor = 0;
  std::int64_t row = 0, col = 0;
  std::uint64_t expected = 0, actual = 0;  ///< bits
  std::int64_t count = 0;                  ///< number of differing elements in the case
  bool guard = false;  ///< true if memory around a tensor was overwritten instead
};

/// A tensor in backend memory, inside a larger buffer of known bytes.
class PlacedTensor {
 public:
  /// `backend` and `tensor` must outlive this. `layout` counts if the tensor has none of its own
  /// and may have gaps.
  PlacedTensor(Backend& backend, const HostTensor& tensor, const RowLayout& layout = {});

  const TensorView& view() const { return view_; }
  /// Writes the bytes of the tensor, and known ones around it.
  void upload() const;
  /// Writes all bytes of the buffer.
  void upload(std::span<const std::byte> bytes) const;
  /// Returns all bytes of the buffer.
  std::vector<std::byte> download() const;
  /// Counts the elements of the buffer that differ, and says where the first one is; `kernel` and
  /// `what` stay empty. Nothing if all are equal.
  std::optional<KernelMismatch> difference(std::span<const std::byte> expected,
                                           std::span<const std::byte> actual) const;

 private:
  Backend* backend_;
  const HostTensor* tensor_;
  TensorView buffer_;  ///< includes the guards
  TensorView view_;
  std::int64_t first_ = 0;  ///< element of the buffer at which the first row starts
};

/// Runs `drawn` once on `expected` and `repeats` times on `tested`, each time from the same
/// initial data: a difference between repeats is a race. Every tensor lies inside a larger
/// buffer filled with a known byte, its rows as `layout` says if the operation allows gaps.
/// Adds the number of output elements to `compared`. Returns nothing if all bits agree and no
/// byte outside the outputs changed.
std::optional<KernelMismatch> compare_case(const OperationCase& drawn, Backend& expected,
                                           Backend& tested, const RowLayout& layout, int repeats,
                                           std::uint64_t& compared);

}  // namespace fp8lab
