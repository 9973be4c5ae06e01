// The CUDA operations give the bits of the CPU operations: every byte of every tensor, gaps
// between rows included.
#include <catch2/catch.hpp>

#include <array>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "tests/kernels/device_test.hpp"

using namespace fp8lab;
using namespace fp8lab::test;

TEST_CASE("cuda add") {
  if (device_backend() == nullptr) return;
  for_all([&](MatrixShape s, DType type, DType other, RowLayout layout, std::uint32_t seed) {
    const HostTensor a = filled(type, s.rows, s.cols, Fill::difficult, seed, layout);
    const HostTensor b = filled(other, s.rows, s.cols, Fill::any_bits, seed + 1);
    const HostTensor sum = filled(type, s.rows, s.cols, Fill::any_bits, seed + 2, layout);
    check_same("add", {a, b, sum}, [](Backend& backend, const Views& t) {
      backend.run(ops::Add{t[0], t[1], t[2]});
    });
    check_same("add in place", {a, b}, [](Backend& backend, const Views& t) {
      backend.run(ops::Add{t[0], t[1], t[0]});
    });
  });
}

TEST_CASE("cuda gates") {
  const Gate gate = GENERATE(from_range(kGates));
  if (device_backend() == nullptr) return;
  for_all([&](MatrixShape s, DType type, DType other, RowLayout layout, std::uint32_t seed) {
    const Fill fill = seed % 20 == 1 ? Fill::any_bits : Fill::difficult;
    check_same("gates",
               {filled(type, s.rows, 2 * s.cols, fill, seed, layout),
                filled(other, s.rows, s.cols, fill, seed + 1, layout),
                filled(other, s.rows, s.cols, Fill::any_bits, seed + 2, layout),
                filled(type, s.rows, 2 * s.cols, Fill::any_bits, seed + 3)},
               [gate](Backend& b, const Views& t) {
                 b.run(ops::GatedForward{gate, t[0], t[2]});
                 b.run(ops::GatedBackward{gate, t[0], t[1], t[3]});
               });
  });
}

TEST_CASE("cuda xielu") {
  if (device_backend() == nullptr) return;
  for_all([&](MatrixShape s, DType type, DType other, RowLayout layout, std::uint32_t seed) {
    const Fill fill = seed % 20 == 1 ? Fill::any_bits : Fill::difficult;
    check_same("xielu",
               {filled(type, s.rows, s.cols, fill, seed, layout),
                filled(other, s.rows, s.cols, fill, seed + 1, layout),
                filled(other, 1, 1, Fill::difficult, seed + 4),
                filled(other, 1, 1, Fill::difficult, seed + 5),
                filled(other, s.rows, s.cols, Fill::any_bits, seed + 2, layout),
                filled(type, s.rows, s.cols, Fill::any_bits, seed + 3),
                filled(DType::f32, s.rows, 2, Fill::any_bits, seed + 6)},
               [](Backend& b, const Views& t) {
                 b.run(ops::XieluForward{t[0], t[2], t[3], t[4]});
                 b.run(ops::XieluBackward{t[0], t[2], t[3], t[1], t[5], t[6]});
               });
  });
}

