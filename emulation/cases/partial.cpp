// Cases of the operations that split the error of a gradient by its sources.
#include <fmt/format.h>

#include <cstring>

#include "emulation/cases/list.hpp"
#include "emulation/cases/operand_draw.hpp"

namespace fp8lab {
namespace {

/// Draws the values of operands that a quantization has made; which errors are kept is drawn.
void draw_partial_values(CaseDraw& draw, const QuantSpec& spec, bool transpose) {
  MatrixShape of_operand = draw.shape();
  of_operand.cols = draw_length(draw, spec.transform, of_operand.cols);
  if (spec.transform.is_left()) {
    of_operand.rows = draw_length(draw, spec.transform, of_operand.rows);
  }
  const MatrixShape s = of_operand.transposed_if(transpose);
  const std::int64_t rows = of_operand.rows, k = of_operand.cols;
  const DType dtype = draw.activation_type();
  const ElementErrors kept{draw.one_in(2), draw.one_in(2), draw.one_in(2)};
  const bool has_values = !draw.one_in(4), wild = draw.one_in(3), right = draw.one_in(2);
  const RandomKey key{7, draw.word(), 3, transpose ? 1u : 0u, draw.word() % 100};
  draw.add(
      fmt::format("partial_values {}", label(spec)),
      fmt::format("{} {}{} keeps {}{}{}", name_of(dtype), describe(s), orientation_name(transpose),
                  kept.cast ? "c" : "", kept.underflow ? "u" : "", kept.saturation ? "s" : ""),
      {draw.values(dtype, s.rows, s.cols, wild), codes_of(draw, spec, rows, k),
       scales_of(draw, spec, rows, k), state_of(draw, spec),
       magnitudes(flat(draw.ordinary(DType::f32, 1, k))), bounds_of(draw),
       draw.output(DType::f32, has_values ? rows : 1, has_values ? k : 1),
       flat(draw.output(DType::i32, 1, ElementErrorKind::kCount))},
      [=](Backend& b, const Views& t) {
        QuantizedOperand operand = operand_at(spec, rows, k, t, 1);
        operand.key = key;
        operand.is_right = right;
        if (spec.transform.is<Smoothing>()) operand.channel_factors = t[4];
        if (spec.transform.is<Clamp>()) operand.clamp_bounds = t[5];
        b.run(ops::Quantize{.source = t[0],
                            .transpose = transpose,
                            .state = state_for(spec, t[3]),
                            .operand = operand});
        b.run(ops::PartialValues{.source = t[0],
                                 .transpose = transpose,
                                 .operand = operand,
                                 .kept = kept,
                                 .values = has_values ? t[6] : TensorView{},
                                 .found = t[7]});
      });
}

/// Draws a tensor that is read along its other extent without a copy, as if it were an operand.
void draw_values_in_rows(CaseDraw& draw) {
  QuantSpec spec;
  spec.format = numerics::kBF16;
  spec.scale_source = ScaleSource::none;
  const MatrixShape s = draw.shape();
  draw.add("partial_values of contiguous rows", describe(s),
           {draw.values(DType::f32, s.cols, s.rows, draw.one_in(3)),
            draw.values(DType::bf16, s.cols, s.rows, draw.one_in(3)),
            draw.output(DType::f32, s.rows, s.cols),
            flat(draw.output(DType::i32, 1, ElementErrorKind::kCount))},
           [=](Backend& b, const Views& t) {
             QuantizedOperand operand = QuantizedOperand::without_memory(spec, s.rows, s.cols);
             operand.order = StorageOrder::rows_contiguous;
             operand.codes = t[1];
             b.run(ops::PartialValues{.source = t[0],
                                      .transpose = true,
                                      .operand = operand,
                                      .kept = {false, true, false},
                                      .values = t[2],
                                      .found = t[3]});
           });
}

/// Draws f64 values: f32 ones, and a last bit that f32 has not.
HostTensor draw_f64(CaseDraw& draw, std::int64_t rows, std::int64_t cols, bool wild) {
  const HostTensor drawn = draw.values(DType::f32, rows, cols, wild);
  HostTensor tensor{DType::f64, rows, cols, {}, false, true};
  tensor.data.resize(2 * drawn.data.size());
  for (std::int64_t i = 0; i < rows * cols; ++i) {
    float value;
    std::memcpy(&value, drawn.data.data() + 4 * i, sizeof value);
    const double wide = static_cast<double>(value) * (1.0 + 0x1p-40);
    std::memcpy(tensor.data.data() + 8 * i, &wide, sizeof wide);
  }
  return tensor;
}

}  // namespace

template <>
void draw_cases<ops::PartialValues>(CaseDraw& draw) {
  for (const QuantSpec& spec : every_quantizer()) draw_partial_values(draw, spec, draw.one_in(2));
  for (const char* transform : {"hadamard:32", "hadamard:16:drawn", "left:hadamard:12:drawn",
                                "smooth:0.5", "clamp:0.99:compensated"}) {
    for (const bool transpose : {false, true}) {
      draw_partial_values(draw, quantized_behind(transform, numerics::kE2M1, {1, 16}), transpose);
    }
  }
  draw_values_in_rows(draw);
}

template <>
void draw_cases<ops::JoinProducts>(CaseDraw& draw) {
  for (const DType dtype : kActivationTypes) {
    for (const bool has_exact : {true, false}) {
      const MatrixShape s = draw.shape();
      const bool wild = draw.one_in(2), has_bias = draw.one_in(2), accumulate = draw.one_in(2);
      const auto product = [&] { return draw.values(DType::f32, s.rows, s.cols, wild); };
      HostTensor partial = product(), emulated = product(), exact = product();
      draw.add(fmt::format("join_products{}", has_exact ? "" : " of one"), dtype, s,
               {std::move(partial), std::move(emulated), std::move(exact),
                flat(draw.values(draw.activation_type(), 1, s.cols, wild)),
                updated(draw.values(dtype, s.rows, s.cols, wild))},
               [=](Backend& b, const Views& t) {
                 b.run(ops::JoinProducts{.partial = t[0],
                                         .emulated = has_exact ? t[1] : TensorView{},
                                         .exact = has_exact ? t[2] : TensorView{},
                                         .bias = has_bias ? t[3] : TensorView{},
                                         .accumulate = accumulate,
                                         .d = t[4]});
               });
    }
  }
}

template <>
void draw_cases<ops::SquareDistance>(CaseDraw& draw) {
  for (const DType dtype : kActivationTypes) {
    const MatrixShape s = draw.shape();
    const bool wild = draw.one_in(3);
    HostTensor x = flat(draw.values(dtype, s.rows, s.cols, wild));
    draw.add("square_distance", dtype, s,
             {std::move(x), draw_f64(draw, s.rows, s.cols, wild),
              flat(draw.output(DType::f64, 1, ops::SquareDistance::chunks(s.rows * s.cols)))},
             [](Backend& b, const Views& t) {
               b.run(ops::SquareDistance{t[0], t[1], t[2]});
             });
  }
}

}  // namespace fp8lab
