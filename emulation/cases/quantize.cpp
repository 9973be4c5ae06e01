// Cases of quantization and dequantization.
#include <fmt/format.h>

#include "emulation/cases/list.hpp"
#include "emulation/cases/operand_draw.hpp"

namespace fp8lab {
namespace {

constexpr const char* kTransforms[] = {
    "hadamard:2",   "hadamard:16:+--+",    "hadamard:64:drawn",      "hadamard:12:drawn:after",
    "hadamard:172", "hadamard:1024:drawn", "hadamard:full",          "hadamard:full:drawn:after",
    "smooth:0.5",   "smooth:0.3:static",   "left:hadamard:16:drawn", "left:hadamard:full"};

/// Quantizes and dequantizes; with delayed scaling also a second step that
/// uses the state of the first.
void quantize(CaseDraw& draw, const QuantSpec& spec, DType source, bool transpose) {
  const MatrixShape s = draw.shape(), of_operand = s.transposed_if(transpose);
  const std::int64_t rows = of_operand.rows, k = of_operand.cols;
  const DType out = draw.one_in(2) ? DType::bf16 : DType::f32;
  const RandomKey drawn{7, draw.word(), 3, transpose ? 1u : 0u};
  draw.add(fmt::format("quantize {}", label(spec)),
           fmt::format("{} {}{}", name_of(source), describe(s), orientation_name(transpose)),
           {draw.values(source, s.rows, s.cols, draw.one_in(4)), codes_of(draw, spec, rows, k),
            scales_of(draw, spec, rows, k), state_of(draw, spec), draw.output(out, s.rows, s.cols),
            draw.integers(1, 0, 1000)},
           [spec, rows, k, transpose, drawn](Backend& b, const Views& t) {
             QuantizedOperand operand = operand_at(spec, rows, k, t, 1);
             operand.key = drawn;
             operand.key.step_counter = static_cast<const std::uint32_t*>(t[5].data);
             const TensorView state = state_for(spec, t[3]);
             b.run(ops::Quantize{
                 .source = t[0], .transpose = transpose, .state = state, .operand = operand});
             if (!state.empty()) {
               b.run(ops::UpdateDelayedScale{spec, state});
               b.run(ops::Quantize{
                   .source = t[0], .transpose = transpose, .state = state, .operand = operand});
               b.run(ops::UpdateDelayedScale{spec, state});
             }
             b.run(ops::Dequantize{operand, transpose, t[4]});
           });
}

/// Quantizes after a transform, inverts it, and measures. Smoothing computes its factors twice, so
/// that static ones must not change.
void transform(CaseDraw& draw, const char* name, bool transpose) {
  QuantSpec spec = draw_quantizer(draw);
  spec.transform = transform_from_name(name).value();
  if (draw.one_in(4)) spec.rounding = numerics::Rounding::stochastic;
  MatrixShape of_operand = draw.shape();
  std::int64_t& transformed = spec.transform.is_left() ? of_operand.rows : of_operand.cols;
  transformed = draw_length(draw, spec.transform, transformed);
  const std::int64_t rows = of_operand.rows, k = of_operand.cols;
  const MatrixShape s = of_operand.transposed_if(transpose);
  const DType dtype = draw.activation_type();
  const DType out = draw.one_in(2) ? DType::bf16 : DType::f32;
  const bool wild = draw.one_in(4), right = draw.one_in(2);
  const RandomKey key{7, draw.word(), 3, transpose ? 1u : 0u, draw.word() % 100};
  const auto source = [&] { return draw.values(dtype, s.rows, s.cols, wild); };
  draw.add(fmt::format("transform {}", name),
           fmt::format("{} {} {}{}", label(spec), name_of(dtype), describe(s),
                       orientation_name(transpose)),
           {source(), source(), codes_of(draw, spec, rows, k), scales_of(draw, spec, rows, k),
            draw.output(out, s.rows, s.cols), record_of(draw),
            zeroed(flat(draw.output(DType::f32, 1, k)))},
           [spec, rows, k, transpose, right, key](Backend& b, const Views& t) {
             QuantizedOperand operand = operand_at(spec, rows, k, t, 2);
             if (const auto* const smoothing = spec.transform.as<Smoothing>()) {
               b.run(ops::SmoothingFactors{.smoothing = *smoothing,
                                           .a = t[0],
                                           .transpose_a = transpose,
                                           .b = t[1],
                                           .transpose_b = transpose,
                                           .factors = t[6]});
               b.run(ops::SmoothingFactors{.smoothing = *smoothing,
                                           .a = t[1],
                                           .transpose_a = transpose,
                                           .b = t[0],
                                           .transpose_b = transpose,
                                           .factors = t[6]});
               operand.channel_factors = t[6];
               operand.is_right = right;
             }
             operand.key = key;
             b.run(ops::Quantize{.source = t[0], .transpose = transpose, .operand = operand});
             b.run(ops::Dequantize{operand, transpose, t[4]});
             b.run(ops::MeasureOperand{
                 .source = t[1], .transpose = transpose, .operand = operand, .record = t[5]});
           });
}

/// Quantizes a second orientation in the space of the first, by a quantizer with a transform of its
/// own; dequantizes and measures both.
void in_space(CaseDraw& draw, const char* first_name, const char* second_name) {
  QuantSpec of_first = draw_quantizer(draw), of_second = draw_quantizer(draw);
  of_first.transform = transform_from_name(first_name).value();
  of_second.transform = transform_from_name(second_name).value();
  const MatrixShape drawn = draw.shape();
  const MatrixShape s{draw_length(draw, of_second.transform, drawn.rows),
                      draw_length(draw, of_first.transform, drawn.cols)};
  const DType dtype = draw.activation_type(), out = draw.one_in(2) ? DType::bf16 : DType::f32;
  const bool wild = draw.one_in(4), right = draw.one_in(2);
  const RandomKey key{7, draw.word(), 3, 0, draw.word() % 100};
  const RandomKey other{7, draw.word(), 3, 1, draw.word() % 100};
  draw.add(fmt::format("quantize in the space of {}, {}", first_name, second_name),
           fmt::format("{} then {} {} {}", label(of_first), label(of_second), name_of(dtype),
                       describe(s)),
           {draw.values(dtype, s.rows, s.cols, wild), codes_of(draw, of_first, s.rows, s.cols),
            scales_of(draw, of_first, s.rows, s.cols), draw.output(DType::f32, s.rows, s.cols),
            codes_of(draw, of_second, s.cols, s.rows), scales_of(draw, of_second, s.cols, s.rows),
            draw.output(out, s.rows, s.cols), record_of(draw),
            magnitudes(flat(draw.ordinary(DType::f32, 1, s.cols)))},
           [=](Backend& b, const Views& t) {
             QuantizedOperand first = operand_at(of_first, s.rows, s.cols, t, 1);
             first.channel_factors = t[8];
             first.is_right = right;
             QuantizedOperand second = operand_at(of_second, s.cols, s.rows, t, 4);
             first.key = key;
             b.run(ops::Quantize{.source = t[0], .operand = first});
             b.run(ops::Dequantize{first, false, t[3], true});
             second.source_space = first.own_space();
             second.key = other;
             b.run(ops::Quantize{.source = t[3], .transpose = true, .operand = second});
             b.run(ops::Dequantize{second, true, t[6]});
             b.run(ops::MeasureOperand{
                 .source = t[0], .transpose = true, .operand = second, .record = t[7]});
           });
}

/// Dequantizes arbitrary codes with arbitrary scales, including ones that no quantization produces.
void dequantize(CaseDraw& draw, const QuantSpec& spec, bool transpose) {
  const MatrixShape of_operand = draw.shape(), s = of_operand.transposed_if(transpose);
  const std::int64_t rows = of_operand.rows, k = of_operand.cols;
  const DType out = draw.one_in(2) ? DType::bf16 : DType::f32;
  HostTensor codes = spec.storage() == DType::u8
                         ? draw.bytes(rows, k, spec.format.bits())
                         : draw.values(spec.storage(), rows, k, draw.one_in(2));
  draw.add(fmt::format("dequantize {}", label(spec)),
           fmt::format("{} {}{}", name_of(out), describe(s), orientation_name(transpose)),
           {std::move(codes), draw_scales(draw, spec, rows, k), draw.output(out, s.rows, s.cols)},
           [spec, rows, k, transpose](Backend& b, const Views& t) {
             const QuantizedOperand operand = operand_at(spec, rows, k, t, 0);
             b.run(ops::Dequantize{operand, transpose, t[2]});
           });
}

void quantize_both(CaseDraw& draw, const QuantSpec& spec, DType source, const MatrixShape& s) {
  const RandomKey key{7, draw.word(), 3, 0, draw.word() % 100};
  draw.add(
      fmt::format("quantize_both {}", label(spec)), source, s,
      {draw.values(source, s.rows, s.cols, draw.one_in(4)), codes_of(draw, spec, s.rows, s.cols),
       scales_of(draw, spec, s.rows, s.cols), codes_of(draw, spec, s.cols, s.rows),
       scales_of(draw, spec, s.cols, s.rows), state_of(draw, spec)},
      [spec, s, key](Backend& b, const Views& t) {
        QuantizedOperand first = operand_at(spec, s.rows, s.cols, t, 1);
        QuantizedOperand second = operand_at(spec, s.cols, s.rows, t, 3);
        first.key = key;
        second.key = key;
        second.key.orientation = 1;
        b.run(ops::QuantizeBoth{
            .source = t[0], .state = state_for(spec, t[5]), .first = first, .second = second});
      });
}

}  // namespace

template <>
void draw_cases<ops::Quantize>(CaseDraw& draw) {
  for (const QuantSpec& spec : every_quantizer()) {
    const DType source = draw.activation_type();
    for (const bool transpose : {false, true}) quantize(draw, spec, source, transpose);
  }
  for (const char* name : kTransforms) {
    for (const bool transpose : {false, true}) transform(draw, name, transpose);
  }
  in_space(draw, "hadamard:16:drawn", "none");
  in_space(draw, "hadamard:full:drawn:after", "hadamard:64:drawn");
  in_space(draw, "smooth:0.5", "hadamard:12");
}

template <>
void draw_cases<ops::Dequantize>(CaseDraw& draw) {
  for (const QuantSpec& spec : every_quantizer()) {
    for (const bool transpose : {false, true}) dequantize(draw, spec, transpose);
  }
}

template <>
void draw_cases<ops::QuantizeBoth>(CaseDraw& draw) {
  for (const QuantSpec& spec : every_quantizer()) {
    const DType source = draw.activation_type();
    quantize_both(draw, spec, source, draw.shape());
    quantize_both(draw, spec, DType::bf16, draw.whole_blocks());
  }
  for (const char* name : {"hadamard:2", "hadamard:16:drawn"}) {
    const QuantSpec spec = quantized_behind(name, numerics::kE4M3, {1, 128});
    const DType source = draw.activation_type();
    MatrixShape s = draw.shape();
    s.rows = draw_length(draw, spec.transform, s.rows);
    s.cols = draw_length(draw, spec.transform, s.cols);
    quantize_both(draw, spec, source, s);
  }
}

}  // namespace fp8lab
