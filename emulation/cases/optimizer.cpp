// Cases of the end of a training step.
#include <fmt/format.h>

#include <algorithm>
#include <span>

#include "emulation/cases/case_draw.hpp"
#include "emulation/cases/list.hpp"

namespace fp8lab {
namespace {

UpdateSpec draw_settings(CaseDraw& draw) {
  UpdateSpec spec;
  if (draw.one_in(2)) spec.clip_norm = draw.one_in(2) ? 0.0f : 1000.0f;
  if (draw.one_in(2)) spec.weight_decay = 0.0f;
  if (draw.one_in(2)) spec.epsilon = 1e-5f;
  return spec;
}

struct StateWords {
  const char* format;
  TileShape tile;
  ScaleSource source = ScaleSource::none;
  numerics::ScaleFormat scale = numerics::ScaleFormat::fp32;
  numerics::Rounding rounding = numerics::Rounding::nearest;
  bool expands = false;
};

constexpr ScaleSource kCurrent = ScaleSource::current;
constexpr StateWords kStates[] = {
    {"e4m3fn", {}, kCurrent},
    {"e4m3fn", {1, 128}, kCurrent, numerics::ScaleFormat::fp32, numerics::Rounding::nearest, true},
    {"e4m3fn", {}, kCurrent, numerics::ScaleFormat::fp32, numerics::Rounding::stochastic, true},
    {"e5m2", {}, kCurrent, numerics::ScaleFormat::pow2},
    {"e5m2", {1, 37}, kCurrent, numerics::ScaleFormat::bf16, numerics::Rounding::toward_zero},
    {"e5m6", {1, 128}, kCurrent, numerics::ScaleFormat::e4m3},
    {"fp16", {}, kCurrent, numerics::ScaleFormat::pow2},
    {"fp16", {}, ScaleSource::none},
    {"lns16g2048", {}, kCurrent, numerics::ScaleFormat::pow2},
    {"lns8", {1, 64}, kCurrent, numerics::ScaleFormat::fp32, numerics::Rounding::stochastic},
    {"lns10g32", {}, kCurrent, numerics::ScaleFormat::pow2},
    {"int8", {1, 1}, kCurrent, numerics::ScaleFormat::fp32, numerics::Rounding::ties_positive},
    {"e2m1", {1, 32}, kCurrent, numerics::ScaleFormat::e8m0},
    {"e3m4", {}, ScaleSource::static_scale},
    {"bf16", {}},
    {"fp32", {}},
};

QuantSpec spec_of(const StateWords& words) {
  QuantSpec spec;
  spec.format = *format_by_name(words.format);
  spec.tile = words.tile;
  spec.scale_source = words.source;
  spec.rounding = words.rounding;
  spec.scale.format = words.scale;
  spec.scale.rounding = numerics::ScaleRounding::enc_floor;
  if (words.scale == numerics::ScaleFormat::fp32) spec.scale = {};
  if (words.source == ScaleSource::static_scale) spec.static_scale = 0.0371f;
  if (words.expands) spec.transform.kind = RangeExpansion{};
  return spec;
}

/// Calls visit for each of kStates, with large shapes for some.
template <class Visit>
void for_each_state_case(CaseDraw& draw, const Visit& visit) {
  bool has_large = false;
  for (const StateWords& words : kStates) {
    const MatrixShape s = draw.shape();
    const bool is_large = s.rows * s.cols > 100000;
    if (is_large && has_large && !draw.one_in(5)) continue;
    has_large = is_large;
    visit(spec_of(words), s);
  }
}

HostTensor codes_of(const QuantSpec& spec, const MatrixShape& s, CaseDraw& draw) {
  if (!is_plain_state(spec)) {
    return flat(draw.bytes(s.rows, s.cols * state_code_bytes(spec)));
  }
  const DType type = spec.format == numerics::kBF16 ? DType::bf16 : DType::f32;
  return flat(draw.values(type, s.rows, s.cols, true));
}

/// Draws the numbers of the tiles; one element if there are none.
HostTensor numbers_of(const QuantSpec& spec, const MatrixShape& s, CaseDraw& draw) {
  const std::int64_t tiles = stored_tiles(spec, s.rows * s.cols);
  if (tiles == 0) return flat(draw.ordinary(DType::f32, 1, 1));
  return flat(draw.ordinary(DType::f32, spec.tile_numbers(), tiles));
}

UpdateSpec draw_rule(CaseDraw& draw, UpdateRule rule) {
  UpdateSpec spec = draw_settings(draw);
  spec.rule = rule;
  if (draw.one_in(2)) spec.rate_factor = 0.37f;
  if (draw.one_in(2)) spec.gradient_bound = 1.5f;
  if (rule == UpdateRule::muon) spec.update_factor = 5.3f;
  return spec;
}

constexpr UpdateRule kRules[] = {UpdateRule::adamw, UpdateRule::lion, UpdateRule::sgd,
                                 UpdateRule::madam, UpdateRule::muon};

}  // namespace

template <>
void draw_cases<ops::AccumulateSquareSum>(CaseDraw& draw) {
  // One tensor, and several of both types.
  for (const std::int64_t count : {std::int64_t{1}, draw.integer(2, 7)}) {
    for (const bool adversarial : {false, true}) {
      std::vector<HostTensor> tensors = {draw.step_scalars()};
      const DType type = draw.activation_type();
      const MatrixShape s = draw.shape();
      for (std::int64_t i = 0; i < count; ++i) {
        const MatrixShape own = i == 0 ? s : MatrixShape{draw.integer(1, 40), draw.integer(1, 400)};
        const DType stored = i == 0 ? type : draw.activation_type();
        tensors.push_back(flat(adversarial ? draw.values(stored, own.rows, own.cols, draw.one_in(2))
                                           : draw.ordinary(stored, own.rows, own.cols)));
      }
      const std::string what = fmt::format("{} {}, {} tensors", name_of(type), describe(s), count);
      draw.add("accumulate_square_sum", what, std::move(tensors), [](Backend& b, const Views& t) {
        b.run(ops::AccumulateSquareSum{std::span(t).subspan(1), t[0]});
      });
    }
  }
}

template <>
void draw_cases<ops::BeginUpdate>(CaseDraw& draw) {
  for (const bool first_step : {false, true}) {
    const UpdateSpec spec = first_step ? draw_settings(draw) : UpdateSpec{};
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
      const UpdateSpec spec = plain ? UpdateSpec{} : draw_settings(draw);
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
            b.run(ops::AdamW{.spec = spec,
                             .scalars = t[0],
                             .decay_mask = decay_mask,
                             .tensors = {.master = t[1],
                                         .working = copy,
                                         .gradient = t[3],
                                         .first_moment = t[4],
                                         .second_moment = t[5]}});
          });
    }
  }
}

