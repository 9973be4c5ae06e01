#include "emulation/reference/operand_decode.hpp"

#include <algorithm>

#include "emulation/numerics/codec.hpp"
#include "emulation/numerics/philox.hpp"
#include "emulation/numerics/range_expansion.hpp"
#include "emulation/numerics/tile_logarithm.hpp"

namespace fp8lab::reference {
namespace {

using numerics::bits_float;
using numerics::float_bits;

constexpr std::int64_t kBlock = 64;

float canonical(float value) {
  const bool is_nan = (float_bits(value) & 0x7FFFFFFFu) > numerics::kF32Infinity;
  return is_nan ? bits_float(numerics::kF32NaN) : value;
}

float value_of(std::uint16_t bits) { return numerics::from_bf16(bits); }
float value_of(float value) { return value; }
void store(float value, std::uint16_t& destination) { destination = numerics::to_bf16(value); }
void store(float value, float& destination) { destination = canonical(value); }

/// Calls body(row, rows, col, cols) for blocks of at most 64 x 64 that cover (rows, cols).
template <class Body>
void for_each_block(std::int64_t rows, std::int64_t cols, const Body& body) {
  const std::int64_t bands = (rows + kBlock - 1) / kBlock;
#pragma omp parallel for schedule(static) if (bands > 1)
  for (std::int64_t band = 0; band < bands; ++band) {
    const std::int64_t row = band * kBlock;
    for (std::int64_t col = 0; col < cols; col += kBlock) {
      body(row, std::min(kBlock, rows - row), col, std::min(kBlock, cols - col));
    }
  }
}

template <class T>
void dequantize_to(const OperandDecoder& decoder, std::int64_t rows, std::int64_t k, bool transpose,
                   const TensorView& destination) {
  for_each_block(rows, k, [&](std::int64_t row, std::int64_t n, std::int64_t col, std::int64_t m) {
    float values[kBlock * kBlock];
    decoder.block(row, n, col, m, values, kBlock);
    if (transpose) {
      for (std::int64_t j = 0; j < m; ++j) {
        T* out = destination.row<T>(col + j) + row;
        for (std::int64_t i = 0; i < n; ++i) store(values[i * kBlock + j], out[i]);
      }
    } else {
      for (std::int64_t i = 0; i < n; ++i) {
        T* out = destination.row<T>(row + i) + col;
        for (std::int64_t j = 0; j < m; ++j) store(values[i * kBlock + j], out[j]);
      }
    }
  });
}

/// Computes destination (R, C), or its transpose, = convert(source element, logical index).
/// Transposes blocks in a buffer, so that both the source and the destination are accessed by whole
/// rows: rows may lie powers of two apart and so share lines of a cache.
template <class From, class To, class Convert>
void map_elements(const TensorView& source, bool transpose, const TensorView& destination,
                  const Convert& convert) {
  for_each_block(source.rows, source.cols,
                 [&](std::int64_t row, std::int64_t n, std::int64_t col, std::int64_t m) {
                   To turned[kBlock][kBlock];
                   for (std::int64_t i = 0; i < n; ++i) {
                     const From* in = source.row<From>(row + i) + col;
                     const auto index = static_cast<std::uint64_t>((row + i) * source.cols + col);
                     To* const out = transpose ? nullptr : destination.row<To>(row + i) + col;
                     for (std::int64_t j = 0; j < m; ++j) {
                       const To value = convert(in[j], index + static_cast<std::uint64_t>(j));
                       (transpose ? turned[j][i] : out[j]) = value;
                     }
                   }
                   if (!transpose) return;
                   for (std::int64_t j = 0; j < m; ++j) {
                     std::copy_n(turned[j], n, destination.row<To>(col + j) + row);
                   }
                 });
}

/// Rounds to a wide format by the definition; the result is an FP32 value.
struct RoundToFormat {
  numerics::ElementCast cast;
  const RandomKey& key;

