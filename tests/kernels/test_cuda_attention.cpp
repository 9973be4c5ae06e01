// Attention on the device against the CPU backend: every output byte, strided operands of any
// alignment, odd shapes, special values.
#include <catch2/catch.hpp>

#include <algorithm>
#include <string>
#include <vector>

#include "emulation/cases/case_generator.hpp"
#include "tests/kernels/device_test.hpp"

using namespace fp8lab;
using namespace fp8lab::test;

namespace {

/// The matrices of one call of both passes. q, k and v are columns of one matrix, as are their
/// gradients; every matrix has `spare` columns more, which nothing may write.
struct Case {
  AttentionShape shape;
  DType storage, result;
  std::int64_t spare;
  Matrix qkv, dout, out, lse, dqkv, starts;

  Case(const AttentionShape& s, DType storage_type, DType result_type, std::int64_t spare_columns,
       std::uint32_t seed, double scale = 1.5)
      : shape(s),
        storage(storage_type),
        result(result_type),
        spare(spare_columns),
        qkv(Matrix::random(storage, tokens(), (s.heads + 2 * s.kv_heads) * s.head_dim + spare, seed,
                           scale)),
        dout(Matrix::random(storage, tokens(), s.heads * s.head_dim + spare, seed + 1)),
        out(Matrix::random(result, tokens(), s.heads * s.head_dim + spare, seed + 2)),
        lse(Matrix::random(DType::f32, s.heads, tokens() + spare, seed + 3)),
        dqkv(Matrix::random(result, tokens(), qkv.cols(), seed + 4)),
        starts(DType::i32, 1, tokens()) {}

  std::int64_t tokens() const { return shape.batch * shape.sequence; }

  /// Documents of random lengths up to `longest`, different in every sequence.
  void pack(std::int64_t longest, std::uint32_t seed) {
    std::mt19937 generator(seed);
    std::int64_t start = 0, end = 0;
    for (std::int64_t t = 0; t < tokens(); ++t) {
      const std::int64_t i = t % shape.sequence;
      if (i == 0 || i == end) {
        start = i;
        end = i + 1 + static_cast<std::int64_t>(generator()) % longest;
      }
      starts.set(t, static_cast<double>(start));
    }
  }

  /// Replaces the operands by codes of every kind, each tile of its own kind.
  void difficult(std::uint32_t seed, bool specials) {
    CaseGenerator generator(seed);
    for (Matrix* matrix : {&qkv, &dout}) {
      const std::vector<std::uint16_t> codes = generator.codes<std::uint16_t>(
          numerics::kBF16, matrix->rows(), matrix->cols(), 24, 24, specials);
      for (std::size_t i = 0; i < codes.size(); ++i) {
        matrix->set(static_cast<std::int64_t>(i), numerics::from_bf16(codes[i]));
      }
    }
  }

  /// Puts infinities, NaN, zeros of both signs and subnormals at `count` places of the operands.
  void sprinkle(std::uint32_t seed, int count) {
    const double special[] = {HUGE_VAL, -HUGE_VAL, NAN, 0x1p-130, -0x1p-133, 0.0, -0.0, 3e38};
    std::mt19937 generator(seed);
    for (Matrix* matrix : {&qkv, &dout}) {
      for (int i = 0; i < count; ++i) {
        matrix->set(static_cast<std::int64_t>(generator()) % (matrix->rows() * matrix->cols()),
                    special[i % 8]);
      }
    }
  }
};

/// The views of a case's tensors, in the order of tensors_of().
struct Tensors {
  TensorView q, k, v, dout, out, lse, dq, dk, dv, starts;

  Tensors(const AttentionShape& s, const Views& t) {
    const auto heads = [&](const TensorView& matrix, std::int64_t first, std::int64_t count) {
      return matrix.columns(first * s.head_dim, count * s.head_dim);
    };
    q = heads(t[0], 0, s.heads);
    k = heads(t[0], s.heads, s.kv_heads);
    v = heads(t[0], s.heads + s.kv_heads, s.kv_heads);
    dout = heads(t[1], 0, s.heads);
    out = heads(t[2], 0, s.heads);
    lse = t[3].columns(0, s.batch * s.sequence);
    dq = heads(t[4], 0, s.heads);
    dk = heads(t[4], s.heads, s.kv_heads);
    dv = heads(t[4], s.heads + s.kv_heads, s.kv_heads);
    starts = t[5];
  }

