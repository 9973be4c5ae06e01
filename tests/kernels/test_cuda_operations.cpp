// The CUDA operations give the bits of the CPU operations: every byte of every tensor, gaps
// between rows included.
#include <catch2/catch.hpp>

#include <array>
#include <cmath>
#include <string>
#include <vector>

#include "emulation/cpu/operations.hpp"
#include "kernels/runtime/operations.hpp"
#include "tests/kernels/device_cases.hpp"

using namespace fp8lab;
using namespace fp8lab::test;

namespace {

/// Random integers of [0, limit).
Twin integers(std::int64_t count, std::int64_t limit, std::uint32_t seed) {
  Twin twin(DType::i32, 1, count, Fill::any_bits, seed);
  std::mt19937 generator(seed);
  for (std::int64_t i = 0; i < count; ++i) {
    twin.set(0, i, static_cast<double>(generator() % static_cast<std::uint64_t>(limit)));
  }
  return twin;
}

}  // namespace

TEST_CASE("cuda add") {
  cuda::Context* context = device_context();
  if (context == nullptr) return;
  for_all([&](Shape s, DType type, DType other, Layout layout, std::uint32_t seed) {
    Twin a(type, s.rows, s.cols, Fill::difficult, seed, layout);
    Twin b(other, s.rows, s.cols, Fill::any_bits, seed + 1);
    Twin sum(type, s.rows, s.cols, Fill::any_bits, seed + 2, layout);
    compare(
        *context, {{"a", &a}, {"b", &b}, {"sum", &sum}},
        [&] {
          cpu::run(ops::Add{a.host(), b.host(), sum.host()});
        },
        [&] {
          cuda::run(*context, ops::Add{a.device(), b.device(), sum.device()});
        });
    compare(
        *context, {{"a", &a}, {"b", &b}},
        [&] {
          cpu::run(ops::Add{a.host(), b.host(), a.host()});
        },
        [&] {
          cuda::run(*context, ops::Add{a.device(), b.device(), a.device()});
        });
  });
}

TEST_CASE("cuda gates") {
  const Gate gate = GENERATE(from_range(kGates));
  cuda::Context* context = device_context();
  if (context == nullptr) return;
  for_all([&](Shape s, DType type, DType other, Layout layout, std::uint32_t seed) {
    const Fill fill = seed % 20 == 1 ? Fill::any_bits : Fill::difficult;
    Twin gate_up(type, s.rows, 2 * s.cols, fill, seed, layout);
    Twin dout(other, s.rows, s.cols, fill, seed + 1, layout);
    Twin out(other, s.rows, s.cols, Fill::any_bits, seed + 2, layout);
    Twin dgate_up(type, s.rows, 2 * s.cols, Fill::any_bits, seed + 3);
    compare(
        *context, {{"gate_up", &gate_up}, {"out", &out}},
        [&] {
          cpu::run(ops::GatedForward{gate, gate_up.host(), out.host()});
        },
        [&] {
          cuda::run(*context, ops::GatedForward{gate, gate_up.device(), out.device()});
        });
    compare(
        *context, {{"gate_up", &gate_up}, {"dout", &dout}, {"dgate_up", &dgate_up}},
        [&] {
          cpu::run(ops::GatedBackward{gate, gate_up.host(), dout.host(), dgate_up.host()});
        },
        [&] {
          cuda::run(*context,
                    ops::GatedBackward{gate, gate_up.device(), dout.device(), dgate_up.device()});
        });
  });
}

