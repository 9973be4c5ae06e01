// Attention on quantized operands on the device against the CPU backend: every output byte, for
// codes and scales of every granularity, special codes among them.
#include <catch2/catch.hpp>

#include <string>
#include <vector>

#include "emulation/cases/operand_draw.hpp"
#include "emulation/spec/current_scaling.hpp"
#include "tests/kernels/device_test.hpp"

using namespace fp8lab;
using namespace fp8lab::test;

namespace {

using numerics::kE4M3;
using numerics::kE5M2;
using numerics::ScaleFormat;

/// The quantizers of one case. `backward`: the scales are those of tiles that a product may sum.
struct Quantizers {
  const char* name;
  bool backward;
  QuantSpec q, k, v, dout, p, ds;
};

QuantSpec passed_through(DType values) {
  QuantSpec spec;
  spec.format = values == DType::f32 ? numerics::kFP32 : numerics::kBF16;
  return spec;
}

QuantSpec statically_scaled(const numerics::FormatSpec& format, float scale) {
  QuantSpec spec = quantized(format, {0, 0});
  spec.scale_source = ScaleSource::static_scale;
  spec.static_scale = scale;
  return spec;
}

/// Returns the quantizers of every path of the kernels in this shape.
std::vector<Quantizers> every_path(const AttentionShape& a, DType values) {
  const QuantSpec none = passed_through(values);
  const QuantSpec head = quantized(kE4M3, {a.sequence, a.head_dim});
  const QuantSpec tensor = quantized(kE5M2, {0, 0});
  const QuantSpec token = quantized(kE4M3, {1, a.head_dim});
  const QuantSpec integer = quantized(numerics::kInt8, {0, 0});
  const QuantSpec p = statically_scaled(kE4M3, 0x1p-8f);
  QuantSpec delayed = quantized(kE5M2, {0, 0});
  delayed.scale_source = ScaleSource::delayed;
  delayed.history_length = 2;
  QuantSpec e8m0 = quantized(kE4M3, {0, 0}, ScaleFormat::e8m0);
  return {
      {"FP8 with tiles of heads, dS by its own tiles", true, head, head, head, tensor, p, tensor},
      {"FP8 with tensor scales, delayed dS", true, tensor, head, tensor, head, p, delayed},
      {"scales of tokens", false, token, token, head, none, p, none},
      {"integers and values", true, integer, none, head, none, none, e8m0},
      {"codes of P and dS alone", true, none, none, none, none,
       statically_scaled(numerics::kE3M4, 0.01f), statically_scaled(kE5M2, 0x1p-6f)},
      {"values", true, none, none, none, none, none, none}};
}

/// A matrix of values whose magnitudes are scales.
HostTensor scales(const QuantSpec& spec, std::int64_t rows, std::int64_t cols, std::uint32_t seed) {
  const std::int64_t down = spec.has_scale() ? spec.tile_rows(rows) : 1;
  const std::int64_t across = spec.has_scale() ? spec.scale_cols(cols) : 1;
  HostTensor tensor = filled(DType::f32, down, across, Fill::ordinary, seed, RowLayout{});
  std::mt19937 generator(seed);
  for (std::int64_t i = 0; i < down * across; ++i) {
    put(tensor, i / across, i % across, 0.001 + static_cast<double>(generator()) * 0x1p-37);
  }
  return tensor;
}

/// Codes of finite numbers, or values.
HostTensor codes(const QuantSpec& spec, std::int64_t rows, std::int64_t cols, std::uint32_t seed,
                 RowLayout layout) {
  HostTensor tensor = filled(spec.storage(), rows, cols, Fill::ordinary, seed, layout);
  if (!spec.is_quantized()) return tensor;
  std::mt19937 generator(seed);
  for (std::byte& byte : tensor.data) {
    const auto code = static_cast<std::uint8_t>(generator() & 0xBFu);
    byte = static_cast<std::byte>(code);  // without the upper binades, which hold the specials
  }
  return tensor;
}

/// The tensors of one case of both passes.
struct Case {
  AttentionShape shape;
  DType values, result;
  Quantizers by;
  std::vector<HostTensor> tensors;