  ops::AttentionForward forward(const AttentionShape& s) const {
    return {s, q, k, v, starts, out, lse};
  }
  ops::AttentionBackward backward(const AttentionShape& s) const {
    return {s, q, k, v, starts, out, lse, dout, dq, dk, dv};
  }
};

std::vector<HostTensor> tensors_of(const Case& c) {
  return {tensor_of(c.qkv, c.storage), tensor_of(c.dout, c.storage),
          tensor_of(c.out, c.result),  tensor_of(c.lse, DType::f32),
          tensor_of(c.dqkv, c.result), tensor_of(c.starts, DType::i32)};
}

/// Runs both passes, or the forward pass, on both backends.
void run_and_compare(const Case& c, bool backward = true) {
  INFO("B " << c.shape.batch << ", S " << c.shape.sequence << ", heads " << c.shape.heads << "/"
            << c.shape.kv_heads << ", D " << c.shape.head_dim << ", kv_tile " << c.shape.kv_tile
            << ", q_tile " << c.shape.q_tile << ", " << name_of(c.storage) << " -> "
            << name_of(c.result) << ", " << c.spare << " spare columns");
  check_same("attention (qkv, dout, out, lse, dqkv, starts)", tensors_of(c),
             [&](Backend& b, const Views& t) {
               const Tensors tensors(c.shape, t);
               b.run(tensors.forward(c.shape));
               if (backward) b.run(tensors.backward(c.shape));
             });
}

}  // namespace

TEST_CASE("attention on the device has the bits of the CPU") {
  if (device_backend() == nullptr) return;
  const DType storage = GENERATE(DType::bf16, DType::f32);
  const DType result = GENERATE(DType::bf16, DType::f32);
  // Head dimensions below, at and beyond the widths of the kernels; 8 spare columns allow 16-byte
  // loads, 3 forbid them.
  const AttentionShape shape =
      GENERATE(AttentionShape{1, 1, 1, 1, 1, 16, 16}, AttentionShape{2, 17, 2, 1, 8, 16, 16},
               AttentionShape{2, 107, 4, 2, 40, 32, 48}, AttentionShape{1, 150, 3, 3, 64, 64, 64},
               AttentionShape{1, 97, 2, 1, 72, 48, 64}, AttentionShape{1, 130, 2, 2, 128, 128, 64},
               AttentionShape{1, 65, 4, 1, 200, 64, 32}, AttentionShape{3, 33, 7, 7, 18, 80, 80});
  const std::int64_t spare = GENERATE(3, 8);
  Case c(shape, storage, result, spare, 11);
  c.pack(shape.sequence, 12);
  run_and_compare(c);
}

TEST_CASE("attention on the device for heads of 64 and 128 columns in kv tiles of 64") {
  if (device_backend() == nullptr) return;
  // Sequences below, at and beyond tiles; groups of one, an even and an odd number of heads.
  const AttentionShape shape =
      GENERATE(AttentionShape{2, 49, 1, 1, 128, 64, 64}, AttentionShape{2, 64, 6, 2, 64, 64, 64},
               AttentionShape{3, 129, 7, 1, 128, 64, 64}, AttentionShape{2, 500, 3, 3, 64, 64, 64},
               AttentionShape{1, 520, 6, 2, 128, 64, 64});
  const std::int64_t longest = GENERATE(1, 40, 5000);
  // Scores of every size: weights that are all normal, some and none.
  const double scale = GENERATE(1.0, 4.0, 30.0);
  Case c(shape, DType::bf16, DType::bf16, 8, 91, scale);
  c.pack(longest, 92);
  run_and_compare(c);
}

TEST_CASE("attention on the device with large scores, infinities and NaN in queries and keys") {
  if (device_backend() == nullptr) return;
  const std::uint32_t seed = GENERATE(range(0u, 6u));
  Case c({.batch = 2, .sequence = 200, .heads = 2, .kv_heads = 1, .head_dim = 64}, DType::bf16,
         DType::bf16, 8, seed);
  c.pack(150, seed);
  const double special[] = {HUGE_VAL, -HUGE_VAL, NAN, 3e38, -3e38, 0x1p-133};
  std::mt19937 generator(seed);
  const std::int64_t read = (c.shape.heads + c.shape.kv_heads) * c.shape.head_dim;
  for (int i = 0; i < 24; ++i) {
    const auto row = static_cast<std::int64_t>(generator() % 400);
    c.qkv.set(row, static_cast<std::int64_t>(generator()) % read, special[i % 6]);
  }
  run_and_compare(c, false);
}

TEST_CASE("attention on the device over short documents and long sequences") {
  if (device_backend() == nullptr) return;
  const DType storage = GENERATE(DType::bf16, DType::f32);
  const std::int64_t longest = GENERATE(1, 20, 300);
  Case c({.batch = 2,
          .sequence = 611,
          .heads = 2,
          .kv_heads = 1,
          .head_dim = 32,
          .kv_tile = 192,
          .q_tile = 128},
         storage, storage, 0, 21);
  c.pack(longest, 22);
  run_and_compare(c);
}

