// Cases of the operations around a product: rotations undone in it and clamps compensated in it.
#include <fmt/format.h>

#include "emulation/cases/list.hpp"
#include "emulation/cases/operand_draw.hpp"

namespace fp8lab {
namespace {

std::int64_t rows_for(CaseDraw& draw, const QuantSpec& spec, std::int64_t wanted) {
  return spec.transform.is_left() ? draw_length(draw, spec.transform, wanted) : wanted;
}

/// An operand of a product and the shape of its source tensor.
struct Factor {
  QuantSpec spec;
  std::int64_t rows, k;
  bool transpose;

  Factor(CaseDraw& draw, const QuantSpec& drawn_spec, std::int64_t wanted_rows, std::int64_t depth)
      : spec(drawn_spec),
        rows(rows_for(draw, drawn_spec, wanted_rows)),
        k(depth),
        transpose(draw.one_in(2)) {}

  HostTensor draw_source(CaseDraw& draw, DType dtype, bool wild) const {
    const MatrixShape s = MatrixShape{rows, k}.transposed_if(transpose);
    return draw.values(dtype, s.rows, s.cols, wild);
  }
  QuantizedOperand without_codes(const RandomKey& key) const {
    QuantizedOperand operand = QuantizedOperand::without_memory(spec, rows, k);
    operand.key = key;
    return operand;
  }
};

std::string describe(const Factor& a, const Factor& b, DType dtype) {
  return fmt::format("({}, {}, {}) {}{}{}", a.rows, b.rows, a.k, name_of(dtype),
                     a.transpose ? " A transposed" : "", b.transpose ? " B transposed" : "");
}

/// Draws a compensation, which needs no codes; the bounds of the clamp are drawn.
void draw_compensation(CaseDraw& draw, const QuantSpec& spec_a, const QuantSpec& spec_b) {
  const MatrixShape s = draw.shape();
  const DType dtype = draw.activation_type();
  const DType result = draw.one_in(2) ? DType::f32 : DType::bf16;
  const bool wild = draw.one_in(4);
  const Factor a(draw, spec_a, 1 + s.rows % 200, s.cols),
      b(draw, spec_b, draw.integer(1, 90), s.cols);
  HostTensor bounds = magnitudes(bounds_of(draw));
  auto* const bound = reinterpret_cast<float*>(bounds.data.data());
  bound[0] = -bound[0];
  draw.add(fmt::format("compensate {} x {}", label(a.spec), label(b.spec)), describe(a, b, dtype),
           {a.draw_source(draw, dtype, wild), b.draw_source(draw, dtype, wild), std::move(bounds),
            draw.output(result, a.rows, b.rows)},
           [a, b](Backend& backend, const Views& t) {
             QuantizedOperand left = a.without_codes({}), right = b.without_codes({});
             left.clamp_bounds = right.clamp_bounds = t[2];
             backend.run(ops::Compensate{.a = left,
                                         .a_source = t[0],
                                         .transpose_a = a.transpose,
                                         .b = right,
                                         .b_source = t[1],
                                         .transpose_b = b.transpose,
                                         .d = t[3]});
           });
}

void draw_rotation(CaseDraw& draw, const QuantSpec& spec_a, const QuantSpec& spec_b) {
  const MatrixShape s = draw.shape();
  const DType dtype = draw.one_in(2) ? DType::f32 : DType::bf16;
  const Factor a(draw, spec_a, s.rows, 1), b(draw, spec_b, s.cols, 1);
  const RandomKey key_a{7, draw.word(), 3, 0, draw.word() % 100};
  const RandomKey key_b{7, draw.word(), 4, 1, draw.word() % 100};
  draw.add(fmt::format("rotate_back {} x {}", label(a.spec), label(b.spec)), dtype,
           MatrixShape{a.rows, b.rows},
           {updated(draw.values(dtype, a.rows, b.rows, draw.one_in(4)))},
           [a, b, key_a, key_b](Backend& backend, const Views& t) {
             const QuantizedOperand left = a.without_codes(key_a), right = b.without_codes(key_b);
             backend.run(ops::RotateBack{.a = left, .b = right, .d = t[0]});
           });
}

/// Returns the space of a transform; `factors` are those of a smoothing.
Space space_at(const char* transform, const RandomKey& key, const TensorView& factors, bool right) {
  return {transform_from_name(transform).value(), key, factors, right};
}

/// Draws operands that were quantized in a space; the spaces of A and B differ.
void draw_rotation_of_sources(CaseDraw& draw, const char* of_a, const char* of_b) {
  const MatrixShape s = draw.shape();
  const DType dtype = draw.one_in(2) ? DType::f32 : DType::bf16;
  const auto rows = [&](const char* name, std::int64_t wanted) {
    return draw_length(draw, transform_from_name(name).value(), wanted);
  };
  const MatrixShape d{rows(of_a, s.rows), rows(of_b, s.cols)};
  const RandomKey key_a{7, draw.word(), 3, 0, draw.word() % 100};
  const RandomKey key_b{7, draw.word(), 4, 1, draw.word() % 100};
  const bool right = draw.one_in(2);
  const auto factors = [&](std::int64_t count) {
    return magnitudes(flat(draw.ordinary(DType::f32, 1, count)));
  };
  draw.add(fmt::format("rotate_back sources {} x {}", of_a, of_b), dtype, d,
           {updated(draw.values(dtype, d.rows, d.cols, draw.one_in(4))), factors(d.rows),
            factors(d.cols)},
           [=](Backend& backend, const Views& t) {
             const QuantSpec spec = quantized(numerics::kE4M3, {0, 0});
             QuantizedOperand a = QuantizedOperand::without_memory(spec, d.rows, 1);
             QuantizedOperand b = QuantizedOperand::without_memory(spec, d.cols, 1);
             a.source_space = space_at(of_a, key_a, t[1], right);
             b.source_space = space_at(of_b, key_b, t[2], !right);
             backend.run(ops::RotateBack{.a = a, .b = b, .d = t[0]});
           });
}

GemmSpec fp8_gemm() {
  GemmSpec spec;
  spec.accumulator = Accumulator::sm90_wgmma_fp8;
  return spec;
}

constexpr const char* kCompensatedClamp = "clamp:0.99:compensated";

struct ClampedOperands {
  QuantSpec plain = quantized(numerics::kE2M1, {1, 0});
  QuantSpec by_row = quantized_behind(kCompensatedClamp, numerics::kE2M1, {1, 0});
  QuantSpec by_tensor = quantized_behind(kCompensatedClamp, numerics::kE2M1, {0, 0});
  QuantSpec with_codes =
      quantized_behind("clamp:0.99:compensated:quantized", numerics::kE2M1, {1, 0});
};

struct RotatedOperands {
  QuantSpec plain = quantized(numerics::kE2M1, {1, 0});
  QuantSpec left = quantized_behind("left:hadamard:12:drawn", numerics::kE4M3, {0, 0});
  QuantSpec pattern = quantized_behind("left:hadamard:64:+--+", numerics::kE5M2, {0, 0});
  QuantSpec full = quantized_behind("left:hadamard:full:drawn:after", numerics::kE4M3, {1, 0});
};

/// What the product does to d: writes it, or adds to it in FP32.
enum class Sum : std::uint8_t { written, accumulated };

/// Draws a case that quantizes and multiplies both operands and measures the left one.
/// Orientations and types are drawn.
void draw_product(CaseDraw& draw, const GemmSpec& gemm, const QuantSpec& spec_a,
                  const QuantSpec& spec_b, Sum sum = Sum::written) {
  const MatrixShape s = draw.shape();
  const Factor a(draw, spec_a, s.rows, s.cols), b(draw, spec_b, 1 + draw.word() % 300, s.cols);
  const DType dtype = draw.activation_type();
  const bool wild = draw.one_in(4), adds = sum == Sum::accumulated;
  GemmSpec spec = gemm;
  spec.output = adds || draw.one_in(2) ? DType::f32 : DType::bf16;
  HostTensor d = adds ? updated(draw.values(DType::f32, a.rows, b.rows, wild))
                      : draw.output(spec.output, a.rows, b.rows);
  draw.add(
      fmt::format("product {} x {} {}{}", label(a.spec), label(b.spec), label(spec),
                  adds ? " added" : ""),
      describe(a, b, dtype),
      {a.draw_source(draw, dtype, wild), b.draw_source(draw, dtype, wild),
       codes_of(draw, a.spec, a.rows, a.k), scales_of(draw, a.spec, a.rows, a.k),
       codes_of(draw, b.spec, b.rows, b.k), scales_of(draw, b.spec, b.rows, b.k), std::move(d),
       bounds_of(draw), bounds_of(draw), record_of(draw),
       draw.output(DType::f32, adds ? a.rows : 1, adds ? b.rows : 1)},
      [spec, a, b, adds](Backend& backend, const Views& t) {
        QuantizedOperand left = operand_at(a.spec, a.rows, a.k, t, 2);
        QuantizedOperand right = operand_at(b.spec, b.rows, b.k, t, 4);
        left.clamp_bounds = t[7];
        right.clamp_bounds = t[8];
        const RandomKey key{7, 8, 9, 0, 10};
        left.key = key;
        backend.run(ops::Quantize{.source = t[0], .transpose = a.transpose, .operand = left});
        right.key = key;
        backend.run(ops::Quantize{.source = t[1], .transpose = b.transpose, .operand = right});
        backend.run(ops::Product{
            .gemm =
                {.spec = spec, .a = left, .b = right, .bias = {}, .accumulate = adds, .d = t[6]},
            .a_source = t[0],
            .transpose_a = a.transpose,
            .b_source = t[1],
            .transpose_b = b.transpose,
            .apart = adds ? t[10] : TensorView{}});
        backend.run(ops::MeasureOperand{
            .source = t[0], .transpose = a.transpose, .operand = left, .record = t[9]});
      });
}

}  // namespace

template <>
void draw_cases<ops::Compensate>(CaseDraw& draw) {
  const ClampedOperands operands;
  draw_compensation(draw, operands.by_row, operands.plain);
  draw_compensation(draw, operands.plain, operands.by_tensor);
}

template <>
void draw_cases<ops::RotateBack>(CaseDraw& draw) {
  const RotatedOperands operands;
  draw_rotation(draw, operands.left, operands.plain);
  draw_rotation(draw, operands.plain, operands.full);
  draw_rotation(draw, operands.pattern, operands.left);
  draw_rotation_of_sources(draw, "hadamard:64:drawn", "hadamard:full:+:after");
  draw_rotation_of_sources(draw, "smooth:0.5", "hadamard:12:drawn");
  draw_rotation_of_sources(draw, "hadamard:2", "smooth:0.5:static");
}

template <>
void draw_cases<ops::Product>(CaseDraw& draw) {
  const ClampedOperands clamped;
  draw_product(draw, fp8_gemm(), clamped.by_row, clamped.plain);
  draw_product(draw, fp8_gemm(), clamped.plain, clamped.by_tensor);
  draw_product(draw, fp8_gemm(), quantized_behind("clamp:0.7", numerics::kE4M3, {0, 0}),
               clamped.plain);
  const RotatedOperands rotated;
  draw_product(draw, fp8_gemm(), rotated.left, rotated.plain);
  draw_product(draw, fp8_gemm(), rotated.plain, rotated.full);
  draw_product(draw, fp8_gemm(), rotated.left, clamped.by_tensor);
  draw_product(draw, fp8_gemm(), rotated.left, rotated.pattern);
  draw_product(draw, fp8_gemm(), clamped.with_codes, clamped.plain);
  draw_product(draw, fp8_gemm(), rotated.left, clamped.with_codes);
  draw_product(draw, fp8_gemm(), rotated.left, rotated.pattern, Sum::accumulated);
  draw_product(draw, fp8_gemm(), clamped.plain, clamped.by_row, Sum::accumulated);
  draw_product(draw, fp8_gemm(), rotated.plain, clamped.plain, Sum::accumulated);
  draw_estimated_products(draw);
  // Values that are dequantized before they are multiplied.
  const QuantSpec logarithms = quantized(numerics::kLogFmt8, {1, 64});
  draw_product(draw, {}, logarithms, logarithms);
  const QuantSpec expanded = quantized_behind("expand", numerics::kE4M3, {1, 64});
  draw_product(draw, {}, expanded, expanded);
  draw_product(draw, {}, clamped.with_codes, expanded);
  GemmSpec fp32;
  fp32.accumulator = Accumulator::ideal_fp32;
  draw_product(draw, fp32, logarithms, expanded);
  // Scales inside the sum, also next to such values.
  GemmSpec chunks;
  chunks.schedule = Schedule::promote;
  chunks.promote_interval = 16;
  const auto fp4 = [](TileShape tile) {
    return quantized(numerics::kE2M1, tile, numerics::ScaleFormat::nv_two_level);
  };
  draw_product(draw, chunks, fp4({1, 16}), fp4({16, 16}));
  draw_product(draw, chunks, expanded, fp4({1, 16}));
}

}  // namespace fp8lab