TEST_CASE("cuda xielu") {
  cuda::Context* context = device_context();
  if (context == nullptr) return;
  for_all([&](Shape s, DType type, DType other, Layout layout, std::uint32_t seed) {
    const Fill fill = seed % 20 == 1 ? Fill::any_bits : Fill::difficult;
    Twin x(type, s.rows, s.cols, fill, seed, layout);
    Twin dout(other, s.rows, s.cols, fill, seed + 1, layout);
    Twin p(other, 1, 1, Fill::difficult, seed + 4), n(other, 1, 1, Fill::difficult, seed + 5);
    Twin out(other, s.rows, s.cols, Fill::any_bits, seed + 2, layout);
    Twin dx(type, s.rows, s.cols, Fill::any_bits, seed + 3);
    Twin terms(DType::f32, s.rows, 2, Fill::any_bits, seed + 6);
    compare(
        *context, {{"x", &x}, {"p", &p}, {"n", &n}, {"out", &out}},
        [&] {
          cpu::run(ops::XieluForward{x.host(), p.host(), n.host(), out.host()});
        },
        [&] {
          cuda::run(*context, ops::XieluForward{x.device(), p.device(), n.device(), out.device()});
        });
    compare(
        *context,
        {{"x", &x}, {"p", &p}, {"n", &n}, {"dout", &dout}, {"dx", &dx}, {"terms", &terms}},
        [&] {
          cpu::run(ops::XieluBackward{x.host(), p.host(), n.host(), dout.host(), dx.host(),
                                      terms.host()});
        },
        [&] {
          cuda::run(*context, ops::XieluBackward{x.device(), p.device(), n.device(), dout.device(),
                                                 dx.device(), terms.device()});
        });
  });
}

TEST_CASE("cuda activations") {
  const Activation kind = GENERATE(from_range(kActivations));
  cuda::Context* context = device_context();
  if (context == nullptr) return;
  for_all([&](Shape s, DType type, DType other, Layout layout, std::uint32_t seed) {
    const Fill fill = seed % 20 == 1 ? Fill::any_bits : Fill::difficult;
    Twin x(type, s.rows, s.cols, fill, seed, layout);
    Twin dout(other, s.rows, s.cols, fill, seed + 1, layout);
    Twin out(other, s.rows, s.cols, Fill::any_bits, seed + 2, layout);
    Twin dx(type, s.rows, s.cols, Fill::any_bits, seed + 3);
    compare(
        *context, {{"x", &x}, {"out", &out}},
        [&] {
          cpu::run(ops::ActivationForward{kind, x.host(), out.host()});
        },
        [&] {
          cuda::run(*context, ops::ActivationForward{kind, x.device(), out.device()});
        });
    const auto backward = [&](Twin& result) {
      compare(
          *context, {{"x", &x}, {"dout", &dout}, {"dx", &result}},
          [&] {
            cpu::run(ops::ActivationBackward{kind, x.host(), dout.host(), result.host()});
          },
          [&] {
            cuda::run(*context,
                      ops::ActivationBackward{kind, x.device(), dout.device(), result.device()});
          });
    };
    backward(dx);
    backward(dout);
    backward(x);
  });
}

TEST_CASE("cuda activations of every bf16 value") {
  const Activation kind = GENERATE(from_range(kActivations));
  cuda::Context* context = device_context();
  if (context == nullptr) return;
  Twin x(DType::bf16, 256, 256, Fill::ordinary, 1), dout(DType::f32, 256, 256, Fill::ordinary, 2);
  Twin out(DType::f32, 256, 256, Fill::any_bits, 3), dx(DType::f32, 256, 256, Fill::any_bits, 4);
  for (std::int64_t row = 0; row < 256; ++row) {
    for (std::int64_t col = 0; col < 256; ++col) {
      x.host().row<std::uint16_t>(row)[col] = static_cast<std::uint16_t>(row << 8 | col);
    }
  }
  compare(
      *context, {{"x", &x}, {"dout", &dout}, {"out", &out}, {"dx", &dx}},
      [&] {
        cpu::run(ops::ActivationForward{kind, x.host(), out.host()});
        cpu::run(ops::ActivationBackward{kind, x.host(), dout.host(), dx.host()});
      },
      [&] {
        cuda::run(*context, ops::ActivationForward{kind, x.device(), out.device()});
        cuda::run(*context, ops::ActivationBackward{kind, x.device(), dout.device(), dx.device()});
      });
}