  Case(const AttentionShape& a, DType value_type, DType result_type, Quantizers quantizers,
       std::int64_t longest, RowLayout layout, std::uint32_t seed)
      : shape(a), values(value_type), result(result_type), by(std::move(quantizers)) {
    const std::int64_t q = a.heads * a.head_dim, kv = a.kv_heads * a.head_dim;
    const auto add = [&](const QuantSpec& spec, std::int64_t cols) {
      tensors.push_back(codes(spec, tokens(), cols, seed += 2, layout));
      tensors.push_back(scales(spec, tokens(), cols, seed + 1));
    };
    add(by.q, q);
    add(by.k, kv);
    add(by.v, kv);
    add(by.dout, q);
    HostTensor starts{DType::i32, 1, tokens(), {}, true, false, RowLayout{}};
    starts.data.resize(static_cast<std::size_t>(tokens()) * sizeof(std::int32_t));
    std::mt19937 generator(seed);
    std::int64_t start = 0, end = 0;
    for (std::int64_t t = 0; t < tokens(); ++t) {
      const std::int64_t i = t % a.sequence;
      if (i == 0 || i == end) {
        start = i;
        end = i + 1 + static_cast<std::int64_t>(generator()) % longest;
      }
      put(starts, 0, t, static_cast<double>(start));
    }
    tensors.push_back(starts);
    for (const std::int64_t cols : {q, q, kv, kv}) {  // out, dq, dk, dv
      tensors.push_back(filled(result, tokens(), cols, Fill::ordinary, seed += 2, layout));
    }
    tensors.push_back(filled(DType::f32, a.heads, tokens(), Fill::ordinary, seed, layout));
    const std::int64_t state = std::max<std::int64_t>(DelayedState::length(by.ds), 1);
    tensors.push_back(filled(DType::f32, 1, state, Fill::ordinary, seed, RowLayout{}));
    for (std::int64_t i = 0; i < state; ++i) put(tensors.back(), 0, i, 0.0);
  }

  std::int64_t tokens() const { return shape.batch * shape.sequence; }

  /// Puts a code at `count` places of tensor `t`.
  void sprinkle(std::size_t t, std::byte code, int count, std::uint32_t seed) {
    std::mt19937 generator(seed);
    for (int i = 0; i < count; ++i) {
      tensors[t].data[generator() % tensors[t].data.size()] = code;
    }
  }
};

void run_and_compare(const Case& c) {
  const AttentionShape& a = c.shape;
  INFO("B " << a.batch << ", S " << a.sequence << ", heads " << a.heads << "/" << a.kv_heads
            << ", D " << a.head_dim << ", kv_tile " << a.kv_tile << ", q_tile " << a.q_tile
            << ", window " << a.window << ", " << name_of(c.values) << " -> " << name_of(c.result)
            << ": " << c.by.name);
  check_same("quantized attention (q, k, v, do with scales, starts, out, dq, dk, dv, lse, state)",
             c.tensors, [&](Backend& b, const Views& t) {
               const auto operand = [&](const QuantSpec& spec, std::size_t first) {
                 return operand_at(spec, t[first].rows, t[first].cols, t, first);
               };
               const QuantizedOperand q = operand(c.by.q, 0), k = operand(c.by.k, 2),
                                      v = operand(c.by.v, 4), dout = operand(c.by.dout, 6);
               b.run(ops::QuantizedAttentionForward{.shape = a,
                                                    .values = c.values,
                                                    .q = q,
                                                    .k = k,
                                                    .v = v,
                                                    .p = c.by.p,
                                                    .document_start = t[8],
                                                    .out = t[9],
                                                    .lse = t[13]});
               if (!c.by.backward) return;
               const TensorView state = state_for(c.by.ds, t[14]);
               // The second pass has the delayed scale that the first one gave rise to.
               for (int step = 0; step < (state.empty() ? 1 : 2); ++step) {
                 b.run(ops::QuantizedAttentionBackward{.shape = a,
                                                       .values = c.values,
                                                       .q = q,
                                                       .k = k,
                                                       .v = v,
                                                       .dout = dout,
                                                       .p = c.by.p,
                                                       .ds = c.by.ds,
                                                       .ds_state = state,
                                                       .document_start = t[8],
                                                       .out = t[9],
                                                       .lse = t[13],
                                                       .dq = t[10],
                                                       .dk = t[11],
                                                       .dv = t[12]});
                 if (!state.empty()) b.run(ops::UpdateDelayedScale{c.by.ds, state});
               }
             });
}

}  // namespace

TEST_CASE("quantized attention on the device has the bits of the CPU") {
  if (device_backend() == nullptr) return;
  const DType values = GENERATE(DType::bf16, DType::f32);
  // Tiles below, at and beyond the steps of the kernels and of odd numbers of row blocks; heads
  // below, at and beyond their columns; groups of heads; a window.
  AttentionShape shape =
      GENERATE(AttentionShape{1, 1, 1, 1, 1, 16, 16}, AttentionShape{2, 37, 2, 1, 8, 16, 16},
               AttentionShape{2, 107, 4, 2, 40, 32, 48}, AttentionShape{1, 150, 2, 2, 64, 80, 80},
               AttentionShape{1, 97, 3, 1, 72, 48, 64}, AttentionShape{1, 130, 2, 2, 128, 128, 64});
  if (shape.sequence == 107) shape.window = 21;
  const std::size_t path = GENERATE(range(0, 6));
  const RowLayout layout = path % 2 == 0 ? RowLayout{3, 0} : RowLayout{16, 16};
  run_and_compare(Case(shape, values, path % 3 == 0 ? DType::f32 : values,
                       every_path(shape, values)[path], shape.sequence == 37 ? 20 : 100, layout,
                       static_cast<std::uint32_t>(10 * path)));
}

