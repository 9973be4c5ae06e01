// Every SIMD target and every number of threads gives the same bits; skipping masked work in
// attention changes none.
#include <catch2/catch.hpp>

#include <array>
#include <cmath>
#include <string>
#include <vector>

#include <omp.h>

#include "emulation/cpu/operations.hpp"
#include "emulation/cpu/simd/target.hpp"
#include "tests/emulation/cpu/attention/attention_case.hpp"
#include "tests/emulation/cpu/attention/attention_reference.hpp"
#include "tests/emulation/cpu/matrix.hpp"

using namespace fp8lab;
using namespace fp8lab::test;

namespace {

using Bytes = std::vector<std::byte>;

/// Restores target and threads.
class Setting {
 public:
  Setting(cpu::SimdTarget target, int threads) {
    cpu::set_active_target(target);
    omp_set_num_threads(threads);
  }
  ~Setting() {
    cpu::set_active_target(target_);
    omp_set_num_threads(threads_);
  }
  Setting(const Setting&) = delete;
  Setting& operator=(const Setting&) = delete;

 private:
  cpu::SimdTarget target_ = cpu::active_target();
  int threads_ = omp_get_max_threads();
};

class Record {
 public:
  void add(const Matrix& matrix) {
    bytes_.insert(bytes_.end(), matrix.bytes().begin(), matrix.bytes().end());
  }
  const Bytes& bytes() const { return bytes_; }