TEST_CASE("cuda copy") {
  cuda::Context* context = device_context();
  if (context == nullptr) return;
  constexpr DType kFloats[] = {DType::bf16, DType::f32, DType::f64};
  std::uint32_t seed = 1;
  const auto run = [&](DType from, DType to, Shape s, Fill fill, Layout layout) {
    Twin source(from, s.rows, s.cols, fill, seed++, layout);
    Twin destination(to, s.rows, s.cols, Fill::any_bits, seed++, layout);
    compare(
        *context, {{"source", &source}, {"destination", &destination}},
        [&] {
          cpu::run(ops::Copy{source.host(), destination.host()});
        },
        [&] {
          cuda::run(*context, ops::Copy{source.device(), destination.device()});
        });
  };
  for (const Layout& layout : kLayouts) {
    for (const Shape& shape : kShapes) {
      for (const DType from : kFloats) {
        for (const DType to : kFloats) {
          run(from, to, shape, Fill::any_bits, layout);
          run(from, to, shape, Fill::difficult, layout);
        }
      }
      run(DType::u8, DType::u8, shape, Fill::any_bits, layout);
      run(DType::i32, DType::i32, shape, Fill::any_bits, layout);
    }
  }
}

TEST_CASE("cuda copy rounds a double once") {
  cuda::Context* context = device_context();
  if (context == nullptr) return;
  // Near ties of BF16 that a first rounding to FP32 would move onto the tie; the ends of the range.
  std::vector<double> values;
  for (const double base : {1.0, 0x1.02p0, 0x1p-133, 0x1p-126, 0x1.FEp127, 0x1.FFp127, 0x1p-150}) {
    const double tie = base + base * 0x1p-8;
    for (const double value : {base, tie, tie + tie * 0x1p-40, tie - tie * 0x1p-40, tie * 0x1p-9}) {
      values.push_back(value);
      values.push_back(-value);
    }
  }
  const auto count = static_cast<std::int64_t>(values.size());
  for (const DType to : kTypes) {
    Twin source(DType::f64, 1, count, Fill::ordinary, 1);
    for (std::int64_t i = 0; i < count; ++i) source.set(0, i, values[static_cast<std::size_t>(i)]);
    Twin destination(to, 1, count, Fill::any_bits, 2);
    compare(
        *context, {{"source", &source}, {"destination", &destination}},
        [&] {
          cpu::run(ops::Copy{source.host(), destination.host()});
        },
        [&] {
          cuda::run(*context, ops::Copy{source.device(), destination.device()});
        });
  }
}

TEST_CASE("cuda bias_backward") {
  cuda::Context* context = device_context();
  if (context == nullptr) return;
  for_all([&](Shape s, DType type, DType other, Layout layout, std::uint32_t seed) {
    const Fill fill = other == DType::f32 ? Fill::ordinary : Fill::difficult;
    Twin dy(type, s.rows, s.cols, fill, seed, layout);
    Twin dbias(DType::f32, 1, s.cols, fill, seed + 1, {0, layout.offset});
    compare(
        *context, {{"dy", &dy}, {"dbias", &dbias}},
        [&] {
          cpu::run(ops::BiasBackward{dy.host(), dbias.host()});
        },
        [&] {
          cuda::run(*context, ops::BiasBackward{dy.device(), dbias.device()});
        });
  });
}

TEST_CASE("cuda bias_backward of no rows") {
  cuda::Context* context = device_context();
  if (context == nullptr) return;
  Twin dy(DType::f32, 0, 40, Fill::ordinary, 1), dbias(DType::f32, 1, 40, Fill::any_bits, 2);
  dbias.set(0, 7, -0.0);
  compare(
      *context, {{"dbias", &dbias}},
      [&] {
        cpu::run(ops::BiasBackward{dy.host(), dbias.host()});
      },
      [&] {
        cuda::run(*context, ops::BiasBackward{dy.device(), dbias.device()});
      });
}

TEST_CASE("cuda rope") {
  cuda::Context* context = device_context();
  if (context == nullptr) return;
  std::uint32_t seed = 1;
  for (const DType type : kTypes) {
    for (const std::int64_t head_dim : {2, 6, 16, 30, 64, 128}) {
      for (const Layout& layout : kLayouts) {
        for (const bool inverse : {false, true}) {
          const Fill fill = inverse ? Fill::difficult : Fill::ordinary;
          Twin x(type, 61, 3 * head_dim, fill, seed++, layout);
          Twin positions = integers(61, 40, seed++);
          Twin cosine(DType::f32, 40, head_dim / 2, Fill::ordinary, seed++, layout);
          Twin sine(DType::f32, 40, head_dim / 2, fill, seed++);
          compare(
              *context,
              {{"x", &x}, {"positions", &positions}, {"cosine", &cosine}, {"sine", &sine}},
              [&] {
                cpu::run(ops::Rope{x.host(), positions.host(), cosine.host(), sine.host(), head_dim,
                                   inverse});
              },
              [&] {
                cuda::run(*context, ops::Rope{x.device(), positions.device(), cosine.device(),
                                              sine.device(), head_dim, inverse});
              });
        }
      }
    }
  }
}

