#include "kernels/quantize.hpp"

#include <cuda_fp8.h>

#include <algorithm>

#include "emulation/api/error.hpp"
#include "emulation/cpu/quantize.hpp"
#include "emulation/cpu/quantize_checks.hpp"
#include "emulation/numerics/codec.hpp"
#include "emulation/numerics/philox.hpp"
#include "emulation/numerics/scaling.hpp"
#include "emulation/numerics/tile_logarithm.hpp"
#include "kernels/quantize_blocks.hpp"
#include "kernels/rows.cuh"

namespace fp8lab::cuda {
namespace {

using numerics::bits_float;
using numerics::float_bits;
using numerics::TileScale;

// A block works on 64 x 64 elements of the source: 16 x 16 threads, each with 4 columns of 4 rows.
constexpr int kSide = 64;
constexpr int kThreadsAcross = 16;
constexpr int kPerThread = 4;
constexpr std::size_t kAlignment = 256;

/// Tiles of the source, whichever way round the operand is.
struct TileGrid {
  std::int64_t height, width;  ///< of one tile
  std::int64_t high, wide;     ///< number of tiles
  std::int64_t count() const { return high * wide; }
};

TileGrid tile_grid(const TensorView& source, const TileShape& tile, bool transpose) {
  const std::int64_t height = transpose ? tile.cols : tile.rows;
  const std::int64_t width = transpose ? tile.rows : tile.cols;
  TileGrid grid{};
  grid.height = height == 0 ? source.rows : std::min(height, source.rows);
  grid.width = width == 0 ? source.cols : std::min(width, source.cols);
  grid.high = (source.rows + grid.height - 1) / grid.height;
  grid.wide = (source.cols + grid.width - 1) / grid.width;
  return grid;
}

dim3 blocks_for(std::int64_t rows, std::int64_t cols) {
  return {static_cast<unsigned>((cols + kSide - 1) / kSide),
          static_cast<unsigned>(std::min<std::int64_t>((rows + kSide - 1) / kSide, 65535))};
}
const dim3 kThreads(kThreadsAcross, kThreadsAcross);

/// Bits of |x|; those of a NaN are above those of infinity.
template <class T>
__device__ std::uint32_t magnitude(T value) {
  return float_bits(widen(value)) & 0x7FFFFFFFu;
}

// --- amax ---------------------------------------------------------------------------------------

/// amax[tile] = max(amax[tile], |x|...) as bits; the maximum has no order.
template <class T>
__global__ void amax_kernel(Rows<T> source, std::int64_t rows, std::int64_t cols, TileGrid grid,
                            std::uint32_t* amax) {
  __shared__ std::uint32_t largest[kSide * kSide];
  const int thread = threadIdx.y * kThreadsAcross + threadIdx.x;
  const std::int64_t col0 = std::int64_t{blockIdx.x} * kSide;
  const std::int64_t tile_col0 = col0 / grid.width;
  const int across = static_cast<int>((min(col0 + kSide, cols) - 1) / grid.width - tile_col0) + 1;
  for (std::int64_t row0 = std::int64_t{blockIdx.y} * kSide; row0 < rows;
       row0 += std::int64_t{gridDim.y} * kSide) {
    const std::int64_t tile_row0 = row0 / grid.height;
    const int down = static_cast<int>((min(row0 + kSide, rows) - 1) / grid.height - tile_row0) + 1;
    for (int i = thread; i < across * down; i += kThreadsAcross * kThreadsAcross) largest[i] = 0;
    __syncthreads();
    for (int i = threadIdx.y; i < kSide && row0 + i < rows; i += kThreadsAcross) {
      const std::int64_t row = row0 + i;
      const int tile_row = static_cast<int>(row / grid.height - tile_row0);
      std::uint32_t running = 0;
      int running_tile = -1;
      for (int j = 0; j < kPerThread; ++j) {
        const std::int64_t col = col0 + threadIdx.x * kPerThread + j;
        if (col >= cols) break;
        const int tile = tile_row * across + static_cast<int>(col / grid.width - tile_col0);
        if (tile != running_tile && running_tile >= 0) {
          atomicMax(&largest[running_tile], running);
          running = 0;
        }
        running_tile = tile;
        running = max(running, magnitude(*source.at(row, col)));
      }
      if (running_tile >= 0) atomicMax(&largest[running_tile], running);
    }
    __syncthreads();
    for (int i = thread; i < across * down; i += kThreadsAcross * kThreadsAcross) {
      if (largest[i] == 0) continue;
      atomicMax(&amax[(tile_row0 + i / across) * grid.wide + tile_col0 + i % across], largest[i]);
    }
    __syncthreads();
  }
}

// --- scales -------------------------------------------------------------------------------------

/// The operand's scales, written with rows and columns exchanged when `transpose`.
struct Scales {
  float* data;  ///< nullptr: the operand has none
  std::int64_t stride;
  bool transpose;
  __device__ void store(std::int64_t row, std::int64_t col, float value) const {
    if (data != nullptr) data[transpose ? col * stride + row : row * stride + col] = value;
  }
};

/// Sum over a source tile that decides between two scales (numerics::four_over_six_error).
template <class T>
__device__ float tile_error(const Rows<T>& source, std::int64_t rows, std::int64_t cols,
                            const TileGrid& grid, std::int64_t i, std::int64_t j,
                            const QuantSpec& spec, const TileScale& scale) {
  float sum = 0.0f;
  for (std::int64_t r = i * grid.height; r < min((i + 1) * grid.height, rows); ++r) {
    float row_sum = 0.0f;
    for (std::int64_t c = j * grid.width; c < min((j + 1) * grid.width, cols); ++c) {
      row_sum += numerics::four_over_six_error(spec.scale.four_over_six, spec.format, scale,
                                               source.load(r, c));
    }
    sum += row_sum;
  }
  return sum;
}

/// factors[tile] and the operand's scales from the amaxes; one thread a tile.
template <class T>
__global__ void scale_kernel(Rows<T> source, std::int64_t rows, std::int64_t cols, TileGrid grid,
                             const __grid_constant__ QuantSpec spec,
                             const std::uint32_t* tensor_amax, const std::uint32_t* amax,
                             float* factors, Scales scales) {
  const std::int64_t tile = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (tile >= grid.high * grid.wide) return;
  const std::int64_t i = tile / grid.wide, j = tile % grid.wide;
  const float largest = bits_float(amax[tile]);
  TileScale scale;
  if (spec.scale.format == numerics::ScaleFormat::nv_two_level) {
    const float factor =
        numerics::nv_tensor_factor(spec.scale, spec.format, bits_float(*tensor_amax));
    scale = numerics::nv_tile_scale(spec.format, factor, largest);
    if (spec.scale.four_over_six != numerics::FourOverSix::none) {
      const TileScale enlarged = numerics::nv_tile_scale(spec.format, factor, largest, true);
      if (tile_error(source, rows, cols, grid, i, j, spec, enlarged) <
          tile_error(source, rows, cols, grid, i, j, spec, scale)) {
        scale = enlarged;
      }
    }
  } else {
    scale = numerics::tile_scale(spec.scale, spec.format, largest);
  }
  factors[tile] = spec.scale.divides() ? scale.decode : scale.multiplier;
  scales.store(i, j, scale.decode);
}

/// One scale for the tensor that is known beforehand: `state` (DelayedState) or `given`.
__global__ void known_scale_kernel(const float* state, float decode, float multiplier, bool divide,
                                   float* factor, Scales scales) {
  if (state != nullptr && state[DelayedState::kScale] != 0.0f) {
    decode = state[DelayedState::kScale];
    multiplier = state[DelayedState::kMultiplier];
  }
  *factor = divide ? decode : multiplier;
  scales.store(0, 0, decode);
}

// --- encoding -----------------------------------------------------------------------------------

/// The cast of one scaled value.
struct Cast {
  numerics::FormatSpec format;
  numerics::Rounding rounding;
  numerics::Overflow overflow;
  bool divide;
  RandomKey key;

