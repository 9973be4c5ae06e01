// Cases of the end of a training step.
#include <fmt/format.h>

#include "emulation/cases/case_draw.hpp"
#include "emulation/cases/list.hpp"

namespace fp8lab {
namespace {

AdamWSpec draw_settings(CaseDraw& draw) {
  AdamWSpec spec;
  if (draw.one_in(2)) spec.clip_norm = draw.one_in(2) ? 0.0f : 1000.0f;
  if (draw.one_in(2)) spec.weight_decay = 0.0f;
  if (draw.one_in(2)) spec.epsilon = 1e-5f;
  return spec;
}

}  // namespace

template <>
void draw_cases<ops::AccumulateSquareSum>(CaseDraw& draw) {
  for (const DType type : kActivationTypes) {
    for (const bool adversarial : {false, true}) {
      const MatrixShape s = draw.shape();
      HostTensor gradient = adversarial ? draw.values(type, s.rows, s.cols, draw.one_in(2))
                                        : draw.ordinary(type, s.rows, s.cols);
      draw.add("accumulate_square_sum", type, s, {flat(std::move(gradient)), draw.step_scalars()},
               [](Backend& b, const Views& t) {
                 b.run(ops::AccumulateSquareSum{t[0], t[1]});
               });
    }
  }
}

template <>
void draw_cases<ops::BeginUpdate>(CaseDraw& draw) {
  for (const bool first_step : {false, true}) {
    const AdamWSpec spec = first_step ? draw_settings(draw) : AdamWSpec{};
    HostTensor scalars = draw.step_scalars();
    auto* value = reinterpret_cast<float*>(scalars.data.data());
    if (first_step) value[StepScalar::kBeta1Power] = value[StepScalar::kBeta2Power] = 0.0f;
    draw.add("begin_update", DType::f32, MatrixShape{1, StepScalar::kCount}, {std::move(scalars)},
             [spec](Backend& b, const Views& t) {
               b.run(ops::BeginUpdate{spec, t[0]});
             });
  }
}

template <>
void draw_cases<ops::AdamW>(CaseDraw& draw) {
  for (const DType moments : kActivationTypes) {
    for (const bool plain : {true, false}) {
      const MatrixShape s = draw.shape();
      const AdamWSpec spec = plain ? AdamWSpec{} : draw_settings(draw);
      const float decay_mask = plain || draw.one_in(2) ? 1.0f : 0.0f;
      const DType master = draw.activation_type(), gradient = draw.activation_type();
      const bool working = master == DType::f32 && (plain || draw.one_in(2));
      const auto output = [&](DType dtype) { return flat(draw.output(dtype, s.rows, s.cols)); };
      HostTensor second = output(moments);
      if (!plain) second = magnitudes(std::move(second));
      draw.add(
          fmt::format("adamw {} {}", name_of(master), name_of(gradient)), moments, s,
          {draw.step_scalars(), output(master), output(DType::bf16),
           flat(draw.values(gradient, s.rows, s.cols, false)), output(moments), std::move(second)},
          [spec, decay_mask, working](Backend& b, const Views& t) {
            const TensorView copy = working ? t[2] : TensorView{};
            b.run(ops::AdamW{spec, t[0], decay_mask, {t[1], copy, t[3], t[4], t[5]}});
          });
    }
  }
}

}  // namespace fp8lab
