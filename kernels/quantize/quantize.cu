// Quantization of one tensor by its plan (kernels/plan/quantize_plan.hpp), and the general kernels.
//
//   source --> transform: an FP32 tensor that the rest reads
//          --> passes for amaxes --> scales --> codes: quantize_values, quantize_codebooks,
//                                               quantize_blocks, quantize_rows or encode_kernel
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

/// How encode_kernel encodes elements: by the conversion instruction or by Cast.
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

/// Quantizes one operand whose block kernel finds the scales.
void quantize_tiles(Context& context, const TensorView& source, bool transpose,
                    const QuantizedOperand& operand, const QuantizePlan& plan) {
  TwoLevelFactors* factors = nullptr;
  if (plan.scales == ScaleStep::two_level) {
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

/// Quantizes one operand to codes of at most 8 bits whose scales a kernel writes to memory before
/// another one writes the codes.
class Quantizer {
 public:
  Quantizer(Context& context, const TensorView& source, bool transpose,
            const QuantizedOperand& operand, const QuantizePlan& plan)
      : context_(context),
        source_(source),
        transpose_(transpose),
        cast_(cast_of(operand.spec, operand.key)),
        operand_(operand),
        plan_(plan),
        grid_(tile_grid(source, operand.spec.scale_tile(), transpose)) {
    const auto tiles = static_cast<std::size_t>(grid_.count());
    amax_bytes_ = kAlignment + aligned(tiles * sizeof(std::uint32_t));
    if (has_row_factors()) {
      amax_bytes_ += aligned(static_cast<std::size_t>(operand.rows) * sizeof(std::uint32_t));
    }
    auto* memory =
        static_cast<std::byte*>(context.workspace(amax_bytes_ + aligned(tiles * sizeof(float))));
    tensor_amax_ = reinterpret_cast<std::uint32_t*>(memory);
    tile_amax_ = reinterpret_cast<std::uint32_t*>(memory + kAlignment);
    line_amax_ = has_row_factors()
                     ? reinterpret_cast<std::uint32_t*>(memory + kAlignment +
                                                        aligned(tiles * sizeof(std::uint32_t)))
                     : tile_amax_;
    factors_ = reinterpret_cast<float*>(memory + amax_bytes_);
  }

  /// Finds the scales and writes the codes. A delayed scale is read from `state`, whose amax is
  /// raised.
  void run(const TensorView& state) {
    std::uint32_t* const delayed =
        operand_.spec.scale_source == ScaleSource::delayed ? amax_of(state) : nullptr;
    if (plan_.scales == ScaleStep::known) {
      find_known_scale(context_, operand_.spec, state, factors_, scales_of(operand_, transpose_));
      if (plan_.amaxes.tensor) measure_tensor(context_, source_, delayed);
    } else {
      check(cudaMemsetAsync(tensor_amax_, 0, amax_bytes_, context_.stream()), "cudaMemsetAsync");
      const std::uint32_t* const amaxes = measure();
      find_tile_scales(context_, source_, grid_, operand_.spec,
                       has_row_factors() ? line_amax_ : tensor_amax_, amaxes, factors_,
                       scales_of(operand_, transpose_));
    }
    if (plan_.codes == CodeKernel::element) return encode();
    write_blocks(context_, source_, transpose_, operand_,
                 block_factors(operand_, factors_, grid_.count() == 1 ? 0 : 1),
                 plan_.raises_amax ? delayed : nullptr);
  }

 private:
  /// Returns true if the tiles have amaxes beside those of the rows that they lie in.
  bool has_row_factors() const {
    return plan_.amaxes.tiles && (plan_.amaxes.rows || plan_.amaxes.cols);
  }

  /// Makes the passes of the plan and returns the amaxes of the tiles.
  const std::uint32_t* measure() {
    const AmaxPasses& passes = plan_.amaxes;
    if (passes.tensor) measure_tensor(context_, source_, tensor_amax_);
    if (passes.tiles) measure_tiles(context_, source_, grid_, tile_amax_);
    if (passes.rows || passes.cols) {
      measure_lines(context_, source_, passes.rows ? line_amax_ : nullptr,
                    passes.cols ? line_amax_ : nullptr);
    }
    return grid_.count() == 1 && !passes.tiles ? tensor_amax_ : tile_amax_;
  }

  void encode() {
    with_rows(
        [&](const auto& rows) {
          switch (plan_.encoder) {
            case Encoder::e4m3_instruction: return encode_by<Codec::e4m3_instruction>(rows);
            case Encoder::e5m2_instruction: return encode_by<Codec::e5m2_instruction>(rows);
            default: return encode_by<Codec::cast>(rows);
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
  const QuantizePlan& plan_;
  TileGrid grid_;
  std::size_t amax_bytes_ = 0;
  std::uint32_t* tensor_amax_ = nullptr;
  std::uint32_t* tile_amax_ = nullptr;
  std::uint32_t* line_amax_ = nullptr;  ///< of rows or columns of the source
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

  /// Makes the passes over the source.
  void measure(const AmaxPasses& passes) {
    if (passes == AmaxPasses{}) return;
    check(cudaMemsetAsync(tensor_amax_, 0, amax_bytes_, context_.stream()), "cudaMemsetAsync");
    if (passes.tensor) measure_tensor(context_, source_, tensor_amax_);
    if (passes.rows || passes.cols) {
      measure_lines(context_, source_, passes.rows ? row_amax() : nullptr,
                    passes.cols ? col_amax() : nullptr);
    }
  }

  /// Returns the operand for quantize_blocks. Writes the scales that
  /// quantize_blocks does not write.
  BlockOperand block(const QuantizedOperand& operand, bool transpose, const QuantizePlan& plan) {
    const QuantSpec& spec = operand.spec;
    if (plan.scales == ScaleStep::in_kernel) return block_tiles(operand, transpose);
    if (plan.scales == ScaleStep::two_level) {
      TwoLevelFactors* const factors = &two_level_[transpose ? 1 : 0];
      find_two_level_factors(context_, spec, tensor_amax_, factors);
      return block_tiles(operand, transpose, factors);
    }
    const bool lines = plan.amaxes.rows || plan.amaxes.cols;
    float* const factors = next_;
    next_ += lines ? operand.rows : 1;
    if (plan.scales == ScaleStep::known) {
      return block_known(context_, operand, transpose, state_, factors);
    }
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

/// Quantizes the source, or its transform, by a plan.
void quantize(Context& context, const TensorView& source, bool transpose, const TensorView& state,
              const QuantizedOperand& operand, const QuantizePlan& plan) {
  if (plan.codes == CodeKernel::cast) return quantize_values(context, source, transpose, operand);
  if (plan.codes == CodeKernel::codebook) {
    return quantize_codebooks(context, source, transpose, operand);
  }
  if (plan.codes == CodeKernel::row) return quantize_rows(context, source, operand);
  if (plan.scales == ScaleStep::in_kernel || plan.scales == ScaleStep::two_level) {
    return quantize_tiles(context, source, transpose, operand, plan);
  }
  Quantizer(context, source, transpose, operand, plan).run(state);
}

}  // namespace

void quantize_both(Context& context, const ops::QuantizeBoth& op, const QuantizeBothPlan& plan) {
  op.check();
  if (op.source.size() == 0) return;
  SharedFactors factors(context, op.source, op.state);
  factors.measure(plan.amaxes());
  const BlockOperand row = factors.block(op.first, false, plan.first);
  const BlockOperand transposed = factors.block(op.second, true, plan.second);
  quantize_blocks(context, op.source, op.first.spec, row, transposed,
                  plan.raises_amax() ? amax_of(op.state) : nullptr);
}

void run(Context& context, const ops::Quantize& op) {
  op.check();
  if (op.source.size() == 0) return;
  const QuantizePlan plan =
      plan_quantize(op.operand.spec, op.source.rows, op.source.cols, op.transpose);
  if (plan.transform == TransformStep::none) {
    return quantize(context, op.source, op.transpose, op.state, op.operand, plan);
  }
  if (const auto* const clamp = op.operand.spec.transform.as<Clamp>()) {
    check_transform(op.operand, op.operand.rows, op.operand.k);
    write_clamp_bounds(context, op.source, clamp->quantile, op.operand.clamp_bounds.row<float>(0));
  }
  const TensorView values = transformed(context, op.source, op.transpose, op.operand);
  quantize(context, values, op.transpose, op.state, op.operand, plan);
}

}  // namespace fp8lab::cuda
