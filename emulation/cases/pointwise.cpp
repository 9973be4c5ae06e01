// Cases of elementwise operations and of column sums.
#include "emulation/cases/case_draw.hpp"
#include "emulation/cases/list.hpp"

namespace fp8lab {

template <>
void draw_cases<ops::Add>(CaseDraw& draw) {
  for (const DType dtype : kActivationTypes) {
    const MatrixShape s = draw.shape();
    const bool wild = draw.one_in(2);
    const auto input = [&] { return draw.values(dtype, s.rows, s.cols, wild); };
    draw.add(
        "add", dtype, s, {input(), input(), draw.output(dtype, s.rows, s.cols)},
        [](Backend& b, const Views& t) { b.run(ops::Add{.a = t[0], .b = t[1], .sum = t[2]}); });
    draw.add("add", dtype, s, {updated(input()), input()}, [](Backend& b, const Views& t) {
      b.run(ops::Add{.a = t[0], .b = t[1], .sum = t[0]});
    });
  }
}

template <>
void draw_cases<ops::WeightedSum>(CaseDraw& draw) {
  for (const DType dtype : kActivationTypes) {
    const MatrixShape s = draw.shape();
    const bool wild = draw.one_in(2);
    const auto input = [&] { return draw.values(dtype, s.rows, s.cols, wild); };
    const float x = draw.one_in(4) ? 1.0f : -0.77459667f, y = draw.one_in(4) ? 0.0f : 0.63245553f;
    draw.add(
        "weighted_sum", dtype, s, {input(), input(), draw.output(dtype, s.rows, s.cols)},
        [x, y](Backend& b, const Views& t) {
          b.run(ops::WeightedSum{.a = t[0], .factor_a = x, .b = t[1], .factor_b = y, .sum = t[2]});
        });
    draw.add(
        "weighted_sum", dtype, s, {input(), updated(input())}, [x, y](Backend& b, const Views& t) {
          b.run(ops::WeightedSum{.a = t[0], .factor_a = x, .b = t[1], .factor_b = y, .sum = t[1]});
        });
    draw.add("weighted_sum of one", dtype, s, {updated(input())}, [x](Backend& b, const Views& t) {
      b.run(ops::WeightedSum{.a = t[0], .factor_a = x, .sum = t[0]});
    });
  }
}

template <>
void draw_cases<ops::Copy>(CaseDraw& draw) {
  const auto copy = [&](HostTensor source, DType to) {
    const MatrixShape s{source.rows, source.cols};
    const DType from = source.dtype;
    draw.add("copy", from, s, {std::move(source), draw.output(to, s.rows, s.cols)},
             [](Backend& b, const Views& t) {
               b.run(ops::Copy{t[0], t[1]});
             });
  };
  for (const DType from : kActivationTypes) {
    for (const DType to : kActivationTypes) {
      const MatrixShape s = draw.shape();
      copy(draw.values(from, s.rows, s.cols, draw.one_in(2)), to);
    }
  }
  const MatrixShape s = draw.shape();
  copy(draw.bytes(s.rows, s.cols), DType::u8);
}

template <>
void draw_cases<ops::RowCosines>(CaseDraw& draw) {
  for (const DType dtype : kActivationTypes) {
    const MatrixShape s = draw.shape();
    const bool wild = draw.one_in(2);
    const auto input = [&] { return draw.values(dtype, s.rows, s.cols, wild); };
    draw.add("row_cosines", dtype, s, {input(), input(), flat(draw.output(DType::f32, 1, s.rows))},
             [](Backend& b, const Views& t) {
               b.run(ops::RowCosines{.a = t[0], .b = t[1], .cosines = t[2]});
             });
  }
}

template <>
void draw_cases<ops::GatedForward>(CaseDraw& draw) {
  for (const Gate gate : kGates) {
    for (const DType dtype : kActivationTypes) {
      const MatrixShape s = draw.shape();
      draw.add("gated_forward", dtype, s,
               {draw.values(dtype, s.rows, 2 * s.cols, draw.one_in(2)),
                draw.output(dtype, s.rows, s.cols)},
               [gate](Backend& b, const Views& t) {
                 b.run(ops::GatedForward{.gate = gate, .gate_up = t[0], .out = t[1]});
               });
    }
  }
}

template <>
void draw_cases<ops::GatedBackward>(CaseDraw& draw) {
  for (const Gate gate : kGates) {
    for (const DType dtype : kActivationTypes) {
      const MatrixShape s = draw.shape();
      const bool wild = draw.one_in(2);
      draw.add("gated_backward", dtype, s,
               {draw.values(dtype, s.rows, 2 * s.cols, wild),
                draw.values(dtype, s.rows, s.cols, wild), draw.output(dtype, s.rows, 2 * s.cols)},
               [gate](Backend& b, const Views& t) {
                 b.run(ops::GatedBackward{
                     .gate = gate, .gate_up = t[0], .dout = t[1], .dgate_up = t[2]});
               });
      draw.add("gated_backward", dtype, s,
               {updated(draw.values(dtype, s.rows, 2 * s.cols, wild)),
                draw.values(dtype, s.rows, s.cols, wild)},
               [gate](Backend& b, const Views& t) {
                 b.run(ops::GatedBackward{
                     .gate = gate, .gate_up = t[0], .dout = t[1], .dgate_up = t[0]});
               });
    }
  }
}

template <>
void draw_cases<ops::ActivationForward>(CaseDraw& draw) {
  for (const Activation kind : kActivations) {
    for (const DType dtype : kActivationTypes) {
      const MatrixShape s = draw.shape();
      const auto input = [&] { return draw.values(dtype, s.rows, s.cols, draw.one_in(2)); };
      draw.add("activation_forward", dtype, s, {input(), draw.output(dtype, s.rows, s.cols)},
               [kind](Backend& b, const Views& t) {
                 b.run(ops::ActivationForward{.kind = kind, .x = t[0], .out = t[1]});
               });
      draw.add("activation_forward", dtype, s, {updated(input())},
               [kind](Backend& b, const Views& t) {
                 b.run(ops::ActivationForward{.kind = kind, .x = t[0], .out = t[0]});
               });
    }
  }
}

template <>
void draw_cases<ops::ActivationBackward>(CaseDraw& draw) {
  for (const Activation kind : kActivations) {
    for (const DType dtype : kActivationTypes) {
      const MatrixShape s = draw.shape();
      const bool wild = draw.one_in(2);
      const auto input = [&] { return draw.values(dtype, s.rows, s.cols, wild); };
      draw.add("activation_backward", dtype, s,
               {input(), input(), draw.output(dtype, s.rows, s.cols)},
               [kind](Backend& b, const Views& t) {
                 b.run(ops::ActivationBackward{.kind = kind, .x = t[0], .dout = t[1], .dx = t[2]});
               });
      for (std::size_t in_place = 0; in_place < 2; ++in_place) {
        std::vector<HostTensor> tensors = {input(), input()};
        tensors[in_place].output = true;
        draw.add("activation_backward", dtype, s, std::move(tensors),
                 [kind, in_place](Backend& b, const Views& t) {
                   b.run(ops::ActivationBackward{
                       .kind = kind, .x = t[0], .dout = t[1], .dx = t[in_place]});
                 });
      }
    }
  }
}

template <>
void draw_cases<ops::XieluForward>(CaseDraw& draw) {
  for (const DType dtype : kActivationTypes) {
    const MatrixShape s = draw.shape();
    const auto number = [&] { return draw.ordinary(dtype, 1, 1); };
    draw.add("xielu_forward", dtype, s,
             {draw.values(dtype, s.rows, s.cols, draw.one_in(2)), number(), number(),
              draw.output(dtype, s.rows, s.cols)},
             [](Backend& b, const Views& t) {
               b.run(ops::XieluForward{.x = t[0], .p = t[1], .n = t[2], .out = t[3]});
             });
  }
}

template <>
void draw_cases<ops::XieluBackward>(CaseDraw& draw) {
  for (const DType dtype : kActivationTypes) {
    const MatrixShape s = draw.shape();
    const bool wild = draw.one_in(2);
    const auto input = [&] { return draw.values(dtype, s.rows, s.cols, wild); };
    const auto number = [&] { return draw.ordinary(dtype, 1, 1); };
    draw.add("xielu_backward", dtype, s,
             {input(), number(), number(), input(), draw.output(dtype, s.rows, s.cols),
              draw.output(DType::f32, s.rows, 2)},
             [](Backend& b, const Views& t) {
               b.run(ops::XieluBackward{
                   .x = t[0], .p = t[1], .n = t[2], .dout = t[3], .dx = t[4], .terms = t[5]});
             });
    draw.add("xielu_backward", dtype, s, {updated(input()), number(), number(), input()},
             [](Backend& b, const Views& t) {
               b.run(ops::XieluBackward{
                   .x = t[0], .p = t[1], .n = t[2], .dout = t[3], .dx = t[0], .terms = {}});
             });
  }
}

template <>
void draw_cases<ops::DynamicTanhForward>(CaseDraw& draw) {
  for (const DType dtype : kActivationTypes) {
    const MatrixShape s = draw.shape();
    draw.add("dynamic_tanh_forward", dtype, s,
             {draw.values(dtype, s.rows, s.cols, draw.one_in(2)), draw.ordinary(dtype, 1, 1),
              draw.output(dtype, s.rows, s.cols)},
             [](Backend& b, const Views& t) {
               b.run(ops::DynamicTanhForward{.x = t[0], .alpha = t[1], .out = t[2]});
             });
  }
}

template <>
void draw_cases<ops::DynamicTanhBackward>(CaseDraw& draw) {
  for (const DType dtype : kActivationTypes) {
    const MatrixShape s = draw.shape();
    const bool wild = draw.one_in(2);
    const auto input = [&] { return draw.values(dtype, s.rows, s.cols, wild); };
    const auto alpha = [&] { return draw.ordinary(dtype, 1, 1); };
    draw.add("dynamic_tanh_backward", dtype, s,
             {input(), alpha(), input(), draw.output(dtype, s.rows, s.cols),
              draw.output(DType::f32, s.rows, 1)},
             [](Backend& b, const Views& t) {
               b.run(ops::DynamicTanhBackward{
                   .x = t[0], .alpha = t[1], .dout = t[2], .dx = t[3], .terms = t[4]});
             });
    draw.add("dynamic_tanh_backward", dtype, s, {input(), alpha(), updated(input())},
             [](Backend& b, const Views& t) {
               b.run(ops::DynamicTanhBackward{
                   .x = t[0], .alpha = t[1], .dout = t[2], .dx = t[2], .terms = {}});
             });
  }
}

template <>
void draw_cases<ops::BiasBackward>(CaseDraw& draw) {
  for (const DType dtype : kActivationTypes) {
    const MatrixShape s = draw.shape();
    draw.add("bias_backward", dtype, s,
             {draw.values(dtype, s.rows, s.cols, draw.one_in(2)),
              flat(draw.output(DType::f32, 1, s.cols))},
             [](Backend& b, const Views& t) {
               b.run(ops::BiasBackward{t[0], t[1]});
             });
  }
}

}  // namespace fp8lab
