// Attention on the device against the CPU backend: every output byte, strided operands of any
// alignment, odd shapes, special values.
#include <catch2/catch.hpp>

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "emulation/cases/case_generator.hpp"
#include "emulation/cpu/operations.hpp"
#include "kernels/probes/codec_sweep.hpp"
#include "kernels/runtime/operations.hpp"
#include "tests/emulation/cpu/matrix.hpp"

using namespace fp8lab;
using namespace fp8lab::test;

namespace {

/// False, with a message, where no device is present.
bool have_device() {
  if (cuda::device_count() > 0) return true;
  WARN("skipped: no CUDA device");
  return false;
}

/// A copy of a host matrix on the device.
class DeviceMatrix {
 public:
  explicit DeviceMatrix(Matrix& host) : memory_(host.bytes().size()), view_(host.view()) {
    view_.data = memory_.data();
    cuda::check(
        cudaMemcpy(memory_.data(), host.bytes().data(), memory_.size(), cudaMemcpyHostToDevice),
        "cudaMemcpy");
  }
  TensorView view() const { return view_; }
  std::vector<std::byte> bytes() const {
    std::vector<std::byte> bytes(memory_.size());
    cuda::check(cudaMemcpy(bytes.data(), memory_.data(), memory_.size(), cudaMemcpyDeviceToHost),
                "cudaMemcpy");
    return bytes;
  }

 private:
  cuda::DeviceArray<std::byte> memory_;
  TensorView view_;
};

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

/// The tensors of a case in either memory, by a function from its matrices to views.
struct Tensors {
  TensorView q, k, v, dout, out, lse, dq, dk, dv, starts;

  template <class ViewOf>
  Tensors(Case& c, const ViewOf& view_of) {
    const AttentionShape& s = c.shape;
    const auto heads = [&](Matrix& matrix, std::int64_t first, std::int64_t count) {
      return view_of(matrix).columns(first * s.head_dim, count * s.head_dim);
    };
    q = heads(c.qkv, 0, s.heads);
    k = heads(c.qkv, s.heads, s.kv_heads);
    v = heads(c.qkv, s.heads + s.kv_heads, s.kv_heads);
    dout = heads(c.dout, 0, s.heads);
    out = heads(c.out, 0, s.heads);
    dq = heads(c.dqkv, 0, s.heads);
    dk = heads(c.dqkv, s.heads, s.kv_heads);
    dv = heads(c.dqkv, s.heads + s.kv_heads, s.kv_heads);
    lse = view_of(c.lse).columns(0, c.tokens());
    starts = view_of(c.starts);
  }
};

/// Device copies of the matrices of a case.
class DeviceCase {
 public:
  explicit DeviceCase(Case& c)
      : qkv(c.qkv), dout(c.dout), out(c.out), lse(c.lse), dqkv(c.dqkv), starts(c.starts) {
    const Matrix* host[] = {&c.qkv, &c.dout, &c.out, &c.lse, &c.dqkv, &c.starts};
    const DeviceMatrix* device[] = {&qkv, &dout, &out, &lse, &dqkv, &starts};
    tensors = std::make_unique<Tensors>(c, [&](Matrix& matrix) {
      return device[std::find(host, host + 6, &matrix) - host]->view();
    });
  }

  DeviceMatrix qkv, dout, out, lse, dqkv, starts;
  std::unique_ptr<Tensors> tensors;
};

/// Requires equal bytes; the first difference is told with its place and both bit patterns.
void compare(const char* name, Matrix& expected, const std::vector<std::byte>& actual) {
  REQUIRE(expected.bytes().size() == actual.size());
  if (expected.bytes() == actual) return;
  const std::size_t size = size_of(expected.view().dtype);
  std::int64_t count = 0, first = -1;
  std::uint64_t wanted = 0, found = 0;
  for (std::int64_t i = 0; i < expected.rows() * expected.cols(); ++i) {
    const std::size_t at = static_cast<std::size_t>(i) * size;
    if (std::memcmp(&expected.bytes()[at], &actual[at], size) == 0) continue;
    if (count++ > 0) continue;
    first = i;
    std::memcpy(&wanted, &expected.bytes()[at], size);
    std::memcpy(&found, &actual[at], size);
  }
  UNSCOPED_INFO(name << " row " << first / expected.cols() << ", column " << first % expected.cols()
                     << ": device 0x" << std::hex << found << ", CPU 0x" << wanted << std::dec
                     << "; " << count << " of " << expected.rows() * expected.cols() << " differ");
  CHECK(count == 0);
}

/// Runs both passes, or the forward pass, on both backends. The backward pass of the device reads
/// the out and lse of its forward pass, which were compared.
void run_and_compare(Case& c, bool backward = true) {
  INFO("B " << c.shape.batch << ", S " << c.shape.sequence << ", heads " << c.shape.heads << "/"
            << c.shape.kv_heads << ", D " << c.shape.head_dim << ", kv_tile " << c.shape.kv_tile
            << ", q_tile " << c.shape.q_tile << ", " << name_of(c.storage) << " -> "
            << name_of(c.result) << ", " << c.spare << " spare columns");
  cuda::Context context(0);
  const DeviceCase device(c);
  const Tensors host(c, [](Matrix& matrix) { return matrix.view(); });
  const Tensors& d = *device.tensors;
  cuda::run(context, ops::AttentionForward{c.shape, d.q, d.k, d.v, d.starts, d.out, d.lse});
  if (backward) {
    cuda::run(context, ops::AttentionBackward{c.shape, d.q, d.k, d.v, d.starts, d.out, d.lse,
                                              d.dout, d.dq, d.dk, d.dv});
  }
  context.synchronize();
  cpu::run(ops::AttentionForward{c.shape, host.q, host.k, host.v, host.starts, host.out, host.lse});
  if (backward) {
    cpu::run(ops::AttentionBackward{c.shape, host.q, host.k, host.v, host.starts, host.out,
                                    host.lse, host.dout, host.dq, host.dk, host.dv});
  }
  compare("lse", c.lse, device.lse.bytes());
  compare("out", c.out, device.out.bytes());
  compare("dqkv", c.dqkv, device.dqkv.bytes());
}

}  // namespace

