#include "src/validate/scalar_arithmetic.hpp"

#include <algorithm>
#include <vector>

#include "emulation/numerics/codec.hpp"
#include "emulation/numerics/philox.hpp"
#include "emulation/numerics/tile_deviation.hpp"
#include "emulation/ops/gemm/gemm_plan.hpp"
#include "emulation/reference/gemm_reference.hpp"

namespace fp8lab {
namespace {

using numerics::bits_float;
using numerics::float_bits;

/// One quantization, addressed by the operand's rows and K.
class ScalarQuantizer {
 public:
  ScalarQuantizer(const ScalarSteps& steps, const TensorView& source, bool transpose,
                  const RandomKey& key, QuantizedOperand& operand)
      : steps_(steps), source_(source), transpose_(transpose), key_(key), operand_(operand) {}

  void run() {
    const TileShape tile = steps_.amax_tile(operand_.spec.tile);
    const std::int64_t height = tile.rows == 0 ? operand_.rows : tile.rows;
    const std::int64_t width = tile.cols == 0 ? operand_.k : tile.cols;
    for (std::int64_t r = 0; r < operand_.rows; r += height) {
      for (std::int64_t c = 0; c < operand_.k; c += width) {
        quantize_tile(r, std::min(r + height, operand_.rows), c, std::min(c + width, operand_.k));
      }
    }
  }

 private:
  float at(std::int64_t row, std::int64_t col) const {
    const std::int64_t r = transpose_ ? col : row;
    const std::int64_t c = transpose_ ? row : col;
    return source_.dtype == DType::bf16 ? numerics::from_bf16(source_.row<std::uint16_t>(r)[c])
                                        : source_.row<float>(r)[c];
  }

  void quantize_tile(std::int64_t r0, std::int64_t r1, std::int64_t c0, std::int64_t c1) {
    const QuantSpec& spec = operand_.spec;
    numerics::TileScale scale;
    if (spec.scale_source == ScaleSource::current) {
      std::vector<float> elements;
      for (std::int64_t r = r0; r < r1; ++r) {
        for (std::int64_t c = c0; c < c1; ++c) elements.push_back(at(r, c));
      }
      std::uint32_t amax = 0;
      for (const float x : elements) amax = std::max(amax, steps_.magnitude(x));
      const float deviations = spec.scale.deviations;
      if (deviations > 0.0f) amax = steps_.deviation(amax, elements, deviations);
      scale = steps_.scale(spec.scale, spec.format, bits_float(amax));
      const TileShape& tile = spec.tile;
      operand_.scales.row<float>(
          tile.rows == 0 ? 0 : r0 / tile.rows)[tile.cols == 0 ? 0 : c0 / tile.cols] = scale.decode;
    }
    for (std::int64_t r = r0; r < r1; ++r) {
      for (std::int64_t c = c0; c < c1; ++c) {
        operand_.codes.row<std::uint8_t>(r)[c] = static_cast<std::uint8_t>(code(scale, r, c));
      }
    }
  }

  std::uint32_t code(const numerics::TileScale& scale, std::int64_t r, std::int64_t c) const {
    const QuantSpec& spec = operand_.spec;
    const std::int64_t index = transpose_ ? c * source_.cols + r : r * source_.cols + c;
    const std::uint32_t random = numerics::random_bits(
        key_.seed, key_.step, key_.tensor, key_.orientation, static_cast<std::uint64_t>(index));
    return steps_.cast({spec.format, float_bits(steps_.scaled(scale, at(r, c))), spec.rounding,
                        spec.overflow, random});
  }

  const ScalarSteps& steps_;
  const TensorView& source_;
  bool transpose_;
  const RandomKey& key_;
  QuantizedOperand& operand_;
};

/// Returns the codes of one row, converted exactly to `format`.
std::vector<std::uint32_t> carried_row(const QuantizedOperand& operand, std::int64_t row,
                                       const numerics::FormatSpec& format) {
  std::vector<std::uint32_t> codes(static_cast<std::size_t>(operand.k));
  for (std::int64_t i = 0; i < operand.k; ++i) {
    const std::uint32_t code = operand.codes.dtype == DType::bf16
                                   ? operand.codes.row<const std::uint16_t>(row)[i]
                                   : operand.codes.row<const std::uint8_t>(row)[i];
    codes[static_cast<std::size_t>(i)] =
        operand.spec.format == format
            ? code
            : numerics::encode(format, numerics::decode_bits(operand.spec.format, code),
                               numerics::Rounding::nearest, numerics::Overflow::special);
  }
  return codes;
}

using LocateScale = std::function<ScaleIndex(ScaleIndex, std::int64_t, std::int64_t)>;

/// Returns the scales of one row along K; a single 1 if there are no scales.
std::vector<float> scale_row(const QuantizedOperand& operand, std::int64_t row,
                             const LocateScale& locate) {
  if (operand.scales.empty()) return {1.0f};
  const std::int64_t tile_row = operand.spec.tile.rows == 0 ? 0 : row / operand.spec.tile.rows;
  std::vector<float> scales;
  for (std::int64_t j = 0; j < operand.scales.cols; ++j) {
    const ScaleIndex index = locate({tile_row, j}, operand.scales.rows, operand.scales.cols);
    scales.push_back(operand.scales.row<const float>(index.row)[index.col]);
  }
  return scales;
}

/// An operand row by row, prepared for the computation of elements.
struct ScalarOperand {
  std::vector<std::vector<std::uint32_t>> codes;
  std::vector<std::vector<float>> scales;

