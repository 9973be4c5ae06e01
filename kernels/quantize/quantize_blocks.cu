#include "kernels/quantize/quantize_blocks.hpp"

#include <bit>

#include "kernels/quantize/quantize_blocks.cuh"
#include "kernels/quantize/quantize_scales.hpp"

namespace fp8lab::cuda {
namespace {

template <class T>
__device__ Place<false> load_stored(const Rows<T>& source, std::int64_t rows, std::int64_t cols,
                                    Patch<T>& patch) {
  const Place<false> at = place_of_block<false>(rows, cols);
  patch.load(source, at);
  return at;
}

template <class T>
__global__ void __launch_bounds__(kBlockThreads, 3)
    tensor_amax_kernel(Rows<T> source, std::int64_t rows, std::int64_t cols, std::uint32_t* amax) {
  Patch<T> patch;
  load_stored(source, rows, cols, patch);
  raise(amax, patch.amax());
}

template <class T>
__global__ void __launch_bounds__(kBlockThreads, 3)
    line_amax_kernel(Rows<T> source, std::int64_t rows, std::int64_t cols, std::uint32_t* row_amax,
                     std::uint32_t* col_amax) {
  __shared__ alignas(16) std::uint32_t parts[TileMap<true, Tiles::any>::kParts];
  Patch<T> patch;
  const auto at = load_stored(source, rows, cols, patch);
  if (row_amax != nullptr) {
    using Lanes = Spread<kGroup, kLanesAcross, 1>;
    std::uint32_t largest[kGroup];
    patch.row_amax(largest);
    Lanes::reduce(at.lane, largest);
    const int row = at.row + Lanes::first(at.lane);
    const bool first_holder = at.lane % (kLanesAcross / kGroup) == 0;
    if (first_holder && at.contains(row, 0)) atomicMax(&row_amax[at.row0 + row], largest[0]);
  }
  if (col_amax == nullptr) return;
  write_column_parts(patch, at, parts + at.warp * TileMap<true, Tiles::any>::kLine);
  __syncthreads();
  const int col = static_cast<int>(threadIdx.x);
  if (col >= kSide || !at.contains(0, col)) return;
  std::uint32_t largest = 0;
  for (int warp = 0; warp < kWarps; ++warp) {
    largest = max(largest, parts[warp * TileMap<true, Tiles::any>::kLine + col]);
  }
  atomicMax(&col_amax[at.col0 + col], largest);
}

__global__ void two_level_kernel(numerics::ScaleRule rule, numerics::FormatSpec format,
                                 const std::uint32_t* tensor_amax, TwoLevelFactors* factors) {
  const float factor = numerics::nv_tensor_factor(rule, format, numerics::bits_float(*tensor_amax));
  *factors = {factor, factor * (1.0f / numerics::max_finite(format)), 1.0f / factor};
}

}  // namespace

BlockOperand block_tiles(const QuantizedOperand& operand, bool transpose,
                         const TwoLevelFactors* two_level) {
  BlockOperand block = block_factors(operand, nullptr, 0);
  block.two_level = two_level;
  const TileShape& tile = operand.spec.tile;
  const auto shift = [](std::int64_t extent) {
    return std::countr_zero(static_cast<std::uint64_t>(extent));
  };
  block.row_shift = shift(transpose ? tile.cols : tile.rows);
  block.col_shift = shift(transpose ? tile.rows : tile.cols);
  return block;
}

void find_two_level_factors(Context& context, const QuantSpec& spec,
                            const std::uint32_t* tensor_amax, TwoLevelFactors* factors) {
  two_level_kernel<<<1, 1, 0, context.stream()>>>(spec.scale, spec.format, tensor_amax, factors);
  check_launch("quantize: factors of two-level scales");
}

BlockOperand block_factors(const QuantizedOperand& operand, const float* factors,
                           std::int64_t factor_step) {
  BlockOperand block;
  block.codes = static_cast<std::uint8_t*>(operand.codes.data);
  block.stride = operand.codes.row_stride;
  block.scales = static_cast<float*>(operand.scales.data);
  block.scale_stride = operand.scales.row_stride;
  block.format = operand.spec.format;
  block.rule = operand.spec.scale;
  block.ordinary = numerics::ordinary_scales(block.rule, block.format);
  const Encoder encoder = encoder_of(operand.spec);
  if (encoder == Encoder::stochastic) {
    block.stochastic =
        numerics::StochasticCodec(block.format, operand.spec.overflow, operand.spec.random_bits);
    block.key = operand.key;
  } else if (encoder != Encoder::e4m3_instruction && encoder != Encoder::e5m2_instruction) {
    block.nearest = numerics::NearestCodec(block.format, operand.spec.overflow);
  }
  block.factors = factors;
  block.factor_step = factor_step;
  return block;
}

BlockOperand block_known(Context& context, const QuantizedOperand& operand, bool transpose,
                         const TensorView& state, float* factor) {
  find_known_scale(context, operand.spec, state, factor, scales_of(operand, transpose));
  return block_factors(operand, factor, 0);
}

void quantize_blocks(Context& context, const TensorView& source, const QuantSpec& cast,
                     const BlockOperand& row, const BlockOperand& transposed, std::uint32_t* amax) {
  with_rows(
      [&]<class T>(const Rows<T>& rows) {
        const StoredBlocks<T> elements{rows};
        if (encoder_of(cast) == Encoder::stochastic) {
          if (transposed.codes == nullptr) {
            return launch_blocks<StochasticCast, true, false>(context, elements, source, row,
                                                              transposed, amax);
          }
          return launch_blocks<StochasticCast, false, true>(context, elements, source, row,
                                                            transposed, amax);
        }
        with_cast(cast, [&]<class Cast>() {
          if (transposed.codes == nullptr) {
            launch_blocks<Cast, true, false>(context, elements, source, row, transposed, amax);
          } else if (row.codes == nullptr) {
            launch_blocks<Cast, false, true>(context, elements, source, row, transposed, amax);
          } else {
            launch_blocks<Cast, true, true>(context, elements, source, row, transposed, amax);
          }
        });
      },
      source);
}

void measure_tensor(Context& context, const TensorView& source, std::uint32_t* amax) {
  with_rows(
      [&](const auto& rows) {
        tensor_amax_kernel<<<blocks_of(source), kBlockThreads, 0, context.stream()>>>(
            rows, source.rows, source.cols, amax);
      },
      source);
  check_launch("quantize: amax");
}

void measure_lines(Context& context, const TensorView& source, std::uint32_t* rows,
                   std::uint32_t* cols) {
  with_rows(
      [&](const auto& elements) {
        line_amax_kernel<<<blocks_of(source), kBlockThreads, 0, context.stream()>>>(
            elements, source.rows, source.cols, rows, cols);
      },
      source);
  check_launch("quantize: amaxes of lines");
}

}  // namespace fp8lab::cuda
