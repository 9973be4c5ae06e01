// Sum of products of FP32 values with a single rounding at the end.
#pragma once

#include <cstdint>

#include "emulation/numerics/codec.hpp"
#include "emulation/numerics/host_device.hpp"
#include "emulation/numerics/mma.hpp"

FP8LAB_NUMERICS_BEGIN

/// Fixed-point accumulator of 640 bits, two's complement, unit 2^-298 (the smallest product of two
/// FP32 values). Products are below 2^256, so 2^85 of them fit.
class ExactSum {
 public:
  /// Adds x * y exactly; records infinities and NaN.
  FP8LAB_HD constexpr void add_product(float x, float y) {
    const Unpacked a = unpack(kFP32, float_bits(x));
    const Unpacked b = unpack(kFP32, float_bits(y));
    if (specials_.add_product(a, b)) return;
    const std::uint64_t significand = std::uint64_t{a.significand} * b.significand;
    if (significand == 0) return;
    add_shifted(significand, a.exponent + b.exponent - 46 + kUnit, a.negative != b.negative);
  }

  /// Returns the FP32 bits of the sum, to nearest even; an exact zero is +0, NaN is canonical.
  FP8LAB_HD constexpr std::uint32_t rounded() const {
    if (specials_.any()) return specials_.result(kFP32);
    const bool negative = (words_[kWords - 1] >> 63) != 0;
    ExactSum magnitude = *this;
    if (negative) magnitude.negate();
    const int top = magnitude.highest();
    if (top < 0) return 0;
    const std::uint32_t sign = negative ? 0x80000000u : 0u;
    const int leading = top - kUnit;
    if (leading > 127) return sign | kF32Infinity;
    const int floor = leading < -126 ? -126 : leading;
    const int lowest = floor - 23 + kUnit;  // position of the last kept bit, at least 149
    std::uint32_t code = 0;
    for (int i = 23; i >= 0; --i) code = code << 1 | magnitude.bit(lowest + i);
    const bool half = magnitude.bit(lowest - 1) != 0;
    if (half && ((code & 1u) != 0 || magnitude.any_below(lowest - 1))) ++code;
    // The hidden bit (or a carry out of the mantissa) adds one to the exponent field.
    return sign | (code + (static_cast<std::uint32_t>(floor + 126) << 23));
  }

 private:
  static constexpr int kWords = 10;
  static constexpr int kUnit = 298;

  FP8LAB_HD constexpr void add_word(int index, std::uint64_t value) {
    for (int i = index; i < kWords && value != 0; ++i) {
      words_[i] += value;
      value = words_[i] < value ? 1u : 0u;
    }
  }

  FP8LAB_HD constexpr void subtract_word(int index, std::uint64_t value) {
    for (int i = index; i < kWords && value != 0; ++i) {
      const std::uint64_t before = words_[i];
      words_[i] -= value;
      value = before < value ? 1u : 0u;
    }
  }

  FP8LAB_HD constexpr void add_shifted(std::uint64_t value, int position, bool negative) {
    const int index = position / 64;
    const int offset = position % 64;
    const std::uint64_t low = value << offset;
    const std::uint64_t high = offset == 0 ? 0u : value >> (64 - offset);
    if (negative) {
      subtract_word(index, low);
      subtract_word(index + 1, high);
    } else {
      add_word(index, low);
      add_word(index + 1, high);
    }
  }

  FP8LAB_HD constexpr void negate() {
    for (std::uint64_t& word : words_) word = ~word;
    add_word(0, 1u);
  }

  FP8LAB_HD constexpr int highest() const {
    for (int i = kWords - 1; i >= 0; --i) {
      if (words_[i] != 0) return 64 * i + highest_bit64(words_[i]);
    }
    return -1;
  }

  FP8LAB_HD constexpr std::uint32_t bit(int position) const {
    return static_cast<std::uint32_t>(words_[position / 64] >> (position % 64) & 1u);
  }

  FP8LAB_HD constexpr bool any_below(int position) const {
    for (int i = 0; i < position / 64; ++i) {
      if (words_[i] != 0) return true;
    }
    const std::uint64_t mask = (std::uint64_t{1} << (position % 64)) - 1u;
    return (words_[position / 64] & mask) != 0;
  }

  std::uint64_t words_[kWords] = {};
  GroupSpecials specials_;
};

/// Returns x * y + z with one rounding to nearest even and IEEE signed zeros, computed on integers.
/// Equals __builtin_fmaf (up to the bits of a NaN); for use in constant expressions.
FP8LAB_HD constexpr float fma_exact(float x, float y, float z) {
  const std::uint32_t xb = float_bits(x);
  const std::uint32_t yb = float_bits(y);
  const bool finite = (xb & 0x7FFFFFFFu) < kF32Infinity && (yb & 0x7FFFFFFFu) < kF32Infinity;
  if (finite && (x == 0.0f || y == 0.0f) && z == 0.0f) {
    return bits_float((xb ^ yb) & float_bits(z) & 0x80000000u);
  }
  ExactSum sum;
  sum.add_product(x, y);
  sum.add_product(z, 1.0f);
  return bits_float(sum.rounded());
}

FP8LAB_NUMERICS_END
