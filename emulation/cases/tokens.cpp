// Cases of operations that read or find tokens: embeddings, the loss, the most likely token.
#include <cstring>

#include "emulation/cases/case_draw.hpp"
#include "emulation/cases/list.hpp"

namespace fp8lab {

template <>
void draw_cases<ops::EmbeddingForward>(CaseDraw& draw) {
  for (const DType dtype : kActivationTypes) {
    const MatrixShape s = draw.shape();
    const std::int64_t vocabulary = draw.integer(1, 300);
    draw.add("embedding_forward", dtype, s,
             {draw.integers(s.rows, 0, vocabulary - 1),
              draw.values(dtype, vocabulary, s.cols, true), draw.output(dtype, s.rows, s.cols)},
             [](Backend& b, const Views& t) {
               b.run(ops::EmbeddingForward{.tokens = t[0], .table = t[1], .out = t[2]});
             });
  }
}

template <>
void draw_cases<ops::EmbeddingBackward>(CaseDraw& draw) {
  for (const DType dtype : kActivationTypes) {
    const MatrixShape s = draw.shape();
    const std::int64_t vocabulary = draw.integer(1, 300);
    draw.add("embedding_backward", dtype, s,
             {draw.integers(s.rows, 0, vocabulary - 1), draw.values(dtype, s.rows, s.cols, false),
              draw.output(DType::f32, vocabulary, s.cols)},
             [](Backend& b, const Views& t) {
               b.run(ops::EmbeddingBackward{.tokens = t[0], .dout = t[1], .dtable = t[2]});
             });
  }
}

template <>
void draw_cases<ops::CrossEntropy>(CaseDraw& draw) {
  enum class Gradient : std::uint8_t { apart, in_place, none };
  for (const DType dtype : kActivationTypes) {
    for (const Gradient gradient : {Gradient::apart, Gradient::in_place, Gradient::none}) {
      MatrixShape s = draw.shape();
      // A vocabulary that the blocks of a GPU split.
      if (draw.one_in(4)) s = {draw.integer(1, 3), draw.integer(20000, 60000)};
      HostTensor targets = draw.integers(s.rows, 0, s.cols - 1);
      HostTensor weights = flat(draw.ordinary(DType::f32, 1, s.rows));
      auto* weight = reinterpret_cast<float*>(weights.data.data());
      auto* target = reinterpret_cast<std::int32_t*>(targets.data.data());
      for (std::int64_t t = 0; t < s.rows; ++t) {
        weight[t] = weight[t] > 0.0f ? 1.0f : 0.0f;
        if (weight[t] == 0.0f && draw.one_in(2)) target[t] = -1;  // not read
      }
      HostTensor logits = draw.values(dtype, s.rows, s.cols, draw.one_in(2));
      logits.output = gradient == Gradient::in_place;
      draw.add("cross_entropy", dtype, s,
               {std::move(logits), std::move(targets), std::move(weights), draw.step_scalars(),
                flat(draw.output(DType::f32, 1, s.rows)), draw.output(dtype, s.rows, s.cols)},
               [gradient](Backend& b, const Views& t) {
                 const TensorView dlogits = gradient == Gradient::none       ? TensorView{}
                                            : gradient == Gradient::in_place ? t[0]
                                                                             : t[5];
                 b.run(ops::CrossEntropy{.logits = t[0],
                                         .targets = t[1],
                                         .weights = t[2],
                                         .scalars = t[3],
                                         .token_loss = t[4],
                                         .dlogits = dlogits});
               });
    }
    // Chunks of more tokens: one with the losses of all chunks, one with none to sum.
    for (const bool is_last : {true, false}) {
      const MatrixShape s = draw.shape();
      const std::int64_t all = s.rows + draw.integer(1, 5000);
      draw.add("cross_entropy of a part", dtype, s,
               {draw.values(dtype, s.rows, s.cols, false), draw.integers(s.rows, 0, s.cols - 1),
                flat(magnitudes(draw.ordinary(DType::f32, 1, s.rows))), draw.step_scalars(),
                updated(flat(draw.ordinary(DType::f32, 1, all)))},
               [rows = s.rows, is_last](Backend& b, const Views& t) {
                 b.run(ops::CrossEntropy{.logits = t[0],
                                         .targets = t[1],
                                         .weights = t[2],
                                         .scalars = t[3],
                                         .token_loss = t[4].columns(t[4].cols - rows, rows),
                                         .dlogits = TensorView{},
                                         .summed = is_last ? t[4] : TensorView{}});
               });
    }
  }
}

template <>
void draw_cases<ops::Argmax>(CaseDraw& draw) {
  for (const DType dtype : kActivationTypes) {
    const MatrixShape s = draw.shape();
    draw.add("argmax", dtype, s,
             {draw.values(dtype, s.rows, s.cols, draw.one_in(2)),
              flat(draw.output(DType::i32, 1, s.rows))},
             [](Backend& b, const Views& t) {
               b.run(ops::Argmax{t[0], t[1]});
             });
  }
}

}  // namespace fp8lab