TEST_CASE("attention on the device with a kv tile of thousands of keys") {
  if (device_backend() == nullptr) return;
  Case c({.batch = 1, .sequence = 4300, .heads = 1, .kv_heads = 1, .head_dim = 8, .kv_tile = 8192},
         DType::bf16, DType::f32, 0, 31, 0.5);
  c.pack(1, 0);
  for (std::int64_t t = 0; t < c.tokens(); ++t) c.starts.set(t, t < 40 ? 0.0 : 3.0);
  run_and_compare(c);
}

TEST_CASE("attention on the device with operands of every kind") {
  if (device_backend() == nullptr) return;
  const DType storage = GENERATE(DType::bf16, DType::f32);
  const std::uint32_t seed = GENERATE(range(0u, 12u));
  const AttentionShape shape{.batch = 1,
                             .sequence = 161,
                             .heads = 2,
                             .kv_heads = 1,
                             .head_dim = seed % 2 == 0 ? 24 : 80,
                             .kv_tile = seed % 3 == 0 ? 16 : 96,
                             .q_tile = seed % 4 < 2 ? 32 : 96};
  Case c(shape, storage, DType::f32, 1, seed, seed % 3 == 1 ? 12.0 : 1.0);
  c.pack(100, seed);
  if (seed < 4) c.difficult(seed, false);
  if (seed >= 4 && seed < 6) c.difficult(seed, true);
  if (seed >= 8) c.sprinkle(seed, 16);
  run_and_compare(c);
}

TEST_CASE("starts in any order, and infinities in queries between those that see a key") {
  if (device_backend() == nullptr) return;
  const DType storage = GENERATE(DType::bf16, DType::f32);
  const std::int64_t q_tile = GENERATE(32, 160);
  Case c({.batch = 1,
          .sequence = 157,
          .heads = 2,
          .kv_heads = 1,
          .head_dim = 16,
          .kv_tile = 32,
          .q_tile = q_tile},
         storage, DType::f32, 0, 71);
  // Of the queries after the first kv tile only 48 to 63 see none of its keys. In a q tile of 160
  // the CPU sums them with the others, and zero times infinity shows in dK and dV; a q tile of 32
  // ends with them, and they are left out.
  for (std::int64_t t = 0; t < c.tokens(); ++t) {
    const bool inside = t >= 48 && t < 64;
    c.starts.set(t, inside ? 48.0 : static_cast<double>(std::min(t, t * 7 % 5)));
  }
  c.dout.set(50, 3, HUGE_VAL);
  c.qkv.set(51, 4, -HUGE_VAL);
  run_and_compare(c);
}

TEST_CASE("an accumulator rescaled to -0 ends as +0 on the device") {
  if (device_backend() == nullptr) return;
  const DType storage = GENERATE(DType::bf16, DType::f32);
  Case c({.batch = 1,
          .sequence = 32,
          .heads = 1,
          .kv_heads = 1,
          .head_dim = 16,
          .kv_tile = 16,
          .q_tile = 16},
         storage, DType::f32, 0, 41);
  // Key 16 outweighs all others and its value is -0; the other values are negative.
  for (std::int64_t t = 0; t < 32; ++t) {
    for (std::int64_t column = 0; column < 16; ++column) {
      c.qkv.set(t, column, 1.0);
      c.qkv.set(t, 16 + column, t == 16 ? 1000.0 : 0.0);
      c.qkv.set(t, 32 + column, t == 16 ? -0.0 : -1.0);
    }
  }
  run_and_compare(c);
  cpu::CpuBackend cpu(0);
  Views views;
  for (const HostTensor& tensor : tensors_of(c)) views.push_back(uploaded(cpu, tensor));
  cpu.run(Tensors(c.shape, views).forward(c.shape));
  CHECK(numerics::float_bits(views[2].row<float>(20)[0]) == 0u);
}

TEST_CASE("attention on the device with tiles of wgmma") {
  if (device_backend() == nullptr) return;
  const DType result = GENERATE(DType::bf16, DType::f32);
  // Ends of sequences, of documents and of blocks of 128 keys or queries within and at tiles; kv
  // and q tiles of other sizes; groups of heads.
  const AttentionShape shape =
      GENERATE(AttentionShape{2, 200, 6, 2, 128, 64, 64}, AttentionShape{1, 333, 2, 1, 64, 64, 64},
               AttentionShape{1, 640, 3, 1, 128, 128, 96}, AttentionShape{3, 64, 2, 2, 64, 64, 16},
               AttentionShape{1, 17, 2, 1, 128, 64, 64}, AttentionShape{2, 129, 3, 1, 64, 192, 64},
               AttentionShape{1, 512, 1, 1, 64, 64, 64}, AttentionShape{1, 511, 2, 2, 128, 64, 64});
  const std::int64_t longest = GENERATE(1000, 150, 20);
  Case c(shape, DType::bf16, result, 8, 81, longest == 150 ? 12.0 : 1.5);
  c.pack(longest, 82);
  run_and_compare(c);
}

