// Quantization of one tensor: the choice of kernels, and the general kernels.
//
//   source --> transform, if there is one: an FP32 tensor that the rest reads
//     more than 8 bits                            quantize_values      one rounding an element
//     tiles with codebooks                        quantize_codebooks   a warp or a block a tile
//     signed formats, nearest, and stochastic into tiles:
//       tiles 1xG and GxG, G = 16 ... 128         quantize_blocks      one pass over the source,
//                                                  for two-level scales after a pass for its amax
//       rows, not transposed, up to kLongestRow   quantize_rows        one pass
//       tensor and other rows, current scales     amax --> scales --> quantize_blocks
//       one scale that is known                   quantize_blocks, which raises a delayed amax
//     every other format, rounding and tile       amax --> scales, or known scales
//                                                      --> encode_kernel
//
// amax --> scales: first the maxima of tiles as bits, whose order does not matter
// (tensor_amax_kernel, line_amax_kernel or amax_kernel), then scale_kernel, one thread for each
// tile. encode_kernel runs one block for 64 x 64 elements; transposed codes cross shared memory:
//
//     transposed[col][row] = code;  barrier;  rows of `transposed` to global memory;  barrier
#include "kernels/quantize/quantize.hpp"

#include <cuda_fp8.h>

#include <algorithm>
#include <cstring>

#include "emulation/base/error.hpp"
#include "emulation/ops/quantize/operand_checks.hpp"
#include "kernels/pointwise/held_rows.cuh"
#include "kernels/quantize/quantize_blocks.hpp"
#include "kernels/quantize/quantize_rows.hpp"
#include "kernels/quantize/quantize_scales.hpp"
#include "kernels/quantize/quantize_tiles.cuh"
#include "kernels/quantize/quantize_values.hpp"
#include "kernels/transform/clamp.hpp"
#include "kernels/transform/transform.hpp"

namespace fp8lab::cuda {
namespace {

constexpr std::size_t kAlignment = 256;

/// How elements are encoded: by the conversion instruction, which `validate codec` proves equal to
/// numerics::encode on all 2^32 inputs, or by Cast.
enum class Codec { e4m3_instruction, e5m2_instruction, cast };

template <Codec kCodec>
__device__ std::uint8_t encode(const Cast& cast, float x, float factor, RandomWords& random) {
  const float scaled = cast.scaled(x, factor);
  if constexpr (kCodec == Codec::cast) {
    return static_cast<std::uint8_t>(cast.code(scaled, random.next()));
  } else {
    return __nv_cvt_float_to_fp8(scaled, __NV_SATFINITE,
                                 kCodec == Codec::e4m3_instruction ? __NV_E4M3 : __NV_E5M2);
  }
}

Codec codec_of(const QuantSpec& spec) {
  const bool plain =
      spec.rounding == numerics::Rounding::nearest && spec.overflow == numerics::Overflow::saturate;
  if (plain && spec.format == numerics::kE4M3) return Codec::e4m3_instruction;
  if (plain && spec.format == numerics::kE5M2) return Codec::e5m2_instruction;
  return Codec::cast;
}

/// Rows of codes; groups on 8-byte boundaries are written in one access.
struct CodeRows {
  std::uint8_t* data;
  std::int64_t stride;