TEST_CASE("cuda cross_entropy and argmax") {
  cuda::Context* context = device_context();
  if (context == nullptr) return;
  for_all([&](Shape s, DType type, DType other, Layout layout, std::uint32_t seed) {
    const Fill fill = seed % 20 == 1 ? Fill::difficult : Fill::ordinary;
    Twin logits(type, s.rows, s.cols, fill, seed, layout);
    Twin targets = integers(s.rows, s.cols, seed + 1);
    Twin weights(DType::f32, 1, s.rows, Fill::ordinary, seed + 2);
    for (std::int64_t t = 0; t < s.rows; t += 3) {
      weights.set(0, t, t % 2 == 0 ? 1.0 : 0.0);
      if (t % 2 != 0) targets.set(0, t, -1.0);  // not read
    }
    Twin scalars(DType::f32, 1, StepScalar::kCount, Fill::ordinary, seed + 3);
    Twin loss(DType::f32, 1, s.rows, Fill::any_bits, seed + 4);
    Twin best(DType::i32, 1, s.rows, Fill::any_bits, seed + 5);
    Twin dlogits(other, s.rows, s.cols, Fill::any_bits, seed + 6);
    compare(
        *context, {{"logits", &logits}, {"best", &best}},
        [&] {
          cpu::run(ops::Argmax{logits.host(), best.host()});
        },
        [&] {
          cuda::run(*context, ops::Argmax{logits.device(), best.device()});
        });
    const auto run = [&](const TensorView& on_host, const TensorView& on_device) {
      compare(
          *context,
          {{"logits", &logits},
           {"scalars", &scalars},
           {"loss", &loss},
           {"dlogits", &dlogits},
           {"targets", &targets},
           {"weights", &weights}},
          [&] {
            cpu::run(ops::CrossEntropy{logits.host(), targets.host(), weights.host(),
                                       scalars.host(), loss.host(), on_host});
          },
          [&] {
            cuda::run(*context,
                      ops::CrossEntropy{logits.device(), targets.device(), weights.device(),
                                        scalars.device(), loss.device(), on_device});
          });
    };
    run({}, {});
    run(dlogits.host(), dlogits.device());
    run(logits.host(), logits.device());
  });
}

TEST_CASE("cuda cross_entropy of rows that blocks of a cluster share") {
  cuda::Context* context = device_context();
  if (context == nullptr) return;
  const DType type = GENERATE(DType::bf16, DType::f32);
  // One block, two, eight of which the last has nothing, all, and wider blocks.
  const std::int64_t vocabulary = GENERATE(20480, 20481, 135169, 151936, 200003);
  CAPTURE(vocabulary);
  Twin logits(type, 5, vocabulary, Fill::ordinary, 1), targets = integers(5, vocabulary, 2);
  Twin weights(DType::f32, 1, 5, Fill::ordinary, 3), loss(DType::f32, 1, 5, Fill::any_bits, 4);
  Twin scalars(DType::f32, 1, StepScalar::kCount, Fill::ordinary, 5);
  logits.set(1, vocabulary - 1,
             30.0);  // what is far below it has an exponential that is not normal
  logits.set(1, 7, -300.0);
  logits.set(2, vocabulary / 2, NAN);
  logits.set(3, 0, HUGE_VAL);
  targets.set(0, 0, static_cast<double>(vocabulary - 1));
  weights.set(0, 4, 0.0);
  compare(
      *context,
      {{"logits", &logits},
       {"loss", &loss},
       {"scalars", &scalars},
       {"targets", &targets},
       {"weights", &weights}},
      [&] {
        cpu::run(ops::CrossEntropy{logits.host(), targets.host(), weights.host(), scalars.host(),
                                   loss.host(), logits.host()});
      },
      [&] {
        cuda::run(*context, ops::CrossEntropy{logits.device(), targets.device(), weights.device(),
                                              scalars.device(), loss.device(), logits.device()});
      });
}