template <>
void draw_cases<ops::StoreState>(CaseDraw& draw) {
  for_each_state_case(draw, [&](const QuantSpec& spec, const MatrixShape& s) {
    const std::int64_t n = s.rows * s.cols;
    HostTensor source = flat(draw.values(DType::f32, 1, n, draw.one_in(4)));
    if (draw.one_in(2)) source = magnitudes(std::move(source));
    if (draw.one_in(8)) source = zeroed(std::move(source));
    RandomKey key;
    key.seed = draw.word();
    key.step = draw.word();
    key.tensor = draw.word() % 1000;
    key.orientation = 3;
    const bool has_numbers = stored_tiles(spec, n) > 0;
    HostTensor numbers = numbers_of(spec, s, draw);
    if (has_numbers) numbers = updated(std::move(numbers));
    draw.add("store_state " + state_label(spec), DType::f32, s,
             {std::move(source), updated(codes_of(spec, s, draw)), std::move(numbers)},
             [spec, key, has_numbers](Backend& b, const Views& t) {
               b.run(ops::StoreState{t[0], key, {spec, t[1], has_numbers ? t[2] : TensorView{}}});
             });
  });
}

template <>
void draw_cases<ops::LoadState>(CaseDraw& draw) {
  for_each_state_case(draw, [&](const QuantSpec& spec, const MatrixShape& s) {
    const std::int64_t n = s.rows * s.cols;
    const bool has_numbers = stored_tiles(spec, n) > 0;
    HostTensor codes = codes_of(spec, s, draw), numbers = numbers_of(spec, s, draw);
    // Like cleared memory.
    if (draw.one_in(8)) {
      codes = zeroed(std::move(codes));
      numbers = zeroed(std::move(numbers));
    }
    draw.add("load_state " + state_label(spec), DType::f32, s,
             {std::move(codes), std::move(numbers), flat(draw.output(DType::f32, 1, n))},
             [spec, has_numbers](Backend& b, const Views& t) {
               b.run(ops::LoadState{{spec, t[0], has_numbers ? t[1] : TensorView{}}, t[2]});
             });
  });
}