  __device__ void store(std::int64_t row, std::int64_t col, int count,
                        const std::uint8_t* codes) const {
    std::uint8_t* const to = data + row * stride + col;
    if (count == kGroup && reinterpret_cast<std::uintptr_t>(to) % kGroup == 0) {
      uint2 words;
      std::memcpy(&words, codes, sizeof words);
      *reinterpret_cast<uint2*>(to) = words;
    } else {
      for (int i = 0; i < count; ++i) to[i] = codes[i];
    }
  }
};

/// codes = cast(source) by tiles, or their transpose. The transpose goes through shared memory, so
/// that source and codes are both accessed in rows.
template <class T, Codec kCodec, bool kTranspose>
__global__ void __launch_bounds__(kTileThreadCount)
    encode_kernel(Rows<T> source, std::int64_t rows, std::int64_t cols, TileGrid grid,
                  const float* factors, const __grid_constant__ Cast cast, CodeRows codes) {
  __shared__ alignas(4) std::uint8_t transposed[kTranspose ? kTileSide : 1][kTileSide + 4];
  const std::int64_t col0 = std::int64_t{blockIdx.x} * kTileSide;
  const std::int64_t col = col0 + threadIdx.x * kGroup;
  const int count = static_cast<int>(min(cols - col, std::int64_t{kGroup}));
  const TileOfColumn first(col, grid.width);
  for (std::int64_t row0 = std::int64_t{blockIdx.y} * kTileSide; row0 < rows;
       row0 += std::int64_t{gridDim.y} * kTileSide) {
    for (int i = threadIdx.y; i < kTileSide && row0 + i < rows && count > 0; i += kThreadsDown) {
      const std::int64_t row = row0 + i;
      const float* const row_factors = factors + quotient(row, grid.height) * grid.wide;
      float values[kGroup];
      std::uint8_t found[kGroup];
      source.load_group(row, col, count, values);
      RandomWords random(cast, static_cast<std::uint64_t>(row * cols + col));
      TileOfColumn at = first;
#pragma unroll
      for (int j = 0; j < kGroup; ++j) {
        if (j == count) break;
        found[j] = encode<kCodec>(cast, values[j], row_factors[at.tile], random);
        at.next(grid.width);
      }
      if constexpr (kTranspose) {
        for (int j = 0; j < count; ++j) transposed[threadIdx.x * kGroup + j][i] = found[j];
      } else {
        codes.store(row, col, count, found);
      }
    }
    if constexpr (kTranspose) {
      __syncthreads();
      const int row = static_cast<int>(threadIdx.x) * kGroup;
      const int high = static_cast<int>(min(rows - row0 - row, std::int64_t{kGroup}));
      for (int j = threadIdx.y; j < kTileSide && col0 + j < cols && high > 0; j += kThreadsDown) {
        const auto* const words = reinterpret_cast<const std::uint32_t*>(&transposed[j][row]);
        const std::uint32_t group[] = {words[0], words[1]};
        codes.store(col0 + j, row0 + row, high, reinterpret_cast<const std::uint8_t*>(group));
      }
      __syncthreads();
    }
  }
}

std::size_t aligned(std::size_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

/// Calls quantize_blocks for one orientation.
void write_blocks(Context& context, const TensorView& source, bool transpose,
                  const QuantizedOperand& operand, const BlockOperand& codes, std::uint32_t* amax) {
  quantize_blocks(context, source, operand.spec, transpose ? BlockOperand{} : codes,
                  transpose ? codes : BlockOperand{}, amax);
}

/// Quantizes one operand with has_block_scales.
void quantize_tiles(Context& context, const TensorView& source, bool transpose,
                    const QuantizedOperand& operand) {
  TwoLevelFactors* factors = nullptr;
  if (needs_tensor_amax(operand.spec)) {
    auto* const memory = static_cast<std::byte*>(context.workspace(2 * kAlignment));
    auto* const amax = reinterpret_cast<std::uint32_t*>(memory);
    factors = reinterpret_cast<TwoLevelFactors*>(memory + kAlignment);
    check(cudaMemsetAsync(amax, 0, sizeof *amax, context.stream()), "cudaMemsetAsync");
    measure_tensor(context, source, amax);
    find_two_level_factors(context, operand.spec, amax, factors);
  }
  write_blocks(context, source, transpose, operand, block_tiles(operand, transpose, factors),
               nullptr);
}

/// Quantizes one operand to codes of at most 8 bits with ordinary scales: first the scales of
/// all tiles, then the codes.
class Quantizer {
 public:
  Quantizer(Context& context, const TensorView& source, bool transpose,
            const QuantizedOperand& operand)
      : context_(context),
        source_(source),
        transpose_(transpose),
        cast_(cast_of(operand.spec, operand.key)),
        operand_(operand),
        grid_(tile_grid(source, operand.spec.scale_tile(), transpose)) {
    const auto tiles = static_cast<std::size_t>(grid_.count());
    amax_bytes_ = kAlignment + aligned(tiles * sizeof(std::uint32_t));
    auto* memory =
        static_cast<std::byte*>(context.workspace(amax_bytes_ + aligned(tiles * sizeof(float))));
    tensor_amax_ = reinterpret_cast<std::uint32_t*>(memory);
    tile_amax_ = reinterpret_cast<std::uint32_t*>(memory + kAlignment);
    factors_ = reinterpret_cast<float*>(memory + amax_bytes_);
  }

  void current() {
    check(cudaMemsetAsync(tensor_amax_, 0, amax_bytes_, context_.stream()), "cudaMemsetAsync");
    measure();
    if (operand_.spec.scale.format == numerics::ScaleFormat::nv_two_level) {
      measure_tensor(context_, source_, tensor_amax_);
    }
    find_tile_scales(context_, source_, grid_, operand_.spec, tensor_amax_, tile_amax_, factors_,
                     scales_of(operand_, transpose_));
    if (!encode_in_blocks(nullptr)) encode();
  }

  /// Quantizes with a scale that is known beforehand; if it is a delayed one, also
  /// raises the amax in `state`.
  void known(const TensorView& state) {
    find_known_scale(context_, operand_.spec, state, factors_, scales_of(operand_, transpose_));
    std::uint32_t* const amax =
        operand_.spec.scale_source == ScaleSource::delayed ? amax_of(state) : nullptr;
    if (encode_in_blocks(amax)) return;
    if (amax != nullptr) measure_tensor(context_, source_, amax);
    encode();
  }

 private:
  bool one_tile_a_row() const { return grid_.wide == 1 && grid_.height == 1; }
  bool one_tile_a_column() const { return grid_.high == 1 && grid_.width == 1; }

  void measure() {
    if (grid_.count() == 1) return measure_tensor(context_, source_, tile_amax_);
    if (one_tile_a_row()) return measure_lines(context_, source_, tile_amax_, nullptr);
    if (one_tile_a_column()) return measure_lines(context_, source_, nullptr, tile_amax_);
    measure_tiles(context_, source_, grid_, tile_amax_);
  }

  /// Writes the codes, and raises *amax, in one pass over the source if the block kernels can: with
  /// one factor for the tensor, or one for each row of the operand. Returns false if they cannot.
  bool encode_in_blocks(std::uint32_t* amax) {
    const bool one_a_row = transpose_ ? one_tile_a_column() : one_tile_a_row();
    if (!has_cast(operand_.spec) || !(grid_.count() == 1 || one_a_row)) return false;
    write_blocks(context_, source_, transpose_, operand_,
                 block_factors(operand_, factors_, one_a_row ? 1 : 0), amax);
    return true;
  }

  void encode() {
    with_rows(
        [&](const auto& rows) {
          switch (codec_of(operand_.spec)) {
            case Codec::e4m3_instruction: return encode_by<Codec::e4m3_instruction>(rows);
            case Codec::e5m2_instruction: return encode_by<Codec::e5m2_instruction>(rows);
            case Codec::cast: return encode_by<Codec::cast>(rows);
          }
        },
        source_);
  }
  template <Codec kCodec, class T>
  void encode_by(const Rows<T>& rows) {
    const auto launch = [&](auto kernel) {
      kernel<<<tile_blocks(source_), kTileThreads, 0, context_.stream()>>>(
          rows, source_.rows, source_.cols, grid_, factors_, cast_,
          CodeRows{static_cast<std::uint8_t*>(operand_.codes.data), operand_.codes.row_stride});
    };
    if (transpose_) {
      launch(encode_kernel<T, kCodec, true>);
    } else {
      launch(encode_kernel<T, kCodec, false>);
    }
    check_launch("quantize: codes");
  }

  Context& context_;
  const TensorView& source_;
  bool transpose_;
  Cast cast_;
  const QuantizedOperand& operand_;
  TileGrid grid_;
  std::size_t amax_bytes_ = 0;
  std::uint32_t* tensor_amax_ = nullptr;
  std::uint32_t* tile_amax_ = nullptr;
  float* factors_ = nullptr;
};

/// Scales and factors that two operands of one source need before the pass that encodes it: those
/// of the whole tensor, for every scale source, and those of rows.
class SharedFactors {
 public:
  SharedFactors(Context& context, const TensorView& source, const TensorView& state)
      : context_(context), source_(source), state_(state) {
    const std::int64_t lines = source.rows + source.cols;
    static_assert(2 * sizeof(TwoLevelFactors) <= kAlignment);
    const std::size_t bytes = aligned(static_cast<std::size_t>(1 + lines) * sizeof(float));
    auto* memory = static_cast<std::byte*>(context.workspace(2 * bytes + kAlignment));
    amax_bytes_ = bytes;
    tensor_amax_ = reinterpret_cast<std::uint32_t*>(memory);
    two_level_ = reinterpret_cast<TwoLevelFactors*>(memory + bytes);
    next_ = reinterpret_cast<float*>(memory + bytes + kAlignment);
  }

  /// Computes the amaxes that the two specs need; reads the source only if a scale
  /// needs more than its tile.
  void measure(const QuantSpec& first, const QuantSpec& second) {
    const bool tensor = needs_tensor_amax(first) || needs_tensor_amax(second);
    const bool rows = has_row_scales(first), cols = has_row_scales(second);
    if (!tensor && !rows && !cols) return;
    check(cudaMemsetAsync(tensor_amax_, 0, amax_bytes_, context_.stream()), "cudaMemsetAsync");
    if (tensor) measure_tensor(context_, source_, tensor_amax_);
    if (rows || cols) {
      measure_lines(context_, source_, rows ? row_amax() : nullptr, cols ? col_amax() : nullptr);
    }
  }

  /// Returns the operand for quantize_blocks. Writes the scales that
  /// quantize_blocks does not write.
  BlockOperand block(const QuantizedOperand& operand, bool transpose) {
    const QuantSpec& spec = operand.spec;
    if (has_block_tiles(spec)) {
      if (!needs_tensor_amax(spec)) return block_tiles(operand, transpose);
      TwoLevelFactors* const factors = &two_level_[transpose ? 1 : 0];
      find_two_level_factors(context_, spec, tensor_amax_, factors);
      return block_tiles(operand, transpose, factors);
    }
    const bool lines = has_row_scales(spec);
    float* const factors = next_;
    next_ += lines ? operand.rows : 1;
    if (has_known_scale(spec)) return block_known(context_, operand, transpose, state_, factors);
    find_tile_scales(context_, source_, tile_grid(source_, spec.tile, transpose), spec,
                     tensor_amax_,
                     !lines      ? tensor_amax_
                     : transpose ? col_amax()
                                 : row_amax(),
                     factors, scales_of(operand, transpose));
    return block_factors(operand, factors, lines ? 1 : 0);
  }

 private:
  std::uint32_t* row_amax() const { return tensor_amax_ + 1; }
  std::uint32_t* col_amax() const { return tensor_amax_ + 1 + source_.rows; }

  Context& context_;
  const TensorView& source_;
  const TensorView& state_;
  std::size_t amax_bytes_ = 0;
  std::uint32_t* tensor_amax_ = nullptr;
  TwoLevelFactors* two_level_ = nullptr;  ///< [0] straight, [1] transposed operand
  float* next_ = nullptr;
};

/// Quantizes without applying the transform.
void quantize_as_is(Context& context, const TensorView& source, bool transpose,
                    const TensorView& state, const QuantizedOperand& operand) {
  const QuantSpec& spec = operand.spec;
  if (!spec.is_quantized()) return quantize_values(context, source, transpose, operand);
  if (spec.has_codebooks()) return quantize_codebooks(context, source, transpose, operand);
  if (has_block_scales(spec) && (has_cast(spec) || has_drawn_codes(spec, source.cols))) {
    return quantize_tiles(context, source, transpose, operand);
  }
  if (!transpose && has_row_scales(spec) && source.cols <= kLongestRow) {
    return quantize_rows(context, source, operand);
  }
  Quantizer quantizer(context, source, transpose, operand);
  if (spec.scale_source == ScaleSource::current) return quantizer.current();
  quantizer.known(state);
}

}  // namespace

bool can_quantize_both(const QuantSpec& first, const QuantSpec& second) {
  const auto fits = [](const QuantSpec& spec) {
    return !spec.transform && has_cast(spec) &&
           (has_block_tiles(spec) || has_row_scales(spec) || spec.scale_tile().is_tensor());
  };
  return fits(first) && fits(second) && share_cast(first, second);
}

void quantize_both(Context& context, const ops::QuantizeBoth& op) {
  op.check();
  if (op.source.size() == 0) return;
  SharedFactors factors(context, op.source, op.state);
  factors.measure(op.first.spec, op.second.spec);
  const BlockOperand row = factors.block(op.first, false);
  const BlockOperand transposed = factors.block(op.second, true);
  const bool delayed = op.first.spec.scale_source == ScaleSource::delayed ||
                       op.second.spec.scale_source == ScaleSource::delayed;
  quantize_blocks(context, op.source, op.first.spec, row, transposed,
                  delayed ? amax_of(op.state) : nullptr);
}

void run(Context& context, const ops::Quantize& op) {
  op.check();
  if (op.source.size() == 0) return;
  const Transform& transform = op.operand.spec.transform;
  if (!transform || transform.is<RangeExpansion>()) {
    return quantize_as_is(context, op.source, op.transpose, op.state, op.operand);
  }
  if (const auto* const clamp = transform.as<Clamp>()) {
    check_transform(op.operand, op.operand.rows, op.operand.k);
    write_clamp_bounds(context, op.source, clamp->quantile, op.operand.clamp_bounds.row<float>(0));
  }
  const TensorView values = transformed(context, op.source, op.transpose, op.operand);
  quantize_as_is(context, values, op.transpose, op.state, op.operand);
}

}  // namespace fp8lab::cuda