TEST_CASE("cuda cross_entropy refuses a row that no cluster has room for") {
  cuda::Context* context = device_context();
  if (context == nullptr) return;
  Twin logits(DType::bf16, 1, 393217, Fill::ordinary, 1), targets = integers(1, 9, 2);
  Twin weights(DType::f32, 1, 1, Fill::ordinary, 3), loss(DType::f32, 1, 1, Fill::ordinary, 4);
  Twin scalars(DType::f32, 1, StepScalar::kCount, Fill::ordinary, 5);
  CHECK_THROWS_WITH(cuda::run(*context, ops::CrossEntropy{logits.device(),
                                                          targets.device(),
                                                          weights.device(),
                                                          scalars.device(),
                                                          loss.device(),
                                                          {}}),
                    Catch::Contains("393217 logits of a token, at most 393216"));
}

TEST_CASE("cuda square sums of many tensors, in their order") {
  cuda::Context* context = device_context();
  if (context == nullptr) return;
  // More than one launch takes; sizes from nothing to more than two chunks, not all aligned.
  constexpr std::int64_t kTensors = 250;
  Twin singles(DType::f32, 1, 9000 + kTensors, Fill::ordinary, 1);
  Twin halves(DType::bf16, 1, 9000 + kTensors, Fill::ordinary, 2);
  for (Twin* twin : {&singles, &halves}) twin->upload();
  Twin scalars(DType::f32, 1, StepScalar::kCount, Fill::ordinary, 3);
  const auto gradients = [&](auto side) {
    std::vector<TensorView> views;
    for (std::int64_t i = 0; i < kTensors; ++i) {
      const TensorView whole = side(i % 3 == 0 ? halves : singles);
      views.push_back(whole.columns(i, i % 7 == 0 ? 0 : i * 1237 % 9001));
    }
    return views;
  };
  compare(
      *context, {{"scalars", &scalars}},
      [&] {
        const auto views = gradients([](Twin& twin) { return twin.host(); });
        cpu::run(ops::AccumulateSquareSum{views, scalars.host()});
      },
      [&] {
        const auto views = gradients([](Twin& twin) { return twin.device(); });
        cuda::run(*context, ops::AccumulateSquareSum{views, scalars.device()});
      });
}

TEST_CASE("cuda argmax takes the lowest of equal elements and stays at a leading NaN") {
  cuda::Context* context = device_context();
  if (context == nullptr) return;
  Twin logits(DType::bf16, 5, 1000, Fill::ordinary, 1), best(DType::i32, 1, 5, Fill::any_bits, 2);
  for (const std::int64_t c : {999, 401, 400, 33}) logits.set(0, c, 9.0);
  for (std::int64_t c = 0; c < 1000; ++c) logits.set(1, c, c % 2 == 0 ? -0.0 : 0.0);
  for (std::int64_t c = 0; c < 1000; ++c) logits.set(2, c, c == 0 ? -HUGE_VAL : NAN);
  logits.set(3, 0, NAN);
  logits.set(4, 500, NAN);
  compare(
      *context, {{"logits", &logits}, {"best", &best}},
      [&] {
        cpu::run(ops::Argmax{logits.host(), best.host()});
      },
      [&] {
        cuda::run(*context, ops::Argmax{logits.device(), best.device()});
      });
}