template <>
void draw_cases<ops::AdvanceMoments>(CaseDraw& draw) {
  for (const UpdateRule rule : kRules) {
    const MatrixShape s = draw.shape();
    const UpdateSpec spec = draw_rule(draw, rule);
    const DType gradient = draw.activation_type();
    HostTensor first = flat(draw.ordinary(DType::f32, s.rows, s.cols));
    HostTensor second = magnitudes(flat(draw.ordinary(DType::f32, s.rows, s.cols)));
    if (spec.has_first_moment()) first = updated(std::move(first));
    if (spec.has_second_moment()) second = updated(std::move(second));
    HostTensor scalars = draw.step_scalars();
    scalars.output = false;
    draw.add(fmt::format("advance_moments {}", name_of(rule)), gradient, s,
             {std::move(scalars), flat(draw.values(gradient, s.rows, s.cols, draw.one_in(4))),
              std::move(first), std::move(second)},
             [spec](Backend& b, const Views& t) {
               const TensorView none;
               b.run(ops::AdvanceMoments{.spec = spec,
                                         .scalars = t[0],
                                         .gradient = t[1],
                                         .first_moment = spec.has_first_moment() ? t[2] : none,
                                         .second_moment = spec.has_second_moment() ? t[3] : none});
             });
  }
}

template <>
void draw_cases<ops::Orthogonalize>(CaseDraw& draw) {
  for (const bool is_tall : {false, true}) {
    // The largest shapes of other operations take too many products.
    const MatrixShape drawn = draw.shape();
    const bool is_large = drawn.rows > 100;
    const MatrixShape s =
        (is_large ? MatrixShape{draw.integer(100, 300), draw.integer(20, 40) * 16} : drawn)
            .transposed_if(is_tall);
    const std::int64_t small = std::min(s.rows, s.cols);
    UpdateSpec spec;
    spec.rule = UpdateRule::muon;
    if (draw.one_in(2)) spec.momentum = 0.9f;
    const DType gradient = draw.activation_type();
    HostTensor slope = draw.one_in(2) ? draw.ordinary(gradient, s.rows, s.cols)
                                      : draw.values(gradient, s.rows, s.cols, draw.one_in(4));
    HostTensor momentum = draw.ordinary(DType::f32, s.rows, s.cols);
    if (draw.one_in(8)) {  // the norm of nothing
      slope = zeroed(std::move(slope));
      momentum = zeroed(std::move(momentum));
    }
    HostTensor scalars = draw.step_scalars();
    scalars.output = false;
    draw.add("orthogonalize", gradient, s,
             {std::move(scalars), flat(std::move(slope)), flat(std::move(momentum)),
              flat(draw.output(DType::f32, s.rows, s.cols)),
              flat(draw.output(DType::bf16, s.rows, s.cols)),
              flat(draw.output(DType::bf16, small, small)),
              flat(draw.output(DType::f32, 1, StepScalar::kCount))},
             [spec](Backend& b, const Views& t) {
               b.run(ops::Orthogonalize{spec, t[0], t[1], t[2], t[3], t[4], t[5], t[6]});
             });
  }
}

template <>
void draw_cases<ops::UpdateWeights>(CaseDraw& draw) {
  for (const UpdateRule rule : kRules) {
    for (const DType master : kActivationTypes) {
      const MatrixShape s = draw.shape();
      const UpdateSpec spec = draw_rule(draw, rule);
      const DType gradient = draw.activation_type();
      const bool working = master == DType::f32 && draw.one_in(2);
      const float decay_mask = draw.one_in(2) ? 1.0f : 0.0f;
      HostTensor second = magnitudes(flat(draw.ordinary(DType::f32, s.rows, s.cols)));
      if (draw.one_in(4)) second = zeroed(std::move(second));
      HostTensor scalars = draw.step_scalars(),
                 copy = flat(draw.output(DType::bf16, s.rows, s.cols));
      scalars.output = false;
      copy.output = working;
      draw.add(
          fmt::format("update_weights {} {}", name_of(rule), name_of(master)), gradient, s,
          {std::move(scalars), flat(draw.output(master, s.rows, s.cols)), std::move(copy),
           flat(draw.values(gradient, s.rows, s.cols, draw.one_in(4))),
           flat(draw.ordinary(DType::f32, s.rows, s.cols)), std::move(second),
           magnitudes(flat(draw.ordinary(DType::f32, 1, 1)))},
          [spec, decay_mask, working](Backend& b, const Views& t) {
            const TensorView none;
            b.run(ops::UpdateWeights{.spec = spec,
                                     .scalars = t[0],
                                     .decay_mask = decay_mask,
                                     .master = t[1],
                                     .working = working ? t[2] : none,
                                     .gradient = t[3],
                                     .first_moment = spec.has_first_moment() ? t[4] : none,
                                     .second_moment = spec.has_second_moment() ? t[5] : none,
                                     .weight_bound = spec.rule == UpdateRule::madam ? t[6] : none});
          });
    }
  }
}

}  // namespace fp8lab