TEST_CASE("attention on the device with tiles of wgmma and operands that are not finite") {
  if (device_backend() == nullptr) return;
  const std::int64_t head_dim = GENERATE(64, 128), q_tile = GENERATE(64, 192);
  const std::int64_t longest = GENERATE(1000, 90);
  Case c({.batch = 1,
          .sequence = 403,
          .heads = 2,
          .kv_heads = 1,
          .head_dim = head_dim,
          .kv_tile = 64,
          .q_tile = q_tile},
         DType::bf16, DType::f32, 8, 91);
  c.pack(longest, 92);
  // In queries, keys and gradients of out: what lies before them in their tiles stays finite.
  const double special[] = {HUGE_VAL, -HUGE_VAL, NAN, 0x1p-130};
  for (int i = 0; i < 4; ++i) {
    c.qkv.set(90 + 40 * i, 3 + i, special[i]);
    c.qkv.set(130 + 50 * i, 2 * head_dim + 11 * i, special[3 - i]);
    c.dout.set(170 + 41 * i, 5 * i, special[i]);
  }
  run_and_compare(c);
}

TEST_CASE("attention on the device refuses what the CPU refuses, in the same words") {
  DeviceBackend* const device = device_backend();
  if (device == nullptr) return;
  cpu::CpuBackend cpu(0);
  const auto message = [](Backend& backend, const auto& op) -> std::string {
    try {
      backend.run(op);
    } catch (const Error& error) {
      return error.what();
    }
    return "no error";
  };
  // Refused before anything is read, so that both may have the tensors of the CPU.
  const auto check_refused = [&](const auto& op) {
    const std::string expected = message(cpu, op);
    CHECK(expected != "no error");
    CHECK(message(*device, op) == expected);
  };
  const auto placed = [&](const Case& c) {
    Views views;
    for (const HostTensor& tensor : tensors_of(c)) views.push_back(uploaded(cpu, tensor));
    return Tensors(c.shape, views);
  };
  const Case heads({.batch = 1, .sequence = 8, .heads = 3, .kv_heads = 2, .head_dim = 16},
                   DType::f32, DType::f32, 0, 51);
  const Case tile(
      {.batch = 1, .sequence = 8, .heads = 2, .kv_heads = 2, .head_dim = 16, .kv_tile = 24},
      DType::f32, DType::f32, 0, 51);
  for (const Case* refused : {&heads, &tile}) {
    check_refused(placed(*refused).forward(refused->shape));
  }
  const Case good({.batch = 1, .sequence = 8, .heads = 2, .kv_heads = 2, .head_dim = 16},
                  DType::f32, DType::f32, 0, 51);
  ops::AttentionBackward overwriting = placed(good).backward(good.shape);
  overwriting.dq = overwriting.q;
  check_refused(overwriting);
}

TEST_CASE("attention on the device refuses sequences that are too long to index") {
  if (device_backend() == nullptr) return;
  const std::int64_t tokens = (std::int64_t{1} << 24) + 1;
  float element = 0.0f;  // refused before anything is read
  const TensorView column{&element, DType::f32, tokens, 1, 1};
  const TensorView row{&element, DType::f32, 1, tokens, tokens};
  const TensorView starts{&element, DType::i32, 1, tokens, tokens};
  const AttentionShape shape{
      .batch = 1, .sequence = tokens, .heads = 1, .kv_heads = 1, .head_dim = 1};
  CHECK_THROWS_WITH(device_backend()->run(
                        ops::AttentionForward{shape, column, column, column, starts, column, row}),
                    Catch::Contains("more than the kernels index"));
}

TEST_CASE("a document that starts after its token is reported by the device") {
  if (device_backend() == nullptr) return;
  cuda::CudaBackend device(0);  // of its own: a fault stays set
  const double start = GENERATE(4.0, -1.0, 1e6);
  Case c({.batch = 2, .sequence = 8, .heads = 1, .kv_heads = 1, .head_dim = 16}, DType::bf16,
         DType::bf16, 0, 61);
  c.starts.set(8 + 3, start);
  Views views;
  for (const HostTensor& tensor : tensors_of(c)) views.push_back(uploaded(device, tensor));
  device.run(Tensors(c.shape, views).forward(c.shape));
  CHECK_THROWS_WITH(device.synchronize(), Catch::Contains("a document starts after its token"));
}