  float operator()(float value, std::uint64_t index) const {
    std::uint32_t random = 0;
    if (cast.is_random()) {
      random =
          numerics::random_bits(key.seed, key.step_number(), key.tensor, key.orientation, index);
    }
    return numerics::decode(cast.format, numerics::encode(cast, float_bits(value), random));
  }
};

template <class From, class To>
void cast_elements(const TensorView& source, bool transpose, const QuantizedOperand& operand) {
  const RoundToFormat round{operand.spec.cast(), operand.key};
  map_elements<From, To>(source, transpose, operand.codes, [round](From x, std::uint64_t index) {
    To stored;
    store(round(value_of(x), index), stored);
    return stored;
  });
}

void cast_to_bf16(const TensorView& source, bool transpose, const QuantizedOperand& operand) {
  const TensorView& codes = operand.codes;
  const bool is_bf16 = operand.spec.format == numerics::kBF16;
  if (is_bf16 && source.dtype == DType::bf16) {
    map_elements<std::uint16_t, std::uint16_t>(
        source, transpose, codes, [](std::uint16_t bits, std::uint64_t) { return bits; });
  } else if (is_bf16 && operand.spec.rounding == numerics::Rounding::nearest) {
    map_elements<float, std::uint16_t>(source, transpose, codes,
                                       [](float x, std::uint64_t) { return numerics::to_bf16(x); });
  } else if (source.dtype == DType::bf16) {
    cast_elements<std::uint16_t, std::uint16_t>(source, transpose, operand);
  } else {
    cast_elements<float, std::uint16_t>(source, transpose, operand);
  }
}

void cast_to_f32(const TensorView& source, bool transpose, const QuantizedOperand& operand) {
  const TensorView& codes = operand.codes;
  if (operand.spec.is_cast() && source.dtype == DType::f32) {
    cast_elements<float, float>(source, transpose, operand);
  } else if (operand.spec.is_cast()) {
    cast_elements<std::uint16_t, float>(source, transpose, operand);
  } else if (source.dtype == DType::f32) {
    map_elements<float, float>(source, transpose, codes, [](float x, std::uint64_t) { return x; });
  } else {
    map_elements<std::uint16_t, float>(
        source, transpose, codes,
        [](std::uint16_t bits, std::uint64_t) { return canonical(numerics::from_bf16(bits)); });
  }
}

}  // namespace

OperandDecoder::OperandDecoder(const QuantizedOperand& operand) : operand_(operand) {
  const TileShape& tile = operand.spec.tile;
  tile_height_ = tile.rows == 0 ? operand.rows : tile.rows;
  tile_width_ = tile.cols == 0 ? operand.k : tile.cols;
  const bool logarithm = operand.spec.format.encoding == numerics::Encoding::tile_logarithm;
  if (!operand.spec.is_quantized() || logarithm) return;
  for (std::uint32_t code = 0; code < 256; ++code) {
    values_[code] = numerics::decode(operand.spec.format, code);
  }
}

void OperandDecoder::block(std::int64_t row, std::int64_t rows, std::int64_t col, std::int64_t cols,
                           float* out, std::int64_t stride) const {
  for (std::int64_t i = 0; i < rows; ++i, out += stride) {
    switch (operand_.codes.dtype) {
      case DType::u8: codes_row(row + i, col, cols, out); break;
      case DType::bf16:
        for (std::int64_t j = 0; j < cols; ++j) {
          out[j] = numerics::from_bf16(operand_.element<std::uint16_t>(row + i, col + j));
        }
        break;
      default:
        for (std::int64_t j = 0; j < cols; ++j) out[j] = operand_.element<float>(row + i, col + j);
    }
  }
}

void OperandDecoder::codes_row(std::int64_t row, std::int64_t col, std::int64_t cols,
                               float* out) const {
  const std::uint8_t* codes = operand_.codes.row<std::uint8_t>(row) + col;
  if (!operand_.spec.has_scale()) {
    for (std::int64_t j = 0; j < cols; ++j) out[j] = values_[codes[j]];
    return;
  }
  if (operand_.spec.has_codebooks()) return codebook_row(row, col, cols, out);
  const float* scales = operand_.scales.row<float>(row / tile_height_);
  for (std::int64_t j = 0; j < cols;) {
    const std::int64_t tile = (col + j) / tile_width_;
    const std::int64_t end = std::min(cols, (tile + 1) * tile_width_ - col);
    const float scale = scales[tile];
    for (; j < end; ++j) out[j] = scale * values_[codes[j]];
  }
}

void OperandDecoder::codebook_row(std::int64_t row, std::int64_t col, std::int64_t cols,
                                  float* out) const {
  const std::uint8_t* codes = operand_.codes.row<std::uint8_t>(row) + col;
  const float* scales = operand_.scales.row<float>(row / tile_height_);
  const std::int64_t wide = operand_.spec.tile_cols(operand_.k);
  const float* steps = scales + wide;
  if (operand_.spec.transform.is<RangeExpansion>()) {
    for (std::int64_t j = 0; j < cols; ++j) {
      const std::int64_t tile = (col + j) / tile_width_;
      const numerics::ExpandedGroup group{scales[tile], steps[tile], steps[wide + tile]};
      out[j] = numerics::contract(group, values_[codes[j]]);
    }
    return;
  }
  for (std::int64_t j = 0; j < cols; ++j) {
    const std::int64_t tile = (col + j) / tile_width_;
    out[j] =
        numerics::decode_log_codebook(operand_.spec.format, {scales[tile], steps[tile]}, codes[j]);
  }
}

void copy_transposed(const TensorView& source, const TensorView& destination) {
  const auto same = [](auto bits, std::uint64_t) { return bits; };
  if (source.dtype == DType::bf16) {
    map_elements<std::uint16_t, std::uint16_t>(source, true, destination, same);
  } else {
    map_elements<std::uint32_t, std::uint32_t>(source, true, destination, same);
  }
}

void cast_operand(const TensorView& source, bool transpose, const QuantizedOperand& operand) {
  if (operand.codes.dtype == DType::bf16) {
    cast_to_bf16(source, transpose, operand);
  } else {
    cast_to_f32(source, transpose, operand);
  }
}

void decode_operand(const QuantizedOperand& operand, bool transpose,
                    const TensorView& destination) {
  const OperandDecoder decoder(operand);
  if (destination.dtype == DType::bf16) {
    dequantize_to<std::uint16_t>(decoder, operand.rows, operand.k, transpose, destination);
  } else {
    dequantize_to<float>(decoder, operand.rows, operand.k, transpose, destination);
  }
}

}  // namespace fp8lab::reference