TEST_CASE("quantized attention on the device with tiles of scales and tiles of tokens") {
  if (device_backend() == nullptr) return;
  const AttentionShape shape{2, 96, 2, 1, 32, 48, 32};
  Quantizers by = every_path(shape, DType::bf16)[0];
  by.q.tile = by.dout.tile = {shape.q_tile, shape.head_dim};
  by.k.tile = by.v.tile = {shape.kv_tile, 0};
  run_and_compare(Case(shape, DType::bf16, DType::bf16, by, 70, {}, 5));
}

namespace {

/// Returns quantizers that the kernels on wgmma support. `by_tiles`: q, k and v have a scale for
/// each tile of 64 tokens and head, else for each head.
Quantizers on_wgmma(const AttentionShape& a, bool by_tiles) {
  const QuantSpec codes = quantized(kE4M3, {by_tiles ? a.kv_tile : a.sequence, a.head_dim});
  const QuantSpec none = passed_through(DType::bf16);
  return {
      "E4M3 on wgmma", false, codes, codes, codes, none, statically_scaled(kE4M3, 0x1p-8f), none};
}

AttentionShape wgmma_shape(std::int64_t sequence, std::int64_t head_dim) {
  return {.batch = 2,
          .sequence = sequence,
          .heads = 4,
          .kv_heads = 2,
          .head_dim = head_dim,
          .kv_tile = 64,
          .q_tile = 64};
}

}  // namespace

TEST_CASE("quantized attention on wgmma at every border of its tiles") {
  if (device_backend() == nullptr) return;
  const std::int64_t head_dim = GENERATE(64, 128);
  // Below, at and beyond a tile of keys, a warpgroup's queries, and the stages of the ring.
  const std::int64_t sequence = GENERATE(1, 15, 64, 65, 131, 384);
  const std::int64_t longest = GENERATE(1000, 40);
  AttentionShape shape = wgmma_shape(sequence, head_dim);
  if (sequence == 131) shape.window = 70;
  Quantizers by = on_wgmma(shape, sequence % 64 == 0);
  if (sequence == 65) by.p = statically_scaled(kE4M3, 0.01f);
  run_and_compare(Case(shape, DType::bf16, DType::bf16, by, longest, {16, 16},
                       static_cast<std::uint32_t>(sequence + head_dim)));
}

TEST_CASE("quantized attention on wgmma with scores far apart and small ones") {
  if (device_backend() == nullptr) return;
  const double scale = GENERATE(0x1p-30, 1.0, 0x1p20, 0x1p60);
  const AttentionShape shape = wgmma_shape(192, 64);
  Case c(shape, DType::bf16, DType::bf16, on_wgmma(shape, true), 120, {16, 16}, 3);
  put(c.tensors[3], 1, 0, scale);
  put(c.tensors[5], 2, 0, scale);
  run_and_compare(c);
}

TEST_CASE("quantized attention on wgmma with codes and scales that are not finite") {
  if (device_backend() == nullptr) return;
  const AttentionShape shape = wgmma_shape(192, 128);
  Case c(shape, DType::bf16, DType::bf16, on_wgmma(shape, true), 90, {16, 16}, 5);
  // A tensor of codes with NaN, or one of scales.
  const std::size_t tensor = GENERATE(0, 1, 2, 3, 4, 5);
  if (tensor % 2 == 0) {
    c.sprinkle(tensor, std::byte{0x7F}, 3, static_cast<std::uint32_t>(tensor));
  } else {
    put(c.tensors[tensor], 1, 0, GENERATE(HUGE_VAL, static_cast<double>(NAN), 0.0, 3e38));
  }
  run_and_compare(c);
}

TEST_CASE("quantized attention on the device with codes that are not finite") {
  if (device_backend() == nullptr) return;
  const DType values = GENERATE(DType::bf16, DType::f32);
  const std::size_t path = GENERATE(0, 1);
  // The operand with special codes; NaN of both formats, infinities of e5m2.
  const std::size_t tensor = GENERATE(0, 2, 4, 6);
  const std::byte code = GENERATE(std::byte{0x7F}, std::byte{0x7C}, std::byte{0xFC});
  const AttentionShape shape{2, 116, 2, 1, 24, 48, 32};
  Case c(shape, values, values, every_path(shape, values)[path], 60, {3, 0}, 7);
  c.sprinkle(tensor, code, 3, static_cast<std::uint32_t>(tensor));
  run_and_compare(c);
}