TEST_CASE("cuda optimizer") {
  cuda::Context* context = device_context();
  if (context == nullptr) return;
  for_all([&](Shape s, DType type, DType other, Layout layout, std::uint32_t seed) {
    const Layout place{0, layout.offset};
    const Fill fill = seed % 20 == 1 ? Fill::difficult : Fill::ordinary;
    Twin master(DType::f32, s.rows, s.cols, fill, seed, place);
    Twin gradient(DType::f32, s.rows, s.cols, fill, seed + 1, place);
    Twin first(type, s.rows, s.cols, fill, seed + 2), second(other, s.rows, s.cols, fill, seed + 3);
    Twin working(DType::bf16, s.rows, s.cols, Fill::any_bits, seed + 4, place);
    Twin scalars(DType::f32, 1, StepScalar::kCount, Fill::ordinary, seed + 5);
    for (std::int64_t i = 0; i < StepScalar::kCount; ++i) scalars.set(0, i, i == 0 ? 1e-3 : 0.0);
    UpdateSpec spec;
    for (int step = 0; step < 4; ++step) {
      spec.clip_norm = step == 2 ? 0.0f : 1.0f;
      compare(
          *context,
          {{"master", &master},
           {"gradient", &gradient},
           {"first", &first},
           {"second", &second},
           {"working", &working},
           {"scalars", &scalars}},
          [&] {
            cpu::run(ops::AccumulateSquareSum{std::array{gradient.host()}, scalars.host()});
            cpu::run(ops::BeginUpdate{spec, scalars.host()});
            cpu::run(ops::AdamW{spec,
                                scalars.host(),
                                step == 1 ? 0.0f : 1.0f,
                                {master.host(), step == 3 ? TensorView{} : working.host(),
                                 gradient.host(), first.host(), second.host()}});
          },
          [&] {
            cuda::run(*context,
                      ops::AccumulateSquareSum{std::array{gradient.device()}, scalars.device()});
            cuda::run(*context, ops::BeginUpdate{spec, scalars.device()});
            cuda::run(*context,
                      ops::AdamW{spec,
                                 scalars.device(),
                                 step == 1 ? 0.0f : 1.0f,
                                 {master.device(), step == 3 ? TensorView{} : working.device(),
                                  gradient.device(), first.device(), second.device()}});
          });
    }
  });
}

TEST_CASE("cuda square sum of more than one level of chunks") {
  cuda::Context* context = device_context();
  if (context == nullptr) return;
  constexpr std::int64_t kChunk = 4096;
  constexpr std::int64_t kLargest = 3 * kChunk * kChunk - 7;
  Twin gradient(DType::f32, 1, kLargest, Fill::ordinary, 1);
  gradient.upload();
  Twin scalars(DType::f32, 1, StepScalar::kCount, Fill::ordinary, 2);
  const auto run = [&](std::int64_t length) {
    scalars.set(0, StepScalar::kGradNormSquared, 0.0);
    compare(
        *context, {{"scalars", &scalars}},
        [&] {
          cpu::run(ops::AccumulateSquareSum{std::array{gradient.host().columns(0, length)},
                                            scalars.host()});
        },
        [&] {
          cuda::run(*context,
                    ops::AccumulateSquareSum{std::array{gradient.device().columns(0, length)},
                                             scalars.device()});
        });
  };
  // Several lengths, as a wrong order of few summands often rounds to the same sum.
  for (std::int64_t i = 0; i < 8; ++i) {
    run(33 * kChunk + 5 + i * 1000);
    run(kLargest - i * 197 * kChunk);
  }
}

TEST_CASE("cuda beta powers stay above zero and a NaN norm does not clip") {
  cuda::Context* context = device_context();
  if (context == nullptr) return;
  for (const double norm : {0.0, 4.0, 0.25, -1.0, double{NAN}, double{HUGE_VAL}, 0x1p-140}) {
    Twin scalars(DType::f32, 1, StepScalar::kCount, Fill::ordinary, 2);
    scalars.set(0, StepScalar::kGradNormSquared, norm);
    scalars.set(0, StepScalar::kBeta1Power, 0x1p-126);
    scalars.set(0, StepScalar::kBeta2Power, 0.0);
    compare(
        *context, {{"scalars", &scalars}},
        [&] {
          cpu::run(ops::BeginUpdate{{}, scalars.host()});
        },
        [&] {
          cuda::run(*context, ops::BeginUpdate{{}, scalars.device()});
        });
  }
}

