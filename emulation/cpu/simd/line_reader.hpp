// Copies a rectangle to a staging buffer line by line, and measures it. For the SIMD sources only.
#pragma once

#include <type_traits>

#include "emulation/cpu/simd/quantize_kernels.hpp"
#include "emulation/cpu/simd/quantize_lanes.hpp"

namespace fp8lab::cpu {
namespace FP8LAB_ISA {
namespace {

/// Copies the cache lines of a rectangle of T along its rows, because down a column
/// each line lies in a page of its own. Copy the reader into the loop that steps: its
/// members then stay in registers.
template <class T>
class LineReader {
 public:
  explicit LineReader(const Prefetch& prefetch)
      : prefetch_(&prefetch),
        row_bytes_(prefetch.stride * kSize),
        copy_bytes_(prefetch.copy_stride * kSize) {
    const bool tiles_of_fours =
        prefetch.tile_height >= prefetch.rows || prefetch.tile_height % kRows == 0;
    stepped_rows_ = tiles_of_fours ? prefetch.rows / kRows * kRows : 0;
    *this = at_row(*this, 0);
  }

  /// Copies one line of each of four rows; does nothing once these rows are finished.
  FP8LAB_INLINE void step() {
    if (lines_left_ == 0) return;
    take<kRows>(from_, to_, largest_);
    from_ += kLineBytes;
    to_ += kLineBytes;
    largest_ += kLineBytes;
    if (--lines_left_ == 0) *this = at_row(*this, row_ + kRows);
  }
  /// Copies all remaining lines.
  void finish() {
    while (lines_left_ > 0) step();
    for (std::int64_t r = stepped_rows_; r < prefetch_->rows; ++r) {
      if (r % prefetch_->tile_height == 0) clear(r);
      for (std::int64_t offset = 0; offset < row_size(); offset += kLineBytes) take_part(r, offset);
    }
  }

 private:
  static constexpr std::int64_t kLineBytes = 64, kSize = sizeof(T), kRows = 4;
  using Lanes = std::conditional_t<std::is_same_v<T, float>, Ints, Shorts>;
  static constexpr auto kMagnitude = std::is_same_v<T, float> ? 0x7FFFFFFF : 0x7FFF;

  /// Copies one line of each of kCount rows.
  template <std::int64_t kCount>
  FP8LAB_INLINE void take(const std::byte* from, std::byte* to, std::byte* largest) const {
    for (std::int64_t b = 0; b < kLineBytes; b += kRegisterBytes) {
      Lanes maximum = load<Lanes>(largest + b);
      for (std::int64_t r = 0; r < kCount; ++r) {
        const Lanes lanes = load<Lanes>(from + r * row_bytes_ + b);
        std::memcpy(to + r * copy_bytes_ + b, &lanes, sizeof lanes);
        const Lanes magnitude = lanes & kMagnitude;
        maximum = magnitude > maximum ? magnitude : maximum;
      }
      std::memcpy(largest + b, &maximum, sizeof maximum);
    }
  }

  /// Returns the reader at the beginning of `row`, the first of four, after copying the partial
  /// last lines of these rows.
  static __attribute__((noinline)) LineReader at_row(LineReader reader, std::int64_t row) {
    const Prefetch& prefetch = *reader.prefetch_;
    const std::int64_t lines = reader.row_size() / kLineBytes;
    if (lines == 0) reader.stepped_rows_ = 0;
    reader.row_ = row;
    reader.lines_left_ = row < reader.stepped_rows_ ? lines : 0;
    if (reader.lines_left_ == 0) return reader;
    if (row % prefetch.tile_height == 0) reader.clear(row);
    for (std::int64_t r = row; r < row + kRows; ++r) reader.take_part(r, lines * kLineBytes);
    reader.from_ = static_cast<const std::byte*>(prefetch.source) + row * reader.row_bytes_;
    reader.to_ = static_cast<std::byte*>(prefetch.copy) + row * reader.copy_bytes_;
    reader.largest_ = reader.largest(row);
    return reader;
  }

  std::int64_t row_size() const { return prefetch_->cols * kSize; }
  std::byte* largest(std::int64_t row) const {
    return static_cast<std::byte*>(prefetch_->magnitudes) +
           row / prefetch_->tile_height * copy_bytes_;
  }
  void clear(std::int64_t row) const {
    std::memset(largest(row), 0, static_cast<std::size_t>(copy_bytes_));
  }
  /// Copies the line at `offset` of one row, up to the end of the row.
  void take_part(std::int64_t row, std::int64_t offset) const {
    const std::int64_t rest = row_size() - offset;
    if (rest <= 0) return;
    const auto count = static_cast<std::size_t>(rest < kLineBytes ? rest : kLineBytes);
    std::byte line[kLineBytes] = {};
    std::memcpy(line, static_cast<const std::byte*>(prefetch_->source) + row * row_bytes_ + offset,
                count);
    take<1>(line, static_cast<std::byte*>(prefetch_->copy) + row * copy_bytes_ + offset,
            largest(row) + offset);
  }

  const Prefetch* prefetch_;
  std::int64_t row_bytes_, copy_bytes_;
  std::int64_t stepped_rows_ = 0, row_ = 0, lines_left_ = 0;
  const std::byte* from_ = nullptr;
  std::byte* to_ = nullptr;
  std::byte* largest_ = nullptr;
};

}  // namespace
}  // namespace FP8LAB_ISA
}  // namespace fp8lab::cpu