TEST_CASE("quantized attention on the device with subnormal codes") {
  if (device_backend() == nullptr) return;
  const DType values = GENERATE(DType::bf16, DType::f32);
  const std::size_t path = GENERATE(0, 1);
  const AttentionShape shape{1, 80, 2, 1, 40, 64, 48};
  Case c(shape, values, values, every_path(shape, values)[path], 80, {3, 0}, 13);
  // Signs and mantissas of e4m3fn, which e5m2 reads as subnormal numbers and small ones.
  for (const std::size_t tensor : {0, 2, 4, 6}) {
    for (std::byte& code : c.tensors[tensor].data) code &= std::byte{0x87};
  }
  run_and_compare(c);
}

TEST_CASE("quantized attention on the device with scales that are not finite") {
  if (device_backend() == nullptr) return;
  const double scale = GENERATE(HUGE_VAL, static_cast<double>(NAN), 0.0, 3e38);
  const std::size_t tensor = GENERATE(1, 3, 5, 7);
  const AttentionShape shape{2, 70, 2, 1, 16, 32, 32};
  Case c(shape, DType::bf16, DType::f32, every_path(shape, DType::bf16)[0], 60, {3, 0}, 9);
  put(c.tensors[tensor], 0, 0, scale);
  run_and_compare(c);
}

TEST_CASE("quantized attention on the device against a cache with special codes behind a query") {
  if (device_backend() == nullptr) return;
  const DType values = GENERATE(DType::bf16, DType::f32);
  const bool has_codes = GENERATE(true, false);
  const AttentionShape shape{1, 64, 2, 1, 24, 32, 32};
  Quantizers by = every_path(shape, values)[2];
  by.v = statically_scaled(kE5M2, 0.5f);
  if (!has_codes) by.q = by.k = by.v = by.p = passed_through(values);
  const std::int64_t q = shape.heads * shape.head_dim, kv = shape.head_dim, held = 5, fresh = 40;
  std::vector<HostTensor> tensors;
  std::uint32_t seed = 3;
  const auto add = [&](const QuantSpec& spec, std::int64_t cols) {
    tensors.push_back(codes(spec, fresh, cols, seed += 2, {3, 0}));
    tensors.push_back(scales(spec, fresh, cols, seed));
  };
  add(by.q, q);
  add(by.k, kv);
  add(by.v, kv);
  // The queries before the last token do not see its value; they share its group of products.
  for (std::int64_t c = 0; c < kv; ++c) {
    if (has_codes) {
      tensors[4].data[static_cast<std::size_t>((fresh - 1) * kv + c)] = std::byte{0x7C};
    } else {
      put(tensors[4], fresh - 1, c, c % 2 == 0 ? HUGE_VAL : static_cast<double>(NAN));
    }
  }
  const auto counts = [](std::vector<double> numbers) {
    HostTensor tensor = integers(static_cast<std::int64_t>(numbers.size()), 2, 1);
    for (std::size_t i = 0; i < numbers.size(); ++i) {
      put(tensor, 0, static_cast<std::int64_t>(i), numbers[i]);
    }
    return tensor;
  };
  tensors.push_back(counts({0.0, static_cast<double>(fresh)}));
  tensors.push_back(counts({static_cast<double>(held)}));
  tensors.push_back(codes(by.k, shape.sequence, kv, 31, {5, 0}));
  tensors.push_back(codes(by.v, shape.sequence, kv, 33, {5, 0}));
  tensors.push_back(scales(by.k, shape.sequence, kv, 35));
  tensors.push_back(filled(values, fresh, q, Fill::ordinary, 37));
  check_same("quantized attention against a cache", tensors, [&](Backend& b, const Views& t) {
    const QuantizedOperand of_q = operand_at(by.q, fresh, q, t, 0);
    const QuantizedOperand of_k = operand_at(by.k, fresh, kv, t, 2);
    const QuantizedOperand of_v = operand_at(by.v, fresh, kv, t, 4);
    b.run(ops::QuantizedAttentionCached{.shape = shape,
                                        .values = values,
                                        .q = of_q,
                                        .k = of_k,
                                        .v = of_v,
                                        .p = by.p,
                                        .query_start = t[6],
                                        .cached = t[7],
                                        .k_cache = t[8],
                                        .v_cache = t[9],
                                        .k_scale_cache = has_codes ? t[10] : TensorView{},
                                        .out = t[11]});
  });
}
