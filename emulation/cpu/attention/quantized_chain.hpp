// Operands and chains of quantized attention (ops/attention/quantized_attention.hpp) on tiles.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <vector>

#include "emulation/cpu/attention/attention_chain.hpp"
#include "emulation/cpu/attention/attention_tiles.hpp"
#include "emulation/cpu/attention/fp8_chain.hpp"
#include "emulation/numerics/codec.hpp"
#include "emulation/ops/attention/quantized_attention.hpp"

namespace fp8lab::cpu {

/// The format of an operand: that of its codes, or none for values of type T.
template <class T>
class OperandFormat {
 public:
  explicit OperandFormat(const QuantSpec& spec)
      : has_codes_(spec.is_quantized()),
        is_fp8_(is_fp8_operand(spec)),
        is_e5m2_(spec.format == numerics::kE5M2) {
    if (!has_codes_) return;
    const std::uint32_t count = 1u << spec.format.bits();
    for (std::uint32_t code = 0; code < values_.size(); ++code) {
      const float value = numerics::decode(spec.format, code % count);
      if constexpr (std::is_same_v<T, float>) {
        values_[code] = value;
      } else {
        values_[code] = numerics::to_bf16(value);
      }
    }
  }

  bool has_codes() const { return has_codes_; }
  bool is_fp8() const { return is_fp8_; }
  bool is_e5m2() const { return is_e5m2_; }
  T value(std::uint8_t code) const { return values_[code]; }

 private:
  bool has_codes_, is_fp8_, is_e5m2_;
  std::array<T, 256> values_{};  ///< of codes
};

/// A part of an operand, with any strides in elements.
template <class T>
struct OperandPart {
  const void* data = nullptr;
  std::int64_t row_stride = 0;
  std::int64_t col_stride = 1;
  const OperandFormat<T>* format = nullptr;

  OperandPart transposed() const { return {data, col_stride, row_stride, format}; }
  Fp8Matrix codes() const {
    return {static_cast<const std::uint8_t*>(data), row_stride, col_stride, format->is_e5m2()};
  }
  /// Returns the (rows, cols) values: those in memory, or decoded into `scratch`.
  Operand<T> values(std::int64_t rows, std::int64_t cols, std::vector<T>& scratch) const {
    if (!format->has_codes()) return {static_cast<const T*>(data), row_stride, col_stride};
    scratch.resize(static_cast<std::size_t>(rows * cols));
    T* out = scratch.data();
    const auto* const first = static_cast<const std::uint8_t*>(data);
    for (std::int64_t i = 0; i < rows; ++i) {
      for (std::int64_t j = 0; j < cols; ++j) {
        *out++ = format->value(first[i * row_stride + j * col_stride]);
      }
    }
    return {scratch.data(), cols, 1};
  }
};

/// A tensor of heads as one operand.
template <class T>
class HeadOperand {
 public:
  HeadOperand(const QuantizedOperand& operand, std::int64_t head_dim)
      : operand_(operand), head_dim_(head_dim), format_(operand.spec) {}

  const OperandFormat<T>& format() const { return format_; }
  /// Returns the columns of a head from `row` on.
  OperandPart<T> rows(std::int64_t head, std::int64_t row) const {
    const std::int64_t first = row * operand_.codes.row_stride + head * head_dim_;
    const void* const data =
        format_.has_codes() ? static_cast<const void*>(
                                  static_cast<const std::uint8_t*>(operand_.codes.data) + first)
                            : static_cast<const T*>(operand_.codes.data) + first;
    return {data, operand_.codes.row_stride, 1, &format_};
  }
  float scale(std::int64_t row, std::int64_t head) const {
    return attention_scale(operand_, row, head, head_dim_);
  }
  const QuantSpec& spec() const { return operand_.spec; }

 private:
  QuantizedOperand operand_;
  std::int64_t head_dim_;
  OperandFormat<T> format_;
};

/// Two formats that are multiplied.
template <class T>
struct ProductFormats {
  const OperandFormat<T>& a;
  const OperandFormat<T>& b;
  bool is_fp8() const { return a.is_fp8() && b.is_fp8(); }
  bool is_promoted() const { return a.has_codes() || b.has_codes(); }
};

/// The right operand (k, n) of chains, in the order that the multiplier reads.
template <class T>
class ProductTile {
 public:
  /// `left` is the format of the left operand.
  void load(const OperandFormat<T>& left, const OperandPart<T>& part, std::int64_t k,
            std::int64_t n) {
    const ProductFormats<T> formats{left, *part.format};
    is_fp8_ = formats.is_fp8();
    is_promoted_ = formats.is_promoted();
    if (is_fp8_) return panel_.pack(part.codes(), k, n);
    tile_.load(part.values(k, n, scratch_), k, n);
  }
  bool is_fp8() const { return is_fp8_; }
  bool is_promoted() const { return is_promoted_; }
  const Fp8Panel& panel() const { return panel_; }
  const ChainTile<T>& tile() const { return tile_; }

