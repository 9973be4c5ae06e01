// Cases of gradients by the estimators of quantizers.
#include <fmt/format.h>

#include "emulation/cases/list.hpp"
#include "emulation/cases/operand_draw.hpp"
#include "emulation/spec/estimator.hpp"

namespace fp8lab {
namespace {

/// Draws arbitrary gradients, with scales of every magnitude.
void draw_factor(CaseDraw& draw, QuantSpec spec, const char* estimator) {
  spec.estimator = estimator_from_name(estimator).value();
  const MatrixShape s = draw.shape();
  const std::int64_t rows = s.rows, k = draw_length(draw, spec.transform, s.cols);
  const DType dtype = draw.activation_type();
  const DType result = draw.one_in(2) ? DType::f32 : DType::bf16;
  const bool wild = draw.one_in(4);
  const RandomKey key{7, draw.word(), 3, 0, draw.word() % 100};
  HostTensor factors = magnitudes(flat(draw.values(DType::f32, 1, k, false)));
  HostTensor scales =
      spec.has_scale() ? draw_scales(draw, spec, rows, k) : draw.values(DType::f32, 1, 1, false);
  draw.add(fmt::format("estimator_factor {} {}", estimator, label(spec)),
           fmt::format("({}, {}) {} d {}", rows, k, name_of(dtype), name_of(result)),
           {draw.values(dtype, rows, k, wild), std::move(scales),
            updated(draw.values(result, rows, k, wild)), std::move(factors)},
           [spec, rows, k, key](Backend& backend, const Views& t) {
             QuantizedOperand operand = QuantizedOperand::without_memory(spec, rows, k);
             operand.key = key;
             if (spec.has_scale()) operand.scales = t[1];
             if (spec.transform.is<Smoothing>()) operand.channel_factors = t[3];
             backend.run(ops::EstimatorFactor{.operand = operand, .source = t[0], .d = t[2]});
           });
}

/// Draws a product whose operands have arbitrary codes, in the space of the estimated operand.
void draw_estimated_product(CaseDraw& draw, const char* estimator, const char* transform) {
  QuantSpec spec = quantized_behind(transform, numerics::kE2M1, {1, 32});
  spec.estimator = estimator_from_name(estimator).value();
  const QuantSpec codes = quantized(numerics::kE4M3, {0, 0});
  GemmSpec gemm;
  gemm.accumulator = Accumulator::sm90_wgmma_fp8;
  gemm.output = DType::f32;
  const MatrixShape s = draw.shape();
  const std::int64_t m = s.rows, n = draw_length(draw, spec.transform, s.cols);
  const std::int64_t k = draw.integer(1, 90);
  const bool adds = draw.one_in(2);
  const RandomKey key{7, draw.word(), 3, 0, draw.word() % 100};
  draw.add(fmt::format("product with {} {}", estimator, label(spec)),
           fmt::format("({}, {}, {}){}", m, n, k, adds ? " accumulated" : ""),
           {draw.ordinary(DType::f32, m, k), draw.ordinary(DType::f32, n, k),
            codes_of(draw, codes, m, k), scales_of(draw, codes, m, k), codes_of(draw, codes, n, k),
            scales_of(draw, codes, n, k), draw.values(DType::bf16, m, n, false),
            draw_scales(draw, spec, m, n), updated(draw.values(DType::f32, m, n, false)),
            draw.output(DType::f32, adds ? m : 1, adds ? n : 1)},
           [=](Backend& backend, const Views& t) {
             QuantizedOperand a = operand_at(codes, m, k, t, 2);
             QuantizedOperand b = operand_at(codes, n, k, t, 4);
             a.key = key;
             backend.run(ops::Quantize{.source = t[0], .operand = a});
             b.key = key;
             backend.run(ops::Quantize{.source = t[1], .operand = b});
             QuantizedOperand estimated = QuantizedOperand::without_memory(spec, m, n);
             estimated.key = key;
             estimated.scales = t[7];
             if (spec.transform) b.source_space = estimated.own_space();
             ops::Product product{
                 .gemm = {.spec = gemm, .a = a, .b = b, .bias = {}, .accumulate = adds, .d = t[8]}};
             product.estimated = &estimated;
             product.estimated_source = t[6];
             if (adds) product.apart = t[9];
             backend.run(product);
           });
}

}  // namespace

void draw_estimated_products(CaseDraw& draw) {
  draw_estimated_product(draw, "clip_mask", "hadamard:32:drawn");
  draw_estimated_product(draw, "dge:5:3", "none");
}

template <>
void draw_cases<ops::EstimatorFactor>(CaseDraw& draw) {
  const QuantSpec groups = quantized(numerics::kE2M1, {1, 32}, numerics::ScaleFormat::e8m0);
  draw_factor(draw, groups, "clip_mask");
  draw_factor(draw, groups, "dge:5:3");
  draw_factor(draw, quantized(numerics::kE4M3, {3, 7}), "dge:2.5:8");
  draw_factor(draw, quantized(numerics::kInt8, {1, 0}), "dge:3:3");
  draw_factor(draw, quantized(numerics::kLns8, {0, 0}), "dge:10:1.5");
  QuantSpec unscaled;
  unscaled.format = numerics::kE5M2;
  draw_factor(draw, unscaled, "dge:1:1");
  for (const char* transform : {"hadamard:32", "hadamard:16:drawn", "smooth:0.5"}) {
    draw_factor(draw, quantized_behind(transform, numerics::kE2M1, {1, 16}), "clip_mask");
  }
}

}  // namespace fp8lab