 private:
  Bytes bytes_;
};

Bytes run_pointwise(DType dtype) {
  const std::int64_t rows = 143, cols = 90;
  Record record;
  Matrix x = difficult(dtype, rows, 2 * cols, 1), dy = difficult(dtype, rows, 2 * cols, 2);
  Matrix weight = Matrix::random(dtype, 1, 2 * cols, 3), rstd(DType::f32, 1, rows);
  Matrix y(dtype, rows, 2 * cols), dx(dtype, rows, 2 * cols), dweight(DType::f32, 1, 2 * cols);
  cpu::run(ops::RmsNormForward{x.view(), weight.view(), 1e-6f, y.view(), rstd.view()});
  cpu::run(ops::RmsNormBackward{dy.view(), x.view(), weight.view(), rstd.view(), dx.view(),
                                dweight.view()});
  Matrix bias = Matrix::random(dtype, 1, 2 * cols, 9), mean(DType::f32, 1, rows), scale = mean;
  Matrix normed = y, dnormed = y, gain(DType::f32, 1, 2 * cols), shift = gain;
  cpu::run(ops::LayerNormForward{x.view(), weight.view(), bias.view(), 1e-5f, normed.view(),
                                 mean.view(), scale.view()});
  cpu::run(ops::LayerNormBackward{dy.view(), x.view(), weight.view(), mean.view(), scale.view(),
                                  dnormed.view(), gain.view(), shift.view()});
  std::vector<Matrix> activated(2 * kActivations.size(), y);
  for (std::size_t i = 0; i < kActivations.size(); ++i) {
    cpu::run(ops::ActivationForward{kActivations[i], x.view(), activated[2 * i].view()});
    cpu::run(
        ops::ActivationBackward{kActivations[i], x.view(), dy.view(), activated[2 * i + 1].view()});
  }
  Matrix number = Matrix::random(dtype, 1, 1, 5), curved = y, dcurved = y;
  Matrix terms(DType::f32, rows, 2);
  cpu::run(ops::XieluForward{x.view(), number.view(), number.view(), curved.view()});
  cpu::run(ops::XieluBackward{x.view(), number.view(), number.view(), dy.view(), dcurved.view(),
                              terms.view()});
  for (const Matrix& m : {curved, dcurved, terms}) record.add(m);
  Matrix alpha_terms(DType::f32, rows, 1);
  cpu::run(ops::DynamicTanhForward{x.view(), number.view(), curved.view()});
  cpu::run(ops::DynamicTanhBackward{x.view(), number.view(), dy.view(), dcurved.view(),
                                    alpha_terms.view()});
  for (const Matrix& m : {curved, dcurved, alpha_terms}) record.add(m);
  Matrix out(dtype, rows, cols), dgate_up(dtype, rows, 2 * cols), dout(dtype, rows, cols);
  for (const Gate gate : kGates) {
    cpu::run(ops::GatedForward{gate, x.view(), out.view()});
    cpu::run(ops::GatedBackward{gate, x.view(), out.view(), dgate_up.view()});
    record.add(out);
    record.add(dgate_up);
  }
  Matrix sum(dtype, rows, 2 * cols), dbias(DType::f32, 1, 2 * cols);
  cpu::run(ops::Add{x.view(), dy.view(), sum.view()});
  cpu::run(ops::BiasBackward{sum.view(), dbias.view()});
  Matrix positions(DType::i32, 1, rows), angles = Matrix::random(DType::f32, rows, 15, 4);
  for (std::int64_t t = 0; t < rows; ++t) positions.set(t, static_cast<double>(t * 7 % rows));
  Matrix rotated = x;
  cpu::run(ops::Rope{rotated.view(), positions.view(), angles.view(), angles.view(), 30, false});
  Matrix single(DType::f32, rows, 2 * cols), narrow(DType::bf16, rows, 2 * cols);
  cpu::run(ops::Copy{x.view(), single.view()});
  cpu::run(ops::Copy{single.view(), narrow.view()});
  for (const Matrix& m : {y, rstd, dx, dweight, sum, dbias, rotated, single, narrow}) {
    record.add(m);
  }
  for (const Matrix& m : {normed, mean, scale, dnormed, gain, shift}) record.add(m);
  for (const Matrix& m : activated) record.add(m);
  return record.bytes();
}

Bytes run_loss_and_embedding(DType dtype) {
  const std::int64_t tokens = 70, vocabulary = 131, cols = 150;
  Record record;
  Matrix logits = difficult(dtype, tokens, vocabulary, 5), dlogits(dtype, tokens, vocabulary);
  Matrix ids(DType::i32, 1, tokens), weights(DType::f32, 1, tokens), best(DType::i32, 1, tokens);
  Matrix scalars(DType::f32, 1, StepScalar::kCount), token_loss(DType::f32, 1, tokens);
  scalars.set(StepScalar::kInverseTokens, 0.02);
  for (std::int64_t t = 0; t < tokens; ++t) {
    ids.set(t, static_cast<double>(t * t % 61));
    weights.set(t, t % 5 == 0 ? 0.0 : 1.0);
  }
  cpu::run(ops::CrossEntropy{logits.view(), ids.view(), weights.view(), scalars.view(),
                             token_loss.view(), dlogits.view()});
  cpu::run(ops::Argmax{logits.view(), best.view()});
  Matrix table = difficult(dtype, 61, cols, 6), out(dtype, tokens, cols);
  Matrix dtable(DType::f32, 61, cols);
  cpu::run(ops::EmbeddingForward{ids.view(), table.view(), out.view()});
  cpu::run(ops::EmbeddingBackward{ids.view(), out.view(), dtable.view()});
  for (const Matrix& m : {dlogits, token_loss, scalars, best, out, dtable}) record.add(m);
  return record.bytes();
}

Bytes run_optimizer(DType moments) {
  Record record;
  Matrix master = Matrix::random(DType::f32, 37, 301, 7), working(DType::bf16, 37, 301);
  Matrix gradient = Matrix::random(DType::f32, 37, 301, 8), first(moments, 37, 301);
  Matrix second(moments, 37, 301), scalars(DType::f32, 1, StepScalar::kCount);
  scalars.set(StepScalar::kLearningRate, 1e-3);
  for (int step = 0; step < 3; ++step) {
    scalars.set(StepScalar::kGradNormSquared, 0.0);
    if (step == 2) gradient.set(1000, NAN);
    cpu::run(ops::AccumulateSquareSum{std::array{gradient.view()}, scalars.view()});
    cpu::run(ops::BeginUpdate{{}, scalars.view()});
    record.add(scalars);
    cpu::run(
        ops::AdamW{{},
                   scalars.view(),
                   1.0f,
                   {master.view(), working.view(), gradient.view(), first.view(), second.view()}});
  }
  for (const Matrix& m : {master, working, first, second}) record.add(m);
  return record.bytes();
}

Bytes run_attention(DType dtype, std::int64_t kv_tile) {
  Record record;
  AttentionCase a({.batch = 2,
                   .sequence = 107,
                   .heads = 4,
                   .kv_heads = 2,
                   .head_dim = 40,
                   .kv_tile = kv_tile,
                   .q_tile = 48},
                  dtype, dtype, 11);
  a.pack({0, 21, 90});
  a.run();
  for (const Matrix& m : {a.out, a.lse, a.dqkv}) record.add(m);
  return record.bytes();
}

template <class Run>
void check_all_settings(const std::string& name, const Run& run) {
  Bytes expected;
  {
    const Setting setting(cpu::SimdTarget::portable, 1);
    expected = run();
  }
  for (const cpu::SimdTarget target : cpu::available_targets()) {
    for (const int threads : {1, 2, 5}) {
      const Setting setting(target, threads);
      INFO(name << " on " << cpu::name_of(target) << " with " << threads << " threads");
      CHECK(run() == expected);
    }
  }
}

}  // namespace