// Sums that no FP64 sum proves: halves of FP32's last place that a product far below decides, and
// sums that cancel. Rows of B are ones; 70 columns do not fill a tile.
TEST_CASE("cuda exact sums that FP64 does not prove") {
  if (device_backend() == nullptr) return;
  constexpr std::int64_t kRows = 66, kColumns = 70, kK = 40;
  const double tails[] = {0x1p-70, -0x1p-70, 0.0, 0x1p-40};
  HostTensor a = filled(DType::bf16, kRows, kK, Fill::any_bits, 1);
  HostTensor b = filled(DType::bf16, kColumns, kK, Fill::any_bits, 2);
  for (std::int64_t row = 0; row < kColumns; ++row) {
    for (std::int64_t k = 0; k < kK; ++k) put(b, row, k, 1.0);
  }
  for (std::int64_t row = 0; row < kRows; ++row) {
    for (std::int64_t k = 0; k < kK; ++k) put(a, row, k, 0.0);
    put(a, row, row % 5, row % 3 == 0 ? -0x1p60 : 1.0);
    if (row % 3 == 0) put(a, row, 5 + row % 7, 0x1p60);  // cancels
    put(a, row, 13 + row % 9, row % 2 == 0 ? 0x1p-24 : 0x1.8p-23);
    put(a, row, 25 + row % 15, tails[row % 4]);
  }
  GemmSpec spec;
  spec.accumulator = Accumulator::ideal_exact;
  spec.output = DType::f32;
  check_same(
      "exact sums", {a, b, filled(DType::f32, kRows, kColumns, Fill::any_bits, 3)},
      [&](Backend& backend, const Views& t) {
        QuantizedOperand left = QuantizedOperand::without_memory({}, kRows, kK);
        QuantizedOperand right = QuantizedOperand::without_memory({}, kColumns, kK);
        left.codes = t[0];
        right.codes = t[1];
        right.is_right = true;
        backend.run(ops::Gemm{
            .spec = spec, .a = left, .b = right, .bias = {}, .accumulate = false, .d = t[2]});
        if (!backend.is_on_host()) return;
        // 1 + 2^-24 + 2^-70 rounds up, and without the tail to even.
        std::vector<float> d(static_cast<std::size_t>(kRows * kColumns));
        backend.download(d.data(), t[2]);
        CHECK(d[4 * kColumns] == 1.0f + 0x1p-23f);
        CHECK(d[2 * kColumns] == 1.0f);
      });
}

TEST_CASE("cuda exact sums with infinities in a chunk beside one that FP64 does not prove") {
  if (device_backend() == nullptr) return;
  constexpr std::int64_t kRows = 66, kColumns = 70, kChunk = 128, kK = 2 * kChunk;
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  const double special[] = {kInfinity, -kInfinity, std::numeric_limits<double>::quiet_NaN(), 0.0};
  HostTensor a = filled(DType::bf16, kRows, kK, Fill::any_bits, 1);
  HostTensor b = filled(DType::bf16, kColumns, kK, Fill::any_bits, 2);
  for (std::int64_t row = 0; row < kColumns; ++row) {
    for (std::int64_t k = 0; k < kK; ++k) put(b, row, k, row % 3 == 1 ? -1.0 : 1.0);
  }
  for (std::int64_t row = 0; row < kRows; ++row) {
    for (std::int64_t k = 0; k < kK; ++k) put(a, row, k, 0.0);
    const std::int64_t tie = row % 2 * kChunk;  // of both chunks in turn
    put(a, row, tie, 1.0);
    put(a, row, tie + 1 + row % 7, 0x1p-24);
    put(a, row, tie + 9 + row % 11, 0x1p-70);
    put(a, row, kChunk - tie + row % 5, special[row % 4]);
    if (row % 9 == 8) put(a, row, kChunk - tie + 5, -special[row % 4]);
  }
  GemmSpec spec;
  spec.accumulator = Accumulator::ideal_exact;
  spec.output = DType::f32;
  const bool splits = GENERATE(false, true);
  if (splits) {
    spec.split_k = 2;
  } else {
    spec.schedule = Schedule::promote;
    spec.promote_interval = kChunk;
  }
  check_same(
      "exact sums", {a, b, filled(DType::f32, kRows, kColumns, Fill::any_bits, 3)},
      [&](Backend& backend, const Views& t) {
        QuantizedOperand left = QuantizedOperand::without_memory({}, kRows, kK);
        QuantizedOperand right = QuantizedOperand::without_memory({}, kColumns, kK);
        left.codes = t[0];
        right.codes = t[1];
        right.is_right = true;
        backend.run(ops::Gemm{
            .spec = spec, .a = left, .b = right, .bias = {}, .accumulate = false, .d = t[2]});
        if (!backend.is_on_host()) return;
        std::vector<float> d(static_cast<std::size_t>(kRows * kColumns));
        backend.download(d.data(), t[2]);
        CHECK(d[0] == kInfinity);
        CHECK(d[1] == -kInfinity);
        CHECK(std::isnan(d[2 * kColumns]));
        CHECK(d[3 * kColumns] == 1.0f + 0x1p-23f);
      });
}