  __device__ float scaled(float x, float factor) const { return divide ? x / factor : x * factor; }
  __device__ std::uint32_t code(float scaled_x, std::uint64_t index) const {
    std::uint32_t random = 0;
    if (rounding == numerics::Rounding::stochastic) {
      random = numerics::random_bits(key.seed, key.step, key.tensor, key.orientation, index);
    }
    return numerics::encode(format, float_bits(scaled_x), rounding, overflow, random);
  }
};

/// How codes are found: by the conversion instruction, which `validate codec` proves equal to
/// numerics::encode on all 2^32 inputs, or by the definition.
enum class Codec { e4m3_instruction, e5m2_instruction, definition };

template <Codec kCodec>
__device__ std::uint8_t encode(const Cast& cast, float x, float factor, std::uint64_t index) {
  const float scaled = cast.scaled(x, factor);
  if constexpr (kCodec == Codec::definition) {
    return static_cast<std::uint8_t>(cast.code(scaled, index));
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
  return Codec::definition;
}

/// codes = cast(source) by tiles, or their transpose, which passes through shared memory so that
/// both sides are read and written in rows.
template <class T, Codec kCodec, bool kTranspose>
__global__ void encode_kernel(Rows<T> source, std::int64_t rows, std::int64_t cols, TileGrid grid,
                              const float* factors, const __grid_constant__ Cast cast,
                              std::uint8_t* codes, std::int64_t stride) {
  __shared__ std::uint8_t turned[kTranspose ? kSide : 1][kSide + 4];
  const std::int64_t col0 = std::int64_t{blockIdx.x} * kSide;
  for (std::int64_t row0 = std::int64_t{blockIdx.y} * kSide; row0 < rows;
       row0 += std::int64_t{gridDim.y} * kSide) {
    for (int i = threadIdx.y; i < kSide && row0 + i < rows; i += kThreadsAcross) {
      const std::int64_t row = row0 + i;
      const float* row_factors = factors + row / grid.height * grid.wide;
      for (int j = 0; j < kPerThread; ++j) {
        const std::int64_t col = col0 + threadIdx.x * kPerThread + j;
        if (col >= cols) break;
        const std::uint8_t code =
            encode<kCodec>(cast, source.load(row, col), row_factors[col / grid.width],
                           static_cast<std::uint64_t>(row * cols + col));
        if constexpr (kTranspose) {
          turned[threadIdx.x * kPerThread + j][i] = code;
        } else {
          codes[row * stride + col] = code;
        }
      }
    }
    if constexpr (kTranspose) {
      __syncthreads();
      for (int j = threadIdx.y; j < kSide && col0 + j < cols; j += kThreadsAcross) {
        for (int i = threadIdx.x; i < kSide && row0 + i < rows; i += kThreadsAcross) {
          codes[(col0 + j) * stride + row0 + i] = turned[j][i];
        }
      }
      __syncthreads();
    }
  }
}

// --- values that are only rounded, and dequantization
// ---------------------------------------------

template <class T>
__device__ void store_at(const Rows<T>& destination, bool transpose, std::int64_t row,
                         std::int64_t col, T value) {
  *(transpose ? destination.at(col, row) : destination.at(row, col)) = value;
}

/// Operands stored as values: passed through, or rounded to a wide format (cpu::cast_operand).
template <class From, class To>
__global__ void cast_kernel(Rows<From> source, std::int64_t rows, std::int64_t cols, bool transpose,
                            bool round, const __grid_constant__ Cast cast, Rows<To> codes) {
  const std::int64_t col = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (col >= cols) return;
  for (std::int64_t row = blockIdx.y; row < rows; row += gridDim.y) {
    const From x = *source.at(row, col);
    To value;
    if (round) {
      const auto index = static_cast<std::uint64_t>(row * cols + col);
      value = narrow<To>(numerics::decode(cast.format, cast.code(widen(x), index)));
    } else if constexpr (sizeof(From) == sizeof(To)) {
      value = x;
    } else {
      value = narrow<To>(widen(x));
    }
    store_at(codes, transpose, row, col, value);
  }
}

/// Value of a stored element of an operand.
struct Decoder {
  const void* codes;
  std::int64_t stride;
  DType dtype;
  numerics::FormatSpec format;
  bool codebooks;
  const float* scales;  ///< nullptr: none
  std::int64_t scale_stride, tile_height, tile_width, tiles_across;

  __device__ float operator()(std::int64_t row, std::int64_t col) const {
    const std::int64_t at = row * stride + col;
    if (dtype == DType::bf16)
      return numerics::from_bf16(static_cast<const std::uint16_t*>(codes)[at]);
    if (dtype == DType::f32) return static_cast<const float*>(codes)[at];
    const std::uint32_t code = static_cast<const std::uint8_t*>(codes)[at];
    if (scales == nullptr) return numerics::decode(format, code);
    const float* row_scales = scales + row / tile_height * scale_stride;
    const std::int64_t tile = col / tile_width;
    if (codebooks) {
      return numerics::decode_log_codebook(
          format, {row_scales[tile], row_scales[tiles_across + tile]}, code);
    }
    return row_scales[tile] * numerics::decode(format, code);
  }
};

template <class T>
__global__ void dequantize_kernel(const __grid_constant__ Decoder decoder, std::int64_t rows,
                                  std::int64_t k, bool transpose, Rows<T> destination) {
  const std::int64_t col = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (col >= k) return;
  for (std::int64_t row = blockIdx.y; row < rows; row += gridDim.y) {
    store_at(destination, transpose, row, col, narrow<T>(decoder(row, col)));
  }
}

// --- logarithmic codebooks
// ------------------------------------------------------------------------

/// One block a tile, in the orientation of the operand (cpu::quantize_codebooks).
template <class T>
__global__ void codebook_kernel(Rows<T> source, std::int64_t source_cols, bool transpose,
                                std::int64_t rows, std::int64_t k, std::int64_t height,
                                std::int64_t width, const __grid_constant__ Cast cast,
                                std::uint8_t* codes, std::int64_t stride, float* scales,
                                std::int64_t scale_stride) {
  __shared__ std::uint32_t largest, smallest;
  const std::int64_t across = (k + width - 1) / width;
  const std::int64_t i = blockIdx.x / across, j = blockIdx.x % across;
  const std::int64_t row0 = i * height, col0 = j * width;
  const std::int64_t high = min(height, rows - row0), wide = min(width, k - col0);
  if (threadIdx.x == 0) {
    largest = 0;
    smallest = ~0u;
  }
  __syncthreads();
  const auto value = [&](std::int64_t r, std::int64_t c) {
    return transpose ? source.load(c, r) : source.load(r, c);
  };
  for (std::int64_t e = threadIdx.x; e < high * wide; e += blockDim.x) {
    const std::uint32_t size = float_bits(value(row0 + e / wide, col0 + e % wide)) & 0x7FFFFFFFu;
    atomicMax(&largest, size);
    if (size != 0) atomicMin(&smallest, size);
  }
  __syncthreads();
  const numerics::LogCodebook book =
      numerics::log_codebook(cast.format, bits_float(largest), bits_float(smallest));
  if (threadIdx.x == 0) {
    scales[i * scale_stride + j] = book.scale;
    scales[i * scale_stride + across + j] = book.step;
  }
  for (std::int64_t e = threadIdx.x; e < high * wide; e += blockDim.x) {
    const std::int64_t r = row0 + e / wide, c = col0 + e % wide;
    std::uint32_t random = 0;
    if (cast.rounding == numerics::Rounding::stochastic) {
      const std::int64_t index = transpose ? c * source_cols + r : r * source_cols + c;
      random = numerics::random_bits(cast.key.seed, cast.key.step, cast.key.tensor,
                                     cast.key.orientation, static_cast<std::uint64_t>(index));
    }
    codes[r * stride + c] = static_cast<std::uint8_t>(
        numerics::encode_log_codebook(cast.format, book, value(r, c), cast.rounding, random));
  }
}

// --- delayed scaling
// ------------------------------------------------------------------------------

/// cpu::update_delayed_scale by one block.
__global__ void delayed_scale_kernel(const __grid_constant__ QuantSpec spec, float* values) {
  constexpr int kBlock = 256;
  __shared__ std::uint32_t largest;
  const bool window = spec.amax_algorithm == AmaxAlgorithm::window;
  const float newest = values[DelayedState::kAmax];
  if (newest == 0.0f && !window) return;
  float* const history = values + DelayedState::kHistory;
  const int length = spec.history_length;
  if (threadIdx.x == 0) largest = 0;
  __syncthreads();
  std::uint32_t seen = 0;
  for (int last = length; last > 0; last -= kBlock) {  // moved by one place from the far end on
    const int i = last - 1 - static_cast<int>(threadIdx.x);
    const float moved = i > 0 ? history[i - 1] : newest;
    __syncthreads();
    if (i >= 0) {
      history[i] = moved;
      seen = max(seen, float_bits(moved));
    }
    __syncthreads();
  }
  atomicMax(&largest, seen);
  __syncthreads();
  if (threadIdx.x != 0) return;
  values[DelayedState::kAmax] = 0.0f;
  if (window) {
    history[length] += 1.0f;
    if (history[length] < static_cast<float>(length)) return;
    history[length] = 0.0f;
  }
  const std::uint32_t amax =
      spec.amax_algorithm == AmaxAlgorithm::most_recent ? float_bits(newest) : largest;
  if ((amax == 0 && !window) || amax >= numerics::kF32Infinity) return;
  const TileScale scale = numerics::tile_scale(spec.scale, spec.format, bits_float(amax));
  values[DelayedState::kScale] = scale.decode;
  values[DelayedState::kMultiplier] = scale.multiplier;
}

// --- host
// -----------------------------------------------------------------------------------------

std::size_t aligned(std::size_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

dim3 columns_grid(std::int64_t rows, std::int64_t cols) {
  return {static_cast<unsigned>((cols + 255) / 256),
          static_cast<unsigned>(std::min<std::int64_t>(rows, 65535))};
}

/// One quantization to codes of at most 8 bits with ordinary scales.
template <class T>
class Quantizer {
 public:
  Quantizer(Context& context, const TensorView& source, bool transpose, const Cast& cast,
            QuantizedOperand& operand)
      : context_(context),
        source_(source),
        rows_(rows_of<T>(source)),
        transpose_(transpose),
        cast_(cast),
        operand_(operand),
        grid_(tile_grid(source, operand.spec.scale_tile(), transpose)),
        scales_{static_cast<float*>(operand.scales.data), operand.scales.row_stride, transpose} {
    const auto tiles = static_cast<std::size_t>(grid_.count());
    const std::size_t amaxes = aligned(tiles * sizeof(std::uint32_t));
    auto* memory = static_cast<std::byte*>(
        context.workspace(kAlignment + amaxes + aligned(tiles * sizeof(float))));
    tensor_amax_ = reinterpret_cast<std::uint32_t*>(memory);
    tile_amax_ = reinterpret_cast<std::uint32_t*>(memory + kAlignment);
    factors_ = reinterpret_cast<float*>(memory + kAlignment + amaxes);
    memory_ = memory;
    amax_bytes_ = kAlignment + amaxes;
  }

  void current() {
    check(cudaMemsetAsync(memory_, 0, amax_bytes_, context_.stream()), "cudaMemsetAsync");
    measure(grid_, tile_amax_);
    const bool two_level = operand_.spec.scale.format == numerics::ScaleFormat::nv_two_level;
    if (two_level) measure(tile_grid(source_, {}, false), tensor_amax_);
    const auto blocks = static_cast<unsigned>((grid_.count() + 127) / 128);
    scale_kernel<<<blocks, 128, 0, context_.stream()>>>(rows_, source_.rows, source_.cols, grid_,
                                                        operand_.spec, tensor_amax_, tile_amax_,
                                                        factors_, scales_);
    check_launch("quantize: scales");
    if (!encode_in_blocks(nullptr)) encode();
  }

  /// The delayed scale of `state`, which also learns the amax; or `scale` where state is empty.
  void known(const TileScale& scale, const TensorView& state) {
    float* values = static_cast<float*>(state.data);
    known_scale_kernel<<<1, 1, 0, context_.stream()>>>(values, scale.decode, scale.multiplier,
                                                       cast_.divide, factors_, scales_);
    check_launch("quantize: scale");
    std::uint32_t* const amax =
        values == nullptr ? nullptr
                          : reinterpret_cast<std::uint32_t*>(values + DelayedState::kAmax);
    if (encode_in_blocks(amax)) return;
    if (amax != nullptr) measure(grid_, amax);
    encode();
  }

 private:
  void measure(const TileGrid& grid, std::uint32_t* amax) {
    if (grid.count() == 1) return quantize_blocks(context_, source_, false, {}, {}, amax);
    if (grid.high == 1 && grid.width == 1) return measure_columns(context_, source_, amax);
    amax_kernel<<<blocks_for(source_.rows, source_.cols), kThreads, 0, context_.stream()>>>(
        rows_, source_.rows, source_.cols, grid, amax);
    check_launch("quantize: amax");
  }

  /// Writes the codes, and raises *amax, in one reading of the source where the block kernels can:
  /// with one factor for the tensor, or one for each row of the operand.
  bool encode_in_blocks(std::uint32_t* amax) {
    const bool one_a_row =
        transpose_ ? grid_.high == 1 && grid_.width == 1 : grid_.wide == 1 && grid_.height == 1;
    if (!has_instruction(operand_.spec) || !(grid_.count() == 1 || one_a_row)) return false;
    const BlockOperand codes = block_factors(operand_, factors_, one_a_row ? 1 : 0);
    quantize_blocks(context_, source_, cast_.divide, transpose_ ? BlockOperand{} : codes,
                    transpose_ ? codes : BlockOperand{}, amax);
    return true;
  }

  void encode() {
    switch (codec_of(operand_.spec)) {
      case Codec::e4m3_instruction: return encode_by<Codec::e4m3_instruction>();
      case Codec::e5m2_instruction: return encode_by<Codec::e5m2_instruction>();
      case Codec::definition: return encode_by<Codec::definition>();
    }
  }
  template <Codec kCodec>
  void encode_by() {
    const dim3 blocks = blocks_for(source_.rows, source_.cols);
    auto* codes = static_cast<std::uint8_t*>(operand_.codes.data);
    const std::int64_t stride = operand_.codes.row_stride;
    if (transpose_) {
      encode_kernel<T, kCodec, true><<<blocks, kThreads, 0, context_.stream()>>>(
          rows_, source_.rows, source_.cols, grid_, factors_, cast_, codes, stride);
    } else {
      encode_kernel<T, kCodec, false><<<blocks, kThreads, 0, context_.stream()>>>(
          rows_, source_.rows, source_.cols, grid_, factors_, cast_, codes, stride);
    }
    check_launch("quantize: codes");
  }

  Context& context_;
  const TensorView& source_;
  Rows<T> rows_;
  bool transpose_;
  Cast cast_;
  QuantizedOperand& operand_;
  TileGrid grid_;
  Scales scales_;
  std::byte* memory_ = nullptr;
  std::size_t amax_bytes_ = 0;
  std::uint32_t* tensor_amax_ = nullptr;
  std::uint32_t* tile_amax_ = nullptr;
  float* factors_ = nullptr;
};

template <class T>
void quantize_codebooks(Context& context, const TensorView& source, bool transpose,
                        const Cast& cast, QuantizedOperand& operand) {
  const TileShape& tile = operand.spec.tile;
  const std::int64_t height = tile.rows == 0 ? operand.rows : tile.rows;
  const std::int64_t width = tile.cols == 0 ? operand.k : tile.cols;
  const std::int64_t tiles =
      operand.spec.tile_rows(operand.rows) * operand.spec.tile_cols(operand.k);
  codebook_kernel<<<static_cast<unsigned>(tiles), 128, 0, context.stream()>>>(
      rows_of<T>(source), source.cols, transpose, operand.rows, operand.k, height, width, cast,
      static_cast<std::uint8_t*>(operand.codes.data), operand.codes.row_stride,
      static_cast<float*>(operand.scales.data), operand.scales.row_stride);
  check_launch("quantize: codebooks");
}

template <class T>
void quantize_from(Context& context, const TensorView& source, bool transpose, const Cast& cast,
                   const TensorView& state, QuantizedOperand& operand) {
  const QuantSpec& spec = operand.spec;
  if (spec.has_codebooks()) {
    return quantize_codebooks<T>(context, source, transpose, cast, operand);
  }
  if (has_block_tiles(spec)) {
    const BlockOperand tiles = block_tiles(operand, transpose);
    return quantize_blocks(context, source, cast.divide, transpose ? BlockOperand{} : tiles,
                           transpose ? tiles : BlockOperand{}, nullptr);
  }
  if (!transpose && has_row_scales(spec)) return quantize_rows(context, source, operand);
  Quantizer<T> quantizer(context, source, transpose, cast, operand);
  switch (spec.scale_source) {
    case ScaleSource::none: return quantizer.known({}, {});
    case ScaleSource::static_scale:
      return quantizer.known(
          {spec.static_scale, numerics::bounded_quotient(1.0f, spec.static_scale), false}, {});
    case ScaleSource::delayed: return quantizer.known({}, state);
    case ScaleSource::current: return quantizer.current();
  }
}

/// True when one reading of a source can write both operands.
bool share_blocks(const QuantSpec& first, const QuantSpec& second) {
  return has_instruction(first) && has_instruction(second) && first.format == second.format &&
         (first.has_scale() && first.scale.divides()) ==
             (second.has_scale() && second.scale.divides());
}

/// One factor of a whole tensor for each of two operands, whatever its source.
class TensorFactors {
 public:
  TensorFactors(Context& context, const TensorView& source, const TensorView& state)
      : context_(context), source_(source), state_(state) {
    auto* memory = static_cast<std::byte*>(context.workspace(2 * kAlignment));
    amax_ = reinterpret_cast<std::uint32_t*>(memory);
    next_ = reinterpret_cast<float*>(memory + kAlignment);
  }

  /// The operand as quantize_blocks takes it, with its scale written where that is due here.
  BlockOperand block(const QuantizedOperand& operand, bool transpose) {
    const QuantSpec& spec = operand.spec;
    if (has_block_tiles(spec)) return block_tiles(operand, transpose);
    const Scales scales{static_cast<float*>(operand.scales.data), 1, false};
    const bool divide = spec.has_scale() && spec.scale.divides();
    float* const factor = next_++;
    if (spec.scale_source == ScaleSource::current) {
      measure_once();
      scale_kernel<<<1, 1, 0, context_.stream()>>>(
          rows_of<float>(source_), source_.rows, source_.cols,
          tile_grid(source_, spec.tile, transpose), spec, amax_, amax_, factor, scales);
    } else {
      const float given = spec.scale_source == ScaleSource::static_scale ? spec.static_scale : 1.0f;
      auto* state =
          spec.scale_source == ScaleSource::delayed ? static_cast<float*>(state_.data) : nullptr;
      known_scale_kernel<<<1, 1, 0, context_.stream()>>>(
          state, given, numerics::bounded_quotient(1.0f, given), divide, factor, scales);
    }
    check_launch("quantize: scale");
    return block_factors(operand, factor, 0);
  }

 private:
  void measure_once() {
    if (measured_) return;
    check(cudaMemsetAsync(amax_, 0, sizeof *amax_, context_.stream()), "cudaMemsetAsync");
    quantize_blocks(context_, source_, false, {}, {}, amax_);
    measured_ = true;
  }

  Context& context_;
  const TensorView& source_;
  const TensorView& state_;
  std::uint32_t* amax_ = nullptr;
  float* next_ = nullptr;
  bool measured_ = false;
};

void check_supported(const char* where, const QuantizedOperand& operand) {
  const Support support = supports_quantization(operand.spec);
  if (!support) throw Error(std::string(where) + ": " + support.reason);
}

}  // namespace

Support supports_quantization(const QuantSpec& spec) {
  if (Support support = cpu::supports_quantization(spec); !support) return support;
  if (!spec.transform) return {};
  return {"the cuda backend has no transforms, the operand asks for " +
          transform_name(spec.transform) + "; accepted: transform none, or backend cpu"};
}

bool can_quantize_both(const QuantSpec& first, const QuantSpec& second) {
  const auto fits = [](const QuantSpec& spec) {
    return has_block_tiles(spec) || spec.scale_tile().is_tensor();
  };
  return share_blocks(first, second) && fits(first) && fits(second);
}

void quantize_both(Context& context, const TensorView& source, const TensorView& state,
                   QuantizedOperand& first, QuantizedOperand& second) {
  cpu::check_quantize(source, false, state, first);
  cpu::check_quantize(source, true, state, second);
  check_supported("quantize", first);
  check_supported("quantize", second);
  TensorFactors factors(context, source, state);
  const BlockOperand row = factors.block(first, false);
  const BlockOperand turned = factors.block(second, true);
  const bool delayed = first.spec.scale_source == ScaleSource::delayed ||
                       second.spec.scale_source == ScaleSource::delayed;
  auto* amax =
      delayed
          ? reinterpret_cast<std::uint32_t*>(static_cast<float*>(state.data) + DelayedState::kAmax)
          : nullptr;
  quantize_blocks(context, source, first.spec.has_scale() && first.spec.scale.divides(), row,
                  turned, amax);
}

void quantize(Context& context, const TensorView& source, bool transpose, const RandomKey& key,
              const TensorView& state, QuantizedOperand& operand) {
  cpu::check_quantize(source, transpose, state, operand);
  check_supported("quantize", operand);
  if (source.size() == 0) return;
  const QuantSpec& spec = operand.spec;
  const Cast cast{spec.format, spec.rounding, spec.overflow,
                  spec.has_scale() && spec.scale.divides(), key};
  if (spec.is_quantized()) {
    if (source.dtype == DType::bf16) {
      return quantize_from<std::uint16_t>(context, source, transpose, cast, state, operand);
    }
    return quantize_from<float>(context, source, transpose, cast, state, operand);
  }
  const bool round =
      spec.is_cast() || (spec.rounding != numerics::Rounding::nearest &&
                         source.dtype == DType::f32 && operand.codes.dtype == DType::bf16);
  with_rows(
      [&](const auto& from, const auto& codes) {
        cast_kernel<<<columns_grid(source.rows, source.cols), 256, 0, context.stream()>>>(
            from, source.rows, source.cols, transpose, round, cast, codes);
      },
      source, operand.codes);
  check_launch("quantize: cast");
}

void dequantize(Context& context, const QuantizedOperand& operand, bool transpose,
                const TensorView& destination) {
  cpu::check_operand("dequantize", operand);
  check_supported("dequantize", operand);
  cpu::check_matrix("dequantize", "destination", destination, transpose ? operand.k : operand.rows,
                    transpose ? operand.rows : operand.k);
  if (destination.size() == 0) return;
  const TileShape& tile = operand.spec.tile;
  const Decoder decoder{
      operand.codes.data,
      operand.codes.row_stride,
      operand.codes.dtype,
      operand.spec.format,
      operand.spec.has_codebooks(),
      operand.spec.has_scale() ? static_cast<const float*>(operand.scales.data) : nullptr,
      operand.scales.row_stride,
      tile.rows == 0 ? operand.rows : tile.rows,
      tile.cols == 0 ? operand.k : tile.cols,
      operand.spec.tile_cols(operand.k)};
  with_rows(
      [&](const auto& rows) {
        dequantize_kernel<<<columns_grid(operand.rows, operand.k), 256, 0, context.stream()>>>(
            decoder, operand.rows, operand.k, transpose, rows);
      },
      destination);
  check_launch("dequantize");
}

void update_delayed_scale(Context& context, const QuantSpec& spec, const TensorView& state) {
  cpu::check_delayed_state(spec, state);
  delayed_scale_kernel<<<1, 256, 0, context.stream()>>>(spec, static_cast<float*>(state.data));
  check_launch("update_delayed_scale");
}

}  // namespace fp8lab::cuda
