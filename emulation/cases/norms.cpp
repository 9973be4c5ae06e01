// Cases of norms and their gradients.
#include <string>
#include <utility>

#include "emulation/cases/case_draw.hpp"
#include "emulation/cases/list.hpp"

namespace fp8lab {
namespace {

/// Heads in columns of a wider matrix, like those of queries and keys.
struct HeadsWithin {
  std::int64_t rows, heads, dim, first;

  HeadsWithin(CaseDraw& draw, std::int64_t rows_drawn)
      : rows(rows_drawn),
        heads(draw.integer(2, 5)),
        dim(2 * draw.integer(1, 64)),
        first(dim * draw.integer(0, 2)) {}

  MatrixShape shape() const { return {rows, heads * dim}; }
  HostTensor draw_wide(CaseDraw& draw, DType dtype, bool wild) const {
    return draw.values(dtype, rows, first + heads * dim, wild);
  }
  TensorView of(const TensorView& wide) const { return wide.columns(first, heads * dim); }
};

/// Draws a shape of the residual stream: any shape, whole aligned rows, or from the second round on
/// rows as long as those of models.
MatrixShape residual_shape(CaseDraw& draw) {
  if (draw.round() > 0 && draw.one_in(3)) {
    return {draw.integer(1, 140), 128 * draw.integer(8, 32)};
  }
  return draw.one_in(3) ? draw.whole_blocks() : draw.shape();
}

/// For messages; nothing reads the gradient of the norm itself.
std::string describe_sum(DType dtype, const MatrixShape& s) {
  return std::string(name_of(dtype)) + " " + describe(s) + ", sum alone";
}

}  // namespace

template <>
void draw_cases<ops::RmsNormForward>(CaseDraw& draw) {
  for (const DType dtype : kActivationTypes) {
    const MatrixShape s = draw.shape();
    const bool wild = draw.one_in(2);
    draw.add("rmsnorm_forward", dtype, s,
             {draw.values(dtype, s.rows, s.cols, wild), flat(draw.ordinary(dtype, 1, s.cols)),
              draw.output(dtype, s.rows, s.cols), flat(draw.output(DType::f32, 1, s.rows))},
             [](Backend& b, const Views& t) {
               b.run(ops::RmsNormForward{
                   .x = t[0], .weight = t[1], .epsilon = 1e-6f, .y = t[2], .rstd = t[3]});
             });
    const HeadsWithin heads(draw, s.rows);
    draw.add("rmsnorm_forward", dtype, heads.shape(),
             {heads.draw_wide(draw, dtype, wild), flat(draw.ordinary(dtype, 1, heads.dim)),
              draw.output(dtype, s.rows, heads.heads * heads.dim),
              flat(draw.output(DType::f32, 1, s.rows * heads.heads))},
             [heads](Backend& b, const Views& t) {
               b.run(ops::RmsNormForward{
                   .x = heads.of(t[0]), .weight = t[1], .epsilon = 1e-6f, .y = t[2], .rstd = t[3]});
             });
  }
  // Weights of zero-centered norms stay in FP32 beside activations in BF16.
  const MatrixShape s = draw.one_in(2) ? draw.whole_blocks() : draw.shape();
  draw.add(
      "rmsnorm_forward", DType::bf16, s,
      {draw.values(DType::bf16, s.rows, s.cols, false), flat(draw.ordinary(DType::f32, 1, s.cols)),
       draw.output(DType::bf16, s.rows, s.cols), flat(draw.output(DType::f32, 1, s.rows))},
      [](Backend& b, const Views& t) {
        b.run(ops::RmsNormForward{
            .x = t[0], .weight = t[1], .epsilon = 1e-6f, .y = t[2], .rstd = t[3]});
      });
}

template <>
void draw_cases<ops::RmsNormBackward>(CaseDraw& draw) {
  for (const DType dtype : kActivationTypes) {
    const MatrixShape s = draw.shape();
    const bool wild = draw.one_in(2);
    const auto input = [&] { return draw.values(dtype, s.rows, s.cols, wild); };
    draw.add(
        "rmsnorm_backward", dtype, s,
        {input(), input(), flat(draw.ordinary(dtype, 1, s.cols)),
         flat(draw.ordinary(DType::f32, 1, s.rows)), draw.output(dtype, s.rows, s.cols),
         flat(draw.output(DType::f32, 1, s.cols))},
        [](Backend& b, const Views& t) {
          b.run(ops::RmsNormBackward{
              .dy = t[0], .x = t[1], .weight = t[2], .rstd = t[3], .dx = t[4], .dweight = t[5]});
        });
    const HeadsWithin heads(draw, s.rows);
    draw.add("rmsnorm_backward", dtype, heads.shape(),
             {updated(heads.draw_wide(draw, dtype, wild)), heads.draw_wide(draw, dtype, wild),
              flat(draw.ordinary(dtype, 1, heads.dim)),
              flat(draw.ordinary(DType::f32, 1, s.rows * heads.heads)),
              flat(draw.output(DType::f32, 1, heads.dim))},
             [heads](Backend& b, const Views& t) {
               const TensorView dy = heads.of(t[0]);
               b.run(ops::RmsNormBackward{.dy = dy,
                                          .x = heads.of(t[1]),
                                          .weight = t[2],
                                          .rstd = t[3],
                                          .dx = dy,
                                          .dweight = t[4]});
             });
  }
  // Weights of zero-centered norms, as above.
  const MatrixShape s = draw.one_in(2) ? draw.whole_blocks() : draw.shape();
  const auto input = [&] { return draw.values(DType::bf16, s.rows, s.cols, false); };
  draw.add("rmsnorm_backward", DType::bf16, s,
           {input(), input(), flat(draw.ordinary(DType::f32, 1, s.cols)),
            flat(draw.ordinary(DType::f32, 1, s.rows)), draw.output(DType::bf16, s.rows, s.cols),
            flat(draw.output(DType::f32, 1, s.cols))},
           [](Backend& b, const Views& t) {
             b.run(ops::RmsNormBackward{
                 .dy = t[0], .x = t[1], .weight = t[2], .rstd = t[3], .dx = t[4], .dweight = t[5]});
           });
}

template <>
void draw_cases<ops::LayerNormForward>(CaseDraw& draw) {
  for (const DType dtype : kActivationTypes) {
    const MatrixShape s = draw.shape();
    const auto input = [&] { return draw.values(dtype, s.rows, s.cols, draw.one_in(2)); };
    const auto parameter = [&] { return flat(draw.ordinary(dtype, 1, s.cols)); };
    const auto moment = [&] { return flat(draw.output(DType::f32, 1, s.rows)); };
    draw.add(
        "layernorm_forward", dtype, s,
        {input(), parameter(), parameter(), draw.output(dtype, s.rows, s.cols), moment(), moment()},
        [](Backend& b, const Views& t) {
          b.run(ops::LayerNormForward{.x = t[0],
                                      .weight = t[1],
                                      .bias = t[2],
                                      .epsilon = 1e-5f,
                                      .y = t[3],
                                      .mean = t[4],
                                      .rstd = t[5]});
        });
    draw.add("layernorm_forward", dtype, s,
             {updated(input()), parameter(), parameter(), moment(), moment()},
             [](Backend& b, const Views& t) {
               b.run(ops::LayerNormForward{.x = t[0],
                                           .weight = t[1],
                                           .bias = t[2],
                                           .epsilon = 1e-5f,
                                           .y = t[0],
                                           .mean = t[3],
                                           .rstd = t[4]});
             });
  }
}

template <>
void draw_cases<ops::LayerNormBackward>(CaseDraw& draw) {
  for (const DType dtype : kActivationTypes) {
    const MatrixShape s = draw.shape();
    const bool wild = draw.one_in(2);
    const auto input = [&] { return draw.values(dtype, s.rows, s.cols, wild); };
    const auto weight = [&] { return flat(draw.ordinary(dtype, 1, s.cols)); };
    const auto moment = [&] { return flat(draw.ordinary(DType::f32, 1, s.rows)); };
    const auto sum = [&] { return flat(draw.output(DType::f32, 1, s.cols)); };
    draw.add("layernorm_backward", dtype, s,
             {input(), input(), weight(), moment(), moment(), draw.output(dtype, s.rows, s.cols),
              sum(), sum()},
             [](Backend& b, const Views& t) {
               b.run(ops::LayerNormBackward{.dy = t[0],
                                            .x = t[1],
                                            .weight = t[2],
                                            .mean = t[3],
                                            .rstd = t[4],
                                            .dx = t[5],
                                            .dweight = t[6],
                                            .dbias = t[7]});
             });
    draw.add("layernorm_backward", dtype, s,
             {updated(input()), input(), weight(), moment(), moment(), sum(), sum()},
             [](Backend& b, const Views& t) {
               b.run(ops::LayerNormBackward{.dy = t[0],
                                            .x = t[1],
                                            .weight = t[2],
                                            .mean = t[3],
                                            .rstd = t[4],
                                            .dx = t[0],
                                            .dweight = t[5],
                                            .dbias = t[6]});
             });
  }
}

template <>
void draw_cases<ops::AddRmsNormForward>(CaseDraw& draw) {
  for (const DType dtype : kActivationTypes) {
    const MatrixShape s = residual_shape(draw);
    const bool wild = draw.one_in(2);
    const auto input = [&] { return draw.values(dtype, s.rows, s.cols, wild); };
    const auto output = [&] { return draw.output(dtype, s.rows, s.cols); };
    const auto weight = [&] { return flat(draw.ordinary(dtype, 1, s.cols)); };
    const auto moment = [&] { return flat(draw.output(DType::f32, 1, s.rows)); };
    draw.add("add_rmsnorm_forward", dtype, s,
             {input(), input(), weight(), output(), output(), moment()},
             [](Backend& b, const Views& t) {
               b.run(ops::AddRmsNormForward{
                   .a = t[0],
                   .b = t[1],
                   .norm = {.x = t[3], .weight = t[2], .epsilon = 1e-6f, .y = t[4], .rstd = t[5]}});
             });
    // The sum overwrites one of the summands.
    for (std::size_t in_place = 0; in_place < 2; ++in_place) {
      std::vector<HostTensor> tensors = {input(), input(), weight(), output(), moment()};
      tensors[in_place].output = true;
      draw.add(
          "add_rmsnorm_forward", dtype, s, std::move(tensors),
          [in_place](Backend& b, const Views& t) {
            b.run(ops::AddRmsNormForward{
                .a = t[0],
                .b = t[1],
                .norm = {
                    .x = t[in_place], .weight = t[2], .epsilon = 1e-6f, .y = t[3], .rstd = t[4]}});
          });
    }
    const HeadsWithin heads(draw, s.rows);
    const std::int64_t width = heads.shape().cols;
    draw.add(
        "add_rmsnorm_forward", dtype, heads.shape(),
        {heads.draw_wide(draw, dtype, wild), heads.draw_wide(draw, dtype, wild),
         flat(draw.ordinary(dtype, 1, heads.dim)), draw.output(dtype, s.rows, width),
         draw.output(dtype, s.rows, width), flat(draw.output(DType::f32, 1, s.rows * heads.heads))},
        [heads](Backend& b, const Views& t) {
          b.run(ops::AddRmsNormForward{
              .a = heads.of(t[0]),
              .b = heads.of(t[1]),
              .norm = {.x = t[3], .weight = t[2], .epsilon = 1e-6f, .y = t[4], .rstd = t[5]}});
        });
  }
}

template <>
void draw_cases<ops::RmsNormBackwardAdd>(CaseDraw& draw) {
  for (const DType dtype : kActivationTypes) {
    const MatrixShape s = residual_shape(draw);
    const bool wild = draw.one_in(2);
    const auto input = [&] { return draw.values(dtype, s.rows, s.cols, wild); };
    const auto weight = [&] { return flat(draw.ordinary(dtype, 1, s.cols)); };
    const auto moment = [&] { return flat(draw.ordinary(DType::f32, 1, s.rows)); };
    const auto sum = [&] { return flat(draw.output(DType::f32, 1, s.cols)); };
    draw.add("rmsnorm_backward_add", describe_sum(dtype, s),
             {updated(input()), input(), input(), weight(), moment(),
              draw.output(dtype, s.rows, s.cols), sum()},
             [](Backend& b, const Views& t) {
               b.run(ops::RmsNormBackwardAdd{.norm = {.dy = t[1],
                                                      .x = t[2],
                                                      .weight = t[3],
                                                      .rstd = t[4],
                                                      .dx = t[5],
                                                      .dweight = t[6]},
                                             .gradient = t[0]});
               b.fill_zero(t[5]);  // dx is unspecified: clear it for the comparison
             });
    draw.add("rmsnorm_backward_add", describe_sum(dtype, s),
             {updated(input()), updated(input()), input(), weight(), moment(), sum()},
             [](Backend& b, const Views& t) {
               b.run(ops::RmsNormBackwardAdd{.norm = {.dy = t[1],
                                                      .x = t[2],
                                                      .weight = t[3],
                                                      .rstd = t[4],
                                                      .dx = t[1],
                                                      .dweight = t[5]},
                                             .gradient = t[0]});
               b.fill_zero(t[1]);
             });
  }
}

template <>
void draw_cases<ops::AddLayerNormForward>(CaseDraw& draw) {
  for (const DType dtype : kActivationTypes) {
    const MatrixShape s = residual_shape(draw);
    const bool wild = draw.one_in(2);
    const auto input = [&] { return draw.values(dtype, s.rows, s.cols, wild); };
    const auto parameter = [&] { return flat(draw.ordinary(dtype, 1, s.cols)); };
    const auto moment = [&] { return flat(draw.output(DType::f32, 1, s.rows)); };
    draw.add("add_layernorm_forward", dtype, s,
             {updated(input()), input(), parameter(), parameter(),
              draw.output(dtype, s.rows, s.cols), moment(), moment()},
             [](Backend& b, const Views& t) {
               b.run(ops::AddLayerNormForward{.a = t[0],
                                              .b = t[1],
                                              .norm = {.x = t[0],
                                                       .weight = t[2],
                                                       .bias = t[3],
                                                       .epsilon = 1e-5f,
                                                       .y = t[4],
                                                       .mean = t[5],
                                                       .rstd = t[6]}});
             });
  }
}

template <>
void draw_cases<ops::LayerNormBackwardAdd>(CaseDraw& draw) {
  for (const DType dtype : kActivationTypes) {
    const MatrixShape s = residual_shape(draw);
    const bool wild = draw.one_in(2);
    const auto input = [&] { return draw.values(dtype, s.rows, s.cols, wild); };
    const auto moment = [&] { return flat(draw.ordinary(DType::f32, 1, s.rows)); };
    const auto sum = [&] { return flat(draw.output(DType::f32, 1, s.cols)); };
    draw.add("layernorm_backward_add", describe_sum(dtype, s),
             {updated(input()), updated(input()), input(), flat(draw.ordinary(dtype, 1, s.cols)),
              moment(), moment(), sum(), sum()},
             [](Backend& b, const Views& t) {
               b.run(ops::LayerNormBackwardAdd{.norm = {.dy = t[1],
                                                        .x = t[2],
                                                        .weight = t[3],
                                                        .mean = t[4],
                                                        .rstd = t[5],
                                                        .dx = t[1],
                                                        .dweight = t[6],
                                                        .dbias = t[7]},
                                               .gradient = t[0]});
               b.fill_zero(t[1]);  // dx is unspecified: clear it for the comparison
             });
  }
}

}  // namespace fp8lab