  ScalarOperand(const QuantizedOperand& operand, const numerics::FormatSpec& format,
                const LocateScale& locate) {
    for (std::int64_t r = 0; r < operand.rows; ++r) {
      codes.push_back(carried_row(operand, r, format));
      scales.push_back(scale_row(operand, r, locate));
    }
  }
};

void multiply(const ScalarSteps& steps, const GemmSpec& spec, const QuantizedOperand& a,
              const QuantizedOperand& b, const TensorView& bias, bool accumulate,
              const TensorView& d) {
  const GemmPlan plan = plan_gemm(spec, a.spec, b.spec, a.k);
  check_gemm_operands(spec, plan, a, b, bias, accumulate, d);
  check_block_scales(plan, a, b);
  const auto as_wanted = [](ScaleIndex wanted, std::int64_t, std::int64_t) { return wanted; };
  const ScalarOperand left(a, plan.format_a, as_wanted);
  const ScalarOperand right(b, plan.format_b, steps.scale_index_b);
  ElementProblem problem;
  problem.element = element_gemm(plan);
  problem.epilogue = element_epilogue(plan, accumulate, d.dtype);
  problem.k = plan.k;
  for (std::int64_t m = 0; m < a.rows; ++m) {
    for (std::int64_t n = 0; n < b.rows; ++n) {
      const OperandRows rows = steps.operand_rows(m, n, a.rows, b.rows);
      const auto i = static_cast<std::size_t>(rows.a);
      const auto j = static_cast<std::size_t>(rows.b);
      problem.a = left.codes[i].data();
      problem.b = right.codes[j].data();
      problem.sa = left.scales[i];
      problem.sb = right.scales[j];
      if (accumulate) problem.c = d.row<const float>(m)[n];
      if (!bias.empty()) problem.bias = bias.row<const float>(0)[n];
      const std::uint32_t code = steps.element(problem);
      if (d.dtype == DType::bf16) {
        d.row<std::uint16_t>(m)[n] = static_cast<std::uint16_t>(code);
      } else {
        d.row<float>(m)[n] = bits_float(code);
      }
    }
  }
}

}  // namespace

std::uint32_t scalar_group(const GroupProblem& p) {
  return p.model.mma_sync_fp8 ? numerics::mma_sync_fp8(p.model.group.output, p.format_a, p.format_b,
                                                       p.a, p.b, p.n, p.c_bits)
                              : numerics::fused_group(p.model.group, p.format_a, p.format_b, p.a,
                                                      p.b, p.n, p.c_bits);
}

std::uint32_t scalar_element(const ElementProblem& p) {
  const float acc =
      numerics::accumulate_element(p.element, p.a, p.b, p.k, p.sa.data(), p.sb.data());
  return numerics::finish_element(p.epilogue, acc, p.sa[0], p.sb[0], p.c,
                                  p.bias ? &*p.bias : nullptr);
}

ScalarSteps::ScalarSteps()
    : cast([](const CastProblem& p) {
        return numerics::encode(p.format, p.f32_bits, p.rounding, p.overflow, p.random_bits);
      }),
      scale(numerics::tile_scale),
      scaled(numerics::scaled_value),
      magnitude([](float x) { return float_bits(x) & 0x7FFFFFFFu; }),
      deviation([](std::uint32_t amax, std::span<const float> tile, float deviations) {
        numerics::TileDeviation sums(amax);
        for (const float x : tile) sums.add(x);
        return sums.times(deviations);
      }),
      amax_tile([](const TileShape& tile) { return tile; }),
      group(scalar_group),
      element(scalar_element),
      operand_rows([](std::int64_t m, std::int64_t n, std::int64_t, std::int64_t) {
        return OperandRows{m, n};
      }),
      scale_index_b([](ScaleIndex wanted, std::int64_t, std::int64_t) { return wanted; }) {}

Implementation scalar_implementation(const ScalarSteps& steps) {
  Implementation scalar;
  scalar.cast = steps.cast;
  scalar.scale = steps.scale;
  scalar.group = steps.group;
  scalar.element = steps.element;
  scalar.quantize = [steps](const TensorView& source, bool transpose, const RandomKey& key,
                            QuantizedOperand& operand) {
    ScalarQuantizer(steps, source, transpose, key, operand).run();
  };
  scalar.gemm = [steps](const GemmSpec& spec, const QuantizedOperand& a, const QuantizedOperand& b,
                        const TensorView& bias, bool accumulate,
                        const TensorView& d) { multiply(steps, spec, a, b, bias, accumulate, d); };
  return scalar;
}

}  // namespace fp8lab