TEST_CASE("cuda embedding") {
  cuda::Context* context = device_context();
  if (context == nullptr) return;
  for_all([&](Shape s, DType type, DType other, Layout layout, std::uint32_t seed) {
    for (const std::int64_t vocabulary : {std::int64_t{1}, std::int64_t{37}, 100000 / s.cols + 2}) {
      const Fill fill = seed % 20 == 1 ? Fill::difficult : Fill::ordinary;
      Twin tokens = integers(s.rows, vocabulary, seed);
      Twin table(type, vocabulary, s.cols, Fill::any_bits, seed + 1, layout);
      Twin out(other, s.rows, s.cols, Fill::any_bits, seed + 2);
      Twin dout(type, s.rows, s.cols, fill, seed + 3, layout);
      Twin dtable(DType::f32, vocabulary, s.cols, Fill::any_bits, seed + 4, layout);
      compare(
          *context, {{"tokens", &tokens}, {"table", &table}, {"out", &out}},
          [&] {
            cpu::run(ops::EmbeddingForward{tokens.host(), table.host(), out.host()});
          },
          [&] {
            cuda::run(*context,
                      ops::EmbeddingForward{tokens.device(), table.device(), out.device()});
          });
      compare(
          *context, {{"tokens", &tokens}, {"dout", &dout}, {"dtable", &dtable}},
          [&] {
            cpu::run(ops::EmbeddingBackward{tokens.host(), dout.host(), dtable.host()});
          },
          [&] {
            cuda::run(*context,
                      ops::EmbeddingBackward{tokens.device(), dout.device(), dtable.device()});
          });
    }
  });
}

TEST_CASE("cuda embedding_backward of many tokens keeps their order") {
  cuda::Context* context = device_context();
  if (context == nullptr) return;
  Twin tokens = integers(9000, 300, 1), dout(DType::bf16, 9000, 24, Fill::ordinary, 2);
  for (std::int64_t t = 0; t < 9000; t += 2) tokens.set(0, t, 17.0);
  Twin dtable(DType::f32, 300, 24, Fill::ordinary, 3);
  compare(
      *context, {{"tokens", &tokens}, {"dout", &dout}, {"dtable", &dtable}},
      [&] {
        cpu::run(ops::EmbeddingBackward{tokens.host(), dout.host(), dtable.host()});
      },
      [&] {
        cuda::run(*context,
                  ops::EmbeddingBackward{tokens.device(), dout.device(), dtable.device()});
      });
}

TEST_CASE("cuda operations report bad data and refuse bad shapes like the CPU") {
  if (device_context() == nullptr) return;
  cuda::Context context(0);  // of its own: a fault stays set
  Twin tokens = integers(9, 5, 1), table(DType::f32, 5, 24, Fill::ordinary, 2);
  Twin out(DType::f32, 9, 24, Fill::ordinary, 3), narrow(DType::f32, 9, 23, Fill::ordinary, 4);
  tokens.set(0, 4, 5.0);
  for (Twin* twin : {&tokens, &table, &out}) twin->upload();
  SECTION("embedding_forward") {
    cuda::run(context, ops::EmbeddingForward{tokens.device(), table.device(), out.device()});
    CHECK_THROWS_WITH(context.synchronize(), Catch::Contains("token"));
  }
  SECTION("embedding_backward") {
    cuda::run(context, ops::EmbeddingBackward{tokens.device(), out.device(), table.device()});
    CHECK_THROWS_WITH(context.synchronize(), Catch::Contains("token"));
  }
  SECTION("rope") {
    Twin angles(DType::f32, 5, 12, Fill::ordinary, 5);
    angles.upload();
    cuda::run(context, ops::Rope{out.device(), tokens.device(), angles.device(), angles.device(),
                                 24, false});
    CHECK_THROWS_WITH(context.synchronize(), Catch::Contains("position"));
  }
  SECTION("cross_entropy") {
    Twin scalars(DType::f32, 1, StepScalar::kCount, Fill::ordinary, 6);
    Twin weights(DType::f32, 1, 9, Fill::ordinary, 7);
    tokens.set(0, 4, 24.0);
    weights.set(0, 4, 1.0);
    for (Twin* twin : {&tokens, &scalars, &weights}) twin->upload();
    cuda::run(context, ops::CrossEntropy{out.device(), tokens.device(), weights.device(),
                                         scalars.device(), weights.device(), out.device()});
    CHECK_THROWS_WITH(context.synchronize(), Catch::Contains("target"));
  }
  SECTION("shapes") {
    std::string expected;
    try {
      cpu::run(ops::EmbeddingForward{tokens.host(), table.host(), narrow.host()});
    } catch (const Error& error) {
      expected = error.what();
    }
    CHECK_THROWS_WITH(
        cuda::run(context, ops::EmbeddingForward{tokens.device(), table.device(), narrow.device()}),
        expected);
  }
}