TEST_CASE("attention on the device has the bits of the CPU") {
  if (!have_device()) return;
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
  if (!have_device()) return;
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
  if (!have_device()) return;
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
  if (!have_device()) return;
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
  if (!have_device()) return;
  Case c({.batch = 1, .sequence = 4300, .heads = 1, .kv_heads = 1, .head_dim = 8, .kv_tile = 8192},
         DType::bf16, DType::f32, 0, 31, 0.5);
  c.pack(1, 0);
  for (std::int64_t t = 0; t < c.tokens(); ++t) c.starts.set(t, t < 40 ? 0.0 : 3.0);
  run_and_compare(c);
}

TEST_CASE("attention on the device with operands of every kind") {
  if (!have_device()) return;
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
  if (!have_device()) return;
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
  if (!have_device()) return;
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
  CHECK(numerics::float_bits(static_cast<float>(c.out.at(20, 0))) == 0u);
}

TEST_CASE("attention on the device with tiles of wgmma") {
  if (!have_device()) return;
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
  if (!have_device()) return;
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
  if (!have_device()) return;
  cuda::Context context(0);
  const auto message = [](const auto& call) -> std::string {
    try {
      call();
    } catch (const Error& error) {
      return error.what();
    }
    return "no error";
  };
  Case c({.batch = 1, .sequence = 8, .heads = 3, .kv_heads = 2, .head_dim = 16}, DType::f32,
         DType::f32, 0, 51);
  Case tile({.batch = 1, .sequence = 8, .heads = 2, .kv_heads = 2, .head_dim = 16, .kv_tile = 24},
            DType::f32, DType::f32, 0, 51);
  for (Case* refused : {&c, &tile}) {
    const Tensors t(*refused, [](Matrix& matrix) { return matrix.view(); });
    const std::string expected = message([&] {
      cpu::run(ops::AttentionForward{refused->shape, t.q, t.k, t.v, t.starts, t.out, t.lse});
    });
    CHECK(expected != "no error");
    CHECK(message([&] {
            cuda::run(context,
                      ops::AttentionForward{refused->shape, t.q, t.k, t.v, t.starts, t.out, t.lse});
          }) == expected);
  }
  Case good({.batch = 1, .sequence = 8, .heads = 2, .kv_heads = 2, .head_dim = 16}, DType::f32,
            DType::f32, 0, 51);
  const Tensors t(good, [](Matrix& matrix) { return matrix.view(); });
  const auto overwriting = [&](const auto& run) {
    return message(
        [&] { run(good.shape, t.q, t.k, t.v, t.starts, t.out, t.lse, t.dout, t.q, t.dk, t.dv); });
  };
  CHECK(overwriting([&](const auto&... a) { cuda::run(context, ops::AttentionBackward{a...}); }) ==
        overwriting([](const auto&... a) { cpu::run(ops::AttentionBackward{a...}); }));
}

TEST_CASE("attention on the device refuses sequences that are too long to index") {
  if (!have_device()) return;
  cuda::Context context(0);
  const std::int64_t tokens = (std::int64_t{1} << 24) + 1;
  float element = 0.0f;  // refused before anything is read
  const TensorView column{&element, DType::f32, tokens, 1, 1};
  const TensorView row{&element, DType::f32, 1, tokens, tokens};
  const TensorView starts{&element, DType::i32, 1, tokens, tokens};
  const AttentionShape shape{
      .batch = 1, .sequence = tokens, .heads = 1, .kv_heads = 1, .head_dim = 1};
  CHECK_THROWS_WITH(
      cuda::run(context, ops::AttentionForward{shape, column, column, column, starts, column, row}),
      Catch::Contains("more than the kernels index"));
}

TEST_CASE("a document that starts after its token is reported by the device") {
  if (!have_device()) return;
  cuda::Context context(0);
  const double start = GENERATE(4.0, -1.0, 1e6);
  Case c({.batch = 2, .sequence = 8, .heads = 1, .kv_heads = 1, .head_dim = 16}, DType::bf16,
         DType::bf16, 0, 61);
  c.starts.set(8 + 3, start);
  const DeviceCase device(c);
  const Tensors& d = *device.tensors;
  cuda::run(context, ops::AttentionForward{c.shape, d.q, d.k, d.v, d.starts, d.out, d.lse});
  CHECK_THROWS_WITH(context.synchronize(), Catch::Contains("a document starts after its token"));
}
