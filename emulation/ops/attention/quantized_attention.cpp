#include "emulation/ops/attention/quantized_attention.hpp"

#include <fmt/format.h>

#include <string>

#include "emulation/ops/checks.hpp"
#include "emulation/spec/quant_rules.hpp"

namespace fp8lab {
namespace {

numerics::FormatSpec format_of(DType values) {
  return values == DType::f32 ? numerics::kFP32 : numerics::kBF16;
}

/// Returns why codes of this format cannot be multiplied; what is not cast has the type `values`.
Support supports_codes(const QuantSpec& spec, DType values) {
  if (!spec.is_cast()) {
    if (spec.format == format_of(values)) return {};
    return {fmt::format("format {}; accepted: formats of at most 8 bits, or {}",
                        format_name(spec.format), format_name(format_of(values)))};
  }
  if (!spec.is_quantized()) {
    return {fmt::format("format {} has more than 8 bits; accepted: at most 8 bits, or {}",
                        format_name(spec.format), format_name(format_of(values)))};
  }
  if (spec.has_codebooks()) {
    return {
        fmt::format("{} has a codebook for each tile; accepted: codes with scales", label(spec))};
  }
  return {};
}

}  // namespace

bool is_fp8_operand(const QuantSpec& spec) {
  return spec.format == numerics::kE4M3 || spec.format == numerics::kE5M2;
}

float attention_scale(const QuantizedOperand& operand, std::int64_t row, std::int64_t head,
                      std::int64_t head_dim) {
  if (!operand.spec.has_scale()) return 1.0f;
  const TileShape& tile = operand.spec.tile;
  return operand.scales.row<const float>(
      tile.rows == 0 ? 0 : row / tile.rows)[tile.cols == 0 ? 0 : head * head_dim / tile.cols];
}

bool has_one_scale_per_tile(const QuantSpec& spec, std::int64_t sequence, std::int64_t width) {
  const std::int64_t rows = spec.scale_tile().rows;
  if (rows == 0 || rows % sequence == 0) return true;
  return sequence % rows == 0 && rows % width == 0;
}

Support supports_attention_operand(const QuantSpec& spec, std::int64_t head_dim, DType values) {
  if (const Support codes = supports_codes(spec, values); !codes) return codes;
  if (const Support quantizer = supports_quantization(spec); !quantizer) return quantizer;
  if (spec.transform) {
    const auto* const hadamard = spec.transform.as<Hadamard>();
    const bool fits = hadamard != nullptr && !hadamard->left && hadamard->block > 0 &&
                      head_dim % hadamard->block == 0 && hadamard->signs != SignSource::drawn &&
                      (hadamard->pattern_length == 0 || head_dim % hadamard->pattern_length == 0);
    if (!fits) {
      return {fmt::format(
          "transform {}; accepted: hadamard:BLOCK with a BLOCK that divides head_dim {}, without "
          "signs or with a pattern, which is the same in all heads",
          transform_name(spec.transform), head_dim)};
    }
  }
  const TileShape tile = spec.scale_tile();
  if (tile.cols % head_dim == 0) return {};
  return {
      fmt::format("tile {} divides the {} columns of a head, which a product sums; accepted: "
                  "tiles of whole heads",
                  tile_name(tile), head_dim)};
}

Support supports_attention_weights(const QuantSpec& spec, DType values, bool is_gradient) {
  if (const Support codes = supports_codes(spec, values); !codes) return codes;
  if (const Support quantizer = supports_quantization(spec); !quantizer) return quantizer;
  if (spec.transform) return {"has a transform; accepted: none, it is quantized inside attention"};
  if (spec.cast().is_random())
    return {"rounding stochastic; accepted: a rounding without random bits"};
  switch (spec.scale_source) {
    case ScaleSource::none:
    case ScaleSource::static_scale: return {};
    case ScaleSource::delayed:
      if (!is_gradient) return {"a delayed scale; accepted: a static scale, P is at most 1"};
      if (spec.warmup_steps == 0) return {};
      return {"warm-up with current scales; accepted: a delayed scale without warm-up"};
    case ScaleSource::current: break;
  }
  if (!is_gradient) {
    return {
        "a scale by the amax, which is 1 for the largest weight of a row; accepted: a static "
        "scale such as 2^-8"};
  }
  const bool is_of_tile = spec.tile.is_tensor() && spec.scale.deviations == 0.0f &&
                          spec.scale.format != numerics::ScaleFormat::nv_two_level;
  if (is_of_tile) return {};
  return {"a scale other than that of the tile of queries and keys, the static or the delayed one"};
}

}  // namespace fp8lab