TEST_CASE("operations give the same bits on every target and thread count") {
  for (const DType dtype : {DType::bf16, DType::f32}) {
    const std::string type(name_of(dtype));
    check_all_settings("pointwise " + type, [dtype] { return run_pointwise(dtype); });
    check_all_settings("loss " + type, [dtype] { return run_loss_and_embedding(dtype); });
    check_all_settings("optimizer " + type, [dtype] { return run_optimizer(dtype); });
    check_all_settings("attention " + type, [dtype] { return run_attention(dtype, 32); });
  }
}

TEST_CASE("attention gives the bits of the definition that skips nothing") {
  const DType dtype = GENERATE(DType::bf16, DType::f32);
  const std::int64_t kv_tile = GENERATE(16, 48);
  // Large scores, so that probabilities underflow and rescaled accumulators reach -0 and
  // subnormals.
  const double scale = GENERATE(1.0, 12.0);
  AttentionCase a({.batch = 1,
                   .sequence = 53,
                   .heads = 2,
                   .kv_heads = 1,
                   .head_dim = 18,
                   .kv_tile = kv_tile,
                   .q_tile = 32},
                  dtype, DType::f32, 17, scale);
  if (GENERATE(false, true)) a.coarsen(scale / 2.0);
  a.pack({0, 9, 35, 36});
  AttentionCase expected = a;
  AttentionReference(a).run(expected);
  a.run();
  CHECK(a.out.bytes() == expected.out.bytes());
  CHECK(a.lse.bytes() == expected.lse.bytes());
  CHECK(a.dqkv.bytes() == expected.dqkv.bytes());
}

TEST_CASE("an accumulator rescaled to -0 ends as +0, as the definition says") {
  const DType dtype = GENERATE(DType::bf16, DType::f32);
  AttentionCase a({.batch = 1,
                   .sequence = 32,
                   .heads = 1,
                   .kv_heads = 1,
                   .head_dim = 16,
                   .kv_tile = 16,
                   .q_tile = 16},
                  dtype, DType::f32, 23);
  // Key 16 outweighs all others completely and its value is -0; the other values are negative. So
  // the sum of the first tile is multiplied by 0 and every later product is -0.
  for (std::int64_t t = 0; t < 32; ++t) {
    for (std::int64_t c = 0; c < 16; ++c) {
      a.qkv.set(t, a.q_column(0) + c, 1.0);
      a.qkv.set(t, a.k_column(0) + c, t == 16 ? 1000.0 : 0.0);
      a.qkv.set(t, a.v_column(0) + c, t == 16 ? -0.0 : -1.0);
    }
  }
  AttentionCase expected = a;
  AttentionReference(a).run(expected);
  a.run();
  CHECK(a.out.bytes() == expected.out.bytes());
  CHECK(a.out.at(15, 0) == -1.0);
  CHECK(a.out.at(31, 0) == 0.0);
  CHECK_FALSE(std::signbit(a.out.at(31, 0)));
}