 private:
  bool is_fp8_ = false, is_promoted_ = false;
  Fp8Panel panel_;
  ChainTile<T> tile_;
  std::vector<T> scratch_;
};

/// Multiplies by tiles, with the scratch memory of one thread.
template <class T>
class ProductChain {
 public:
  /// Computes c (m, columns) = chain(c; a, b) as Chain::multiply. Precondition: range.first is a
  /// multiple of kFp8AttentionGroup.
  void multiply(const OperandPart<T>& a, std::int64_t m, const ProductTile<T>& b,
                const Range& range, const Range& columns, float* c, std::int64_t ldc) {
    if (b.is_fp8()) {
      return fp8_.multiply(a.codes(), m, b.panel(), range.first, range.count(), columns.first,
                           columns.count(), c, ldc);
    }
    chain_.multiply(a.values(m, range.count(), scratch_), m, b.tile(), range, columns, c, ldc);
  }

  /// Computes c (m, n), rows `ldc` apart, = add(c; a, b; scale) over the summed indices `range`.
  void add(const PointwiseKernels& kernels, const OperandPart<T>& a, std::int64_t m,
           const ProductTile<T>& b, const Range& range, std::int64_t n, float scale, float* c,
           std::int64_t ldc) {
    if (!b.is_promoted()) return multiply(a, m, b, range, {0, n}, c, ldc);
    partial_.assign(static_cast<std::size_t>(m * n), 0.0f);
    multiply(a, m, b, range, {0, n}, partial_.data(), n);
    for (std::int64_t i = 0; i < m; ++i) {
      kernels.multiply_add(partial_.data() + i * n, scale, n, c + i * ldc);
    }
  }

 private:
  Fp8Chain fp8_;
  Chain<T> chain_;
  std::vector<T> scratch_;
  std::vector<float> partial_;
};

/// The scale of a tile of P or dS as its cast applies it.
struct InnerScale {
  float decode = 1.0f;
  float factor = 1.0f;  ///< multiplies, or divides if the rule divides
};

/// Quantizes tiles of P or dS inside attention.
template <class T>
class InnerQuantizer {
 public:
  explicit InnerQuantizer(const QuantSpec& spec);

  const OperandFormat<T>& format() const { return format_; }
  /// The scale that a static spec always has; 1 without a scale.
  InnerScale fixed_scale() const;
  /// The current scale of a delayed spec. Precondition: host memory.
  InnerScale delayed_scale(const TensorView& state) const;
  /// The scale of a tile with this amax.
  InnerScale scale_of(float amax) const;
  /// Stores `rows` rows of `values`, `tile` apart, as operands, in bytes of codes or in T.
  void store(const PointwiseKernels& kernels, const float* values, std::int64_t rows,
             std::int64_t tile, const InnerScale& scale, void* operands) const;
  /// Bytes of one element.
  std::int64_t element_bytes() const {
    return format_.has_codes() ? 1 : static_cast<std::int64_t>(sizeof(T));
  }

 private:
  QuantSpec spec_;
  OperandFormat<T> format_;
};

extern template class InnerQuantizer<float>;
extern template class InnerQuantizer<std::uint16_t>;

/// Rows of P or dS of one tile, stored as operands.
template <class T>
class InnerTile {
 public:
  InnerTile(const InnerQuantizer<T>& quantizer, std::int64_t rows, std::int64_t tile)
      : quantizer_(quantizer),
        tile_(tile),
        bytes_(static_cast<std::size_t>(rows * tile * quantizer.element_bytes())) {}

  void store(const PointwiseKernels& kernels, const float* values, std::int64_t first_row,
             std::int64_t rows, const InnerScale& scale) {
    quantizer_.store(kernels, values, rows, tile_, scale, at(first_row, 0));
  }
  void clear(std::int64_t first_row, std::int64_t rows) {
    const std::int64_t size = quantizer_.element_bytes();
    std::fill_n(static_cast<std::byte*>(at(first_row, 0)), rows * tile_ * size, std::byte{0});
  }
  /// Returns the part that begins at (row, column).
  OperandPart<T> part(std::int64_t row, std::int64_t column) {
    return {at(row, column), tile_, 1, &quantizer_.format()};
  }

 private:
  void* at(std::int64_t row, std::int64_t column) {
    return bytes_.data() + (row * tile_ + column) * quantizer_.element_bytes();
  }

  const InnerQuantizer<T>& quantizer_;
  std::int64_t tile_;
  std::vector<std::byte> bytes_;
};

}  // namespace fp8lab::cpu