namespace fp8lab::ops {
namespace {

/// The first reason for which an operation is refused.
class Verdict {
 public:
  void add(bool is_supported, const std::string& reason) {
    if (!is_supported && reason_.empty()) reason_ = reason;
  }
  void add(const std::string& name, const Support& support) {
    add(static_cast<bool>(support), name + ": " + support.reason);
  }
  Support support() const { return {reason_}; }

 private:
  std::string reason_;
};

/// q and k cancel in the product of their transforms; `other` has none.
void add_transforms(Verdict& verdict, const QuantizedOperand& q, const QuantizedOperand& k,
                    const QuantizedOperand& other, const std::string& name) {
  verdict.add(q.spec.transform == k.spec.transform,
              fmt::format("q has the transform {} and k {}; accepted: the same one, which cancels "
                          "in their product",
                          transform_name(q.spec.transform), transform_name(k.spec.transform)));
  verdict.add(!other.spec.transform,
              fmt::format("{} has the transform {}, which nothing undoes; accepted: none", name,
                          transform_name(other.spec.transform)));
}

void add_constant(Verdict& verdict, const std::string& name, const QuantSpec& spec,
                  std::int64_t sequence, std::int64_t width, const char* tokens) {
  verdict.add(
      has_one_scale_per_tile(spec, sequence, width),
      fmt::format("{} has the tile {}, but a product sums {} {} of a sequence of {}; accepted: "
                  "tiles of a multiple of {} rows that divide the sequence, or of whole sequences",
                  name, tile_name(spec.tile), width, tokens, sequence, width));
}

void check_values(const Checks& checks, DType values) {
  checks.require(values == DType::bf16 || values == DType::f32,
                 fmt::format("values are {}; accepted: bf16, f32", name_of(values)));
}

/// Checks the shape of an operand of `rows` tokens and `heads` heads.
void check_heads(const Checks& checks, const char* operation, const std::string& name,
                 const QuantizedOperand& operand, std::int64_t rows, std::int64_t heads,
                 std::int64_t head_dim) {
  checks.require(operand.rows == rows && operand.k == heads * head_dim,
                 fmt::format("{} ({}, {}), expected ({}, {})", name, operand.rows, operand.k, rows,
                             heads * head_dim));
  check_operand(operation, operand);
  checks.require(!operand.has_rows_contiguous(), name + " has its rows contiguous; accepted: K");
}

template <class Op>
void check_support(const Checks& checks, const Op& op) {
  const Support support = op.support();
  checks.require(static_cast<bool>(support), support.reason);
}

}  // namespace

Support supports_cached_operand(const QuantSpec& spec, bool is_v) {
  if (spec.scale_source != ScaleSource::current) return {};
  const bool is_of_token = spec.tile.rows == 1;
  if (is_of_token && !is_v) return {};
  return {fmt::format(
      "the scale of {} {}", label(spec),
      is_of_token ? "differs among the keys that a product sums" : "depends on other tokens")};
}

Support QuantizedAttentionForward::support() const {
  Verdict verdict;
  verdict.add("q", supports_attention_operand(q.spec, shape.head_dim, values));
  verdict.add("k", supports_attention_operand(k.spec, shape.head_dim, values));
  verdict.add("v", supports_attention_operand(v.spec, shape.head_dim, values));
  verdict.add("p", supports_attention_weights(p, values, false));
  add_transforms(verdict, q, k, v, "v");
  add_constant(verdict, "v", v.spec, shape.sequence, shape.kv_tile, "keys");
  return verdict.support();
}

void QuantizedAttentionForward::check() const {
  constexpr const char* kOperation = "quantized_attention_forward";
  const Checks checks(kOperation);
  check_attention_shape(checks, shape);
  check_values(checks, values);
  check_support(checks, *this);
  const std::int64_t tokens = shape.batch * shape.sequence, d = shape.head_dim;
  check_heads(checks, kOperation, "q", q, tokens, shape.heads, d);
  check_heads(checks, kOperation, "k", k, tokens, shape.kv_heads, d);
  check_heads(checks, kOperation, "v", v, tokens, shape.kv_heads, d);
  checks.activation("out", out, tokens, shape.heads * d);
  checks.tensor("lse", lse, shape.heads, tokens, {DType::f32});
  checks.vector("document_start", document_start, tokens, {DType::i32});
}

Support QuantizedAttentionBackward::support() const {
  Verdict verdict;
  verdict.add("q", supports_attention_operand(q.spec, shape.head_dim, values));
  verdict.add("k", supports_attention_operand(k.spec, shape.head_dim, values));
  verdict.add("v", supports_attention_operand(v.spec, shape.head_dim, values));
  verdict.add("do", supports_attention_operand(dout.spec, shape.head_dim, values));
  verdict.add("p", supports_attention_weights(p, values, false));
  verdict.add("ds", supports_attention_weights(ds, values, true));
  add_transforms(verdict, q, k, v, "v");
  add_transforms(verdict, q, k, dout, "do");
  add_constant(verdict, "q", q.spec, shape.sequence, shape.q_tile, "queries");
  add_constant(verdict, "k", k.spec, shape.sequence, shape.kv_tile, "keys");
  add_constant(verdict, "v", v.spec, shape.sequence, shape.kv_tile, "keys");
  add_constant(verdict, "do", dout.spec, shape.sequence, shape.q_tile, "queries");
  return verdict.support();
}

void QuantizedAttentionBackward::check() const {
  constexpr const char* kOperation = "quantized_attention_backward";
  const Checks checks(kOperation);
  check_attention_shape(checks, shape);
  check_values(checks, values);
  check_support(checks, *this);
  const std::int64_t tokens = shape.batch * shape.sequence, d = shape.head_dim;
  check_heads(checks, kOperation, "q", q, tokens, shape.heads, d);
  check_heads(checks, kOperation, "k", k, tokens, shape.kv_heads, d);
  check_heads(checks, kOperation, "v", v, tokens, shape.kv_heads, d);
  check_heads(checks, kOperation, "do", dout, tokens, shape.heads, d);
  if (ds.scale_source == ScaleSource::delayed) {
    check_delayed_state(ds, ds_state);
  } else {
    checks.require(ds_state.empty(), "ds has a state, but its scale is not delayed");
  }
  checks.activation("out", out, tokens, shape.heads * d);
  checks.tensor("lse", lse, shape.heads, tokens, {DType::f32});
  checks.vector("document_start", document_start, tokens, {DType::i32});
  checks.activation("dq", dq, tokens, shape.heads * d);
  checks.activation("dk", dk, tokens, shape.kv_heads * d);
  checks.activation("dv", dv, tokens, shape.kv_heads * d);
  checks.require(dq.data != q.codes.data && dk.data != k.codes.data && dv.data != v.codes.data,
                 "the gradients must not overwrite q, k or v");
}

Support QuantizedAttentionCached::support() const {
  Verdict verdict;
  verdict.add("q", supports_attention_operand(q.spec, shape.head_dim, values));
  verdict.add("k", supports_attention_operand(k.spec, shape.head_dim, values));
  verdict.add("v", supports_attention_operand(v.spec, shape.head_dim, values));
  verdict.add("p", supports_attention_weights(p, values, false));
  add_transforms(verdict, q, k, v, "v");
  verdict.add("k", supports_cached_operand(k.spec, false));
  verdict.add("v", supports_cached_operand(v.spec, true));
  return verdict.support();
}

void QuantizedAttentionCached::check() const {
  constexpr const char* kOperation = "quantized_attention_cached";
  const Checks checks(kOperation);
  check_attention_shape(checks, shape);
  check_values(checks, values);
  check_support(checks, *this);
  const std::int64_t d = shape.head_dim, kv_cols = shape.kv_heads * d;
  check_heads(checks, kOperation, "q", q, q.rows, shape.heads, d);
  check_heads(checks, kOperation, "k", k, q.rows, shape.kv_heads, d);
  check_heads(checks, kOperation, "v", v, q.rows, shape.kv_heads, d);
  const std::int64_t rows = shape.batch * shape.sequence;
  checks.tensor("k_cache", k_cache, rows, kv_cols, {k.codes.dtype});
  checks.tensor("v_cache", v_cache, rows, kv_cols, {v.codes.dtype});
  if (k.spec.scale_source == ScaleSource::current) {
    checks.tensor("scales of k_cache", k_scale_cache, rows, k.spec.scale_cols(kv_cols),
                  {DType::f32});
  } else {
    checks.require(k_scale_cache.empty(), "k has one scale, so there is no cache of its scales");
  }
  checks.vector("query_start", query_start, shape.batch + 1, {DType::i32});
  checks.vector("cached", cached, shape.batch, {DType::i32});
  checks.activation("out", out, q.rows, shape.heads * d);
}

}  // namespace fp8lab::ops