TEST_CASE("cuda dynamic tanh") {
  if (device_backend() == nullptr) return;
  for_all([&](MatrixShape s, DType type, DType other, RowLayout layout, std::uint32_t seed) {
    const Fill fill = seed % 20 == 1 ? Fill::any_bits : Fill::difficult;
    check_same("dynamic tanh",
               {filled(type, s.rows, s.cols, fill, seed, layout),
                filled(other, s.rows, s.cols, fill, seed + 1, layout),
                filled(other, 1, 1, Fill::difficult, seed + 4),
                filled(other, s.rows, s.cols, Fill::any_bits, seed + 2, layout),
                filled(type, s.rows, s.cols, Fill::any_bits, seed + 3),
                filled(DType::f32, s.rows, 1, Fill::any_bits, seed + 5)},
               [](Backend& b, const Views& t) {
                 b.run(ops::DynamicTanhForward{t[0], t[2], t[3]});
                 b.run(ops::DynamicTanhBackward{t[0], t[2], t[1], t[4], t[5]});
               });
  });
}

TEST_CASE("cuda activations") {
  const Activation kind = GENERATE(from_range(kActivations));
  if (device_backend() == nullptr) return;
  for_all([&](MatrixShape s, DType type, DType other, RowLayout layout, std::uint32_t seed) {
    const Fill fill = seed % 20 == 1 ? Fill::any_bits : Fill::difficult;
    const HostTensor x = filled(type, s.rows, s.cols, fill, seed, layout);
    const HostTensor dout = filled(other, s.rows, s.cols, fill, seed + 1, layout);
    const HostTensor out = filled(other, s.rows, s.cols, Fill::any_bits, seed + 2, layout);
    const HostTensor dx = filled(type, s.rows, s.cols, Fill::any_bits, seed + 3);
    check_same("activation", {x, dout, out, dx}, [&](Backend& b, const Views& t) {
      b.run(ops::ActivationForward{kind, t[0], t[2]});
      b.run(ops::ActivationBackward{kind, t[0], t[1], t[3]});
    });
    check_same("activation_backward over dout, then over x", {x, dout},
               [&](Backend& b, const Views& t) {
                 b.run(ops::ActivationBackward{kind, t[0], t[1], t[1]});
                 b.run(ops::ActivationBackward{kind, t[0], t[1], t[0]});
               });
  });
}

TEST_CASE("cuda activations of every bf16 value") {
  const Activation kind = GENERATE(from_range(kActivations));
  if (device_backend() == nullptr) return;
  HostTensor x = filled(DType::bf16, 256, 256, Fill::ordinary, 1);
  for (std::size_t code = 0; code < 65536; ++code) {
    const auto bits = static_cast<std::uint16_t>(code);
    std::memcpy(x.data.data() + 2 * code, &bits, sizeof bits);
  }
  check_same("activation",
             {x, filled(DType::f32, 256, 256, Fill::ordinary, 2),
              filled(DType::f32, 256, 256, Fill::any_bits, 3),
              filled(DType::f32, 256, 256, Fill::any_bits, 4)},
             [&](Backend& b, const Views& t) {
               b.run(ops::ActivationForward{kind, t[0], t[2]});
               b.run(ops::ActivationBackward{kind, t[0], t[1], t[3]});
             });
}

namespace {

void copy(Backend& backend, const Views& t) { backend.run(ops::Copy{t[0], t[1]}); }

}  // namespace

TEST_CASE("cuda copy") {
  if (device_backend() == nullptr) return;
  constexpr DType kFloats[] = {DType::bf16, DType::f32, DType::f64};
  std::uint32_t seed = 1;
  const auto run = [&](DType from, DType to, MatrixShape s, Fill fill, RowLayout layout) {
    const HostTensor source = filled(from, s.rows, s.cols, fill, seed++, layout);
    check_same("copy", {source, filled(to, s.rows, s.cols, Fill::any_bits, seed++, layout)}, copy);
  };
  for (const RowLayout& layout : kLayouts) {
    for (const MatrixShape& shape : kShapes) {
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
  if (device_backend() == nullptr) return;
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
  HostTensor source = filled(DType::f64, 1, count, Fill::ordinary, 1);
  for (std::int64_t i = 0; i < count; ++i) put(source, 0, i, values[static_cast<std::size_t>(i)]);
  for (const DType to : kTypes) {
    check_same("copy", {source, filled(to, 1, count, Fill::any_bits, 2)}, copy);
  }
}

TEST_CASE("cuda bias_backward") {
  if (device_backend() == nullptr) return;
  for_all([&](MatrixShape s, DType type, DType other, RowLayout layout, std::uint32_t seed) {
    const Fill fill = other == DType::f32 ? Fill::ordinary : Fill::difficult;
    check_same("bias_backward",
               {filled(type, s.rows, s.cols, fill, seed, layout),
                filled(DType::f32, 1, s.cols, fill, seed + 1, {0, layout.offset})},
               [](Backend& b, const Views& t) {
                 b.run(ops::BiasBackward{t[0], t[1]});
               });
  });
}

TEST_CASE("cuda bias_backward of no rows") {
  if (device_backend() == nullptr) return;
  HostTensor dbias = filled(DType::f32, 1, 40, Fill::any_bits, 2);
  put(dbias, 0, 7, -0.0);
  check_same("bias_backward", {filled(DType::f32, 0, 40, Fill::ordinary, 1), dbias},
             [](Backend& b, const Views& t) {
               b.run(ops::BiasBackward{t[0], t[1]});
             });
}

TEST_CASE("cuda rope") {
  if (device_backend() == nullptr) return;
  std::uint32_t seed = 1;
  for (const DType type : kTypes) {
    for (const std::int64_t head_dim : {2, 6, 16, 30, 64, 128}) {
      for (const RowLayout& layout : kLayouts) {
        for (const bool inverse : {false, true}) {
          const Fill fill = inverse ? Fill::difficult : Fill::ordinary;
          const HostTensor x = filled(type, 61, 3 * head_dim, fill, seed++, layout);
          const HostTensor positions = integers(61, 40, seed++);
          const HostTensor cosine =
              filled(DType::f32, 40, head_dim / 2, Fill::ordinary, seed++, layout);
          check_same("rope",
                     {x, positions, cosine, filled(DType::f32, 40, head_dim / 2, fill, seed++)},
                     [&](Backend& b, const Views& t) {
                       b.run(ops::Rope{t[0], t[1], t[2], t[3], head_dim, inverse});
                     });
        }
      }
    }
  }
}

TEST_CASE("cuda cross_entropy and argmax") {
  if (device_backend() == nullptr) return;
  for_all([&](MatrixShape s, DType type, DType other, RowLayout layout, std::uint32_t seed) {
    const Fill fill = seed % 20 == 1 ? Fill::difficult : Fill::ordinary;
    const HostTensor logits = filled(type, s.rows, s.cols, fill, seed, layout);
    HostTensor targets = integers(s.rows, s.cols, seed + 1);
    HostTensor weights = filled(DType::f32, 1, s.rows, Fill::ordinary, seed + 2);
    for (std::int64_t t = 0; t < s.rows; t += 3) {
      put(weights, 0, t, t % 2 == 0 ? 1.0 : 0.0);
      if (t % 2 != 0) put(targets, 0, t, -1.0);  // not read
    }
    const HostTensor scalars = filled(DType::f32, 1, StepScalar::kCount, Fill::ordinary, seed + 3);
    const HostTensor loss = filled(DType::f32, 1, s.rows, Fill::any_bits, seed + 4);
    const HostTensor best = filled(DType::i32, 1, s.rows, Fill::any_bits, seed + 5);
    const HostTensor dlogits = filled(other, s.rows, s.cols, Fill::any_bits, seed + 6);
    const auto loss_of = [](Backend& b, const Views& t, const TensorView& gradient) {
      b.run(ops::CrossEntropy{t[0], t[1], t[2], t[3], t[4], gradient});
    };
    check_same("argmax, cross_entropy", {logits, targets, weights, scalars, loss, best},
               [&](Backend& b, const Views& t) {
                 b.run(ops::Argmax{t[0], t[5]});
                 loss_of(b, t, {});
               });
    check_same("cross_entropy", {logits, targets, weights, scalars, loss, dlogits},
               [&](Backend& b, const Views& t) { loss_of(b, t, t[5]); });
    check_same("cross_entropy in place", {logits, targets, weights, scalars, loss},
               [&](Backend& b, const Views& t) { loss_of(b, t, t[0]); });
  });
}

TEST_CASE("cuda cross_entropy of rows that blocks of a cluster share") {
  if (device_backend() == nullptr) return;
  const DType type = GENERATE(DType::bf16, DType::f32);
  // One block, two, eight of which the last has nothing, all, and wider blocks.
  const std::int64_t vocabulary = GENERATE(20480, 20481, 135169, 151936, 200003);
  CAPTURE(vocabulary);
  HostTensor logits = filled(type, 5, vocabulary, Fill::ordinary, 1);
  HostTensor targets = integers(5, vocabulary, 2);
  HostTensor weights = filled(DType::f32, 1, 5, Fill::ordinary, 3);
  // What is far below it has an exponential that is not normal.
  put(logits, 1, vocabulary - 1, 30.0);
  put(logits, 1, 7, -300.0);
  put(logits, 2, vocabulary / 2, NAN);
  put(logits, 3, 0, HUGE_VAL);
  put(targets, 0, 0, static_cast<double>(vocabulary - 1));
  put(weights, 0, 4, 0.0);
  check_same(
      "cross_entropy",
      {logits, targets, weights, filled(DType::f32, 1, StepScalar::kCount, Fill::ordinary, 5),
       filled(DType::f32, 1, 5, Fill::any_bits, 4)},
      [](Backend& b, const Views& t) {
        b.run(ops::CrossEntropy{t[0], t[1], t[2], t[3], t[4], t[0]});
      });
}

TEST_CASE("cuda cross_entropy refuses a row that no cluster has room for") {
  DeviceBackend* const device = device_backend();
  if (device == nullptr) return;
  const std::size_t mark = device->memory_mark();
  const TensorView logits = device->allocate(DType::bf16, 1, 393217);
  const TensorView targets = device->allocate(DType::i32, 1, 1);
  const TensorView single = device->allocate(DType::f32, 1, 1);
  const TensorView scalars = device->allocate(DType::f32, 1, StepScalar::kCount);
  CHECK_THROWS_WITH(device->run(ops::CrossEntropy{logits, targets, single, scalars, single, {}}),
                    Catch::Contains("393217 logits of a token, at most 393216"));
  device->release_to(mark);
}

TEST_CASE("cuda square sums of many tensors, in their order") {
  if (device_backend() == nullptr) return;
  // More than one launch takes; sizes from nothing to more than two chunks, not all aligned.
  constexpr std::int64_t kTensors = 250;
  check_same("accumulate_square_sum",
             {filled(DType::f32, 1, 9000 + kTensors, Fill::ordinary, 1),
              filled(DType::bf16, 1, 9000 + kTensors, Fill::ordinary, 2),
              filled(DType::f32, 1, StepScalar::kCount, Fill::ordinary, 3)},
             [](Backend& b, const Views& t) {
               std::vector<TensorView> views;
               for (std::int64_t i = 0; i < kTensors; ++i) {
                 const TensorView& whole = i % 3 == 0 ? t[1] : t[0];
                 views.push_back(whole.columns(i, i % 7 == 0 ? 0 : i * 1237 % 9001));
               }
               b.run(ops::AccumulateSquareSum{views, t[2]});
             });
}

TEST_CASE("cuda argmax takes the lowest of equal elements and stays at a leading NaN") {
  if (device_backend() == nullptr) return;
  HostTensor logits = filled(DType::bf16, 5, 1000, Fill::ordinary, 1);
  for (const std::int64_t c : {999, 401, 400, 33}) put(logits, 0, c, 9.0);
  for (std::int64_t c = 0; c < 1000; ++c) put(logits, 1, c, c % 2 == 0 ? -0.0 : 0.0);
  for (std::int64_t c = 0; c < 1000; ++c) put(logits, 2, c, c == 0 ? -HUGE_VAL : NAN);
  put(logits, 3, 0, NAN);
  put(logits, 4, 500, NAN);
  check_same("argmax", {logits, filled(DType::i32, 1, 5, Fill::any_bits, 2)},
             [](Backend& b, const Views& t) {
               b.run(ops::Argmax{t[0], t[1]});
             });
}

TEST_CASE("cuda optimizer") {
  if (device_backend() == nullptr) return;
  for_all([&](MatrixShape s, DType type, DType other, RowLayout layout, std::uint32_t seed) {
    const RowLayout place{0, layout.offset};
    const Fill fill = seed % 20 == 1 ? Fill::difficult : Fill::ordinary;
    HostTensor scalars = filled(DType::f32, 1, StepScalar::kCount, Fill::ordinary, seed + 5);
    for (std::int64_t i = 0; i < StepScalar::kCount; ++i) put(scalars, 0, i, i == 0 ? 1e-3 : 0.0);
    constexpr int kSteps = 4;
    // The working copy and the scalars of each step by themselves: a later one overwrites them.
    check_same("adamw",
               {filled(DType::f32, s.rows, s.cols, fill, seed, place),
                filled(DType::f32, s.rows, s.cols, fill, seed + 1, place),
                filled(type, s.rows, s.cols, fill, seed + 2),
                filled(other, s.rows, s.cols, fill, seed + 3),
                filled(DType::bf16, kSteps * s.rows, s.cols, Fill::any_bits, seed + 4, place),
                scalars, filled(DType::f32, kSteps, StepScalar::kCount, Fill::any_bits, seed + 6)},
               [&](Backend& b, const Views& t) {
                 for (int step = 0; step < kSteps; ++step) {
                   UpdateSpec spec;
                   spec.clip_norm = step == 2 ? 0.0f : 1.0f;
                   const TensorView working =
                       step == 3 ? TensorView{} : t[4].row_range(step * s.rows, s.rows);
                   b.run(ops::AccumulateSquareSum{std::array{t[1]}, t[5]});
                   b.run(ops::BeginUpdate{spec, t[5]});
                   b.run(ops::AdamW{
                       spec, t[5], step == 1 ? 0.0f : 1.0f, {t[0], working, t[1], t[2], t[3]}});
                   b.run(ops::Copy{t[5], t[6].row_range(step, 1)});
                 }
               });
  });
}

TEST_CASE("cuda square sum of more than one level of chunks") {
  if (device_backend() == nullptr) return;
  constexpr std::int64_t kChunk = 4096;
  constexpr std::int64_t kLargest = 3 * kChunk * kChunk - 7;
  // Several lengths, as a wrong order of few summands often rounds to the same sum; a sum each.
  std::vector<std::int64_t> lengths;
  for (std::int64_t i = 0; i < 8; ++i) {
    lengths.push_back(33 * kChunk + 5 + i * 1000);
    lengths.push_back(kLargest - i * 197 * kChunk);
  }
  HostTensor scalars = filled(DType::f32, static_cast<std::int64_t>(lengths.size()),
                              StepScalar::kCount, Fill::ordinary, 2);
  for (std::int64_t i = 0; i < scalars.rows; ++i) {
    put(scalars, i, StepScalar::kGradNormSquared, 0.0);
  }
  check_same("accumulate_square_sum", {filled(DType::f32, 1, kLargest, Fill::ordinary, 1), scalars},
             [&](Backend& b, const Views& t) {
               for (std::size_t i = 0; i < lengths.size(); ++i) {
                 b.run(ops::AccumulateSquareSum{std::array{t[0].columns(0, lengths[i])},
                                                t[1].row_range(static_cast<std::int64_t>(i), 1)});
               }
             });
}

TEST_CASE("cuda beta powers stay above zero and a NaN norm does not clip") {
  if (device_backend() == nullptr) return;
  for (const double norm : {0.0, 4.0, 0.25, -1.0, double{NAN}, double{HUGE_VAL}, 0x1p-140}) {
    HostTensor scalars = filled(DType::f32, 1, StepScalar::kCount, Fill::ordinary, 2);
    put(scalars, 0, StepScalar::kGradNormSquared, norm);
    put(scalars, 0, StepScalar::kBeta1Power, 0x1p-126);
    put(scalars, 0, StepScalar::kBeta2Power, 0.0);
    check_same("begin_update", {scalars}, [](Backend& b, const Views& t) {
      b.run(ops::BeginUpdate{{}, t[0]});
    });
  }
}

TEST_CASE("cuda embedding") {
  if (device_backend() == nullptr) return;
  for_all([&](MatrixShape s, DType type, DType other, RowLayout layout, std::uint32_t seed) {
    for (const std::int64_t vocabulary : {std::int64_t{1}, std::int64_t{37}, 100000 / s.cols + 2}) {
      const Fill fill = seed % 20 == 1 ? Fill::difficult : Fill::ordinary;
      check_same("embedding",
                 {integers(s.rows, vocabulary, seed),
                  filled(type, vocabulary, s.cols, Fill::any_bits, seed + 1, layout),
                  filled(other, s.rows, s.cols, Fill::any_bits, seed + 2),
                  filled(type, s.rows, s.cols, fill, seed + 3, layout),
                  filled(DType::f32, vocabulary, s.cols, Fill::any_bits, seed + 4, layout)},
                 [](Backend& b, const Views& t) {
                   b.run(ops::EmbeddingForward{t[0], t[1], t[2]});
                   b.run(ops::EmbeddingBackward{t[0], t[3], t[4]});
                 });
    }
  });
}

TEST_CASE("cuda embedding_backward of many tokens keeps their order") {
  if (device_backend() == nullptr) return;
  HostTensor tokens = integers(9000, 300, 1);
  for (std::int64_t t = 0; t < 9000; t += 2) put(tokens, 0, t, 17.0);
  check_same("embedding_backward",
             {tokens, filled(DType::bf16, 9000, 24, Fill::ordinary, 2),
              filled(DType::f32, 300, 24, Fill::ordinary, 3)},
             [](Backend& b, const Views& t) {
               b.run(ops::EmbeddingBackward{t[0], t[1], t[2]});
             });
}

TEST_CASE("cuda operations report bad data and refuse bad shapes like the CPU") {
  if (device_backend() == nullptr) return;
  cuda::CudaBackend device(0);  // of its own: a fault stays set
  const auto upload = [&](const HostTensor& tensor) { return uploaded(device, tensor); };
  HostTensor ids = integers(9, 5, 1);
  put(ids, 0, 4, 5.0);
  const TensorView table = upload(filled(DType::f32, 5, 24, Fill::ordinary, 2));
  const TensorView out = upload(filled(DType::f32, 9, 24, Fill::ordinary, 3));
  SECTION("embedding_forward") {
    device.run(ops::EmbeddingForward{upload(ids), table, out});
    CHECK_THROWS_WITH(device.synchronize(), Catch::Contains("token"));
  }
  SECTION("embedding_backward") {
    device.run(ops::EmbeddingBackward{upload(ids), out, table});
    CHECK_THROWS_WITH(device.synchronize(), Catch::Contains("token"));
  }
  SECTION("rope") {
    const TensorView angles = upload(filled(DType::f32, 5, 12, Fill::ordinary, 5));
    device.run(ops::Rope{out, upload(ids), angles, angles, 24, false});
    CHECK_THROWS_WITH(device.synchronize(), Catch::Contains("position"));
  }
  SECTION("cross_entropy") {
    put(ids, 0, 4, 24.0);
    HostTensor ones = filled(DType::f32, 1, 9, Fill::ordinary, 7);
    put(ones, 0, 4, 1.0);
    const TensorView weights = upload(ones);
    const TensorView scalars = upload(filled(DType::f32, 1, StepScalar::kCount, Fill::ordinary, 6));
    device.run(ops::CrossEntropy{out, upload(ids), weights, scalars, weights, out});
    CHECK_THROWS_WITH(device.synchronize(), Catch::Contains("target"));
  }
  SECTION("shapes") {
    const TensorView narrow = device.allocate(DType::f32, 9, 23);
    const ops::EmbeddingForward op{upload(ids), table, narrow};
    cpu::CpuBackend cpu(0);
    std::string expected;
    try {
      cpu.run(op);
    } catch (const Error& error) {
      expected = error.what();
    }
    CHECK(!expected.empty());
    CHECK_THROWS_WITH(device.run(op), expected);
  }
}
