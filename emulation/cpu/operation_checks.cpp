#include "emulation/cpu/operation_checks.hpp"

#include <initializer_list>
#include <string>

#include "emulation/cpu/checks.hpp"
#include "emulation/cpu/operations.hpp"

namespace fp8lab::cpu {
namespace {

bool is_float(DType dtype) {
  return dtype == DType::bf16 || dtype == DType::f32 || dtype == DType::f64;
}

/// As long as a row of x, or as one of the heads that a row divides into.
void check_norm_weight(const Checks& checks, const TensorView& weight, const TensorView& x) {
  checks.require(weight.cols == x.cols || (weight.cols > 0 && x.cols % weight.cols == 0),
                 "x " + describe(x) + " does not divide into heads of weight " + describe(weight));
  checks.vector("weight", weight, weight.cols, {DType::bf16, DType::f32});
}

}  // namespace

void check_embedding_forward(const TensorView& tokens, const TensorView& table,
                             const TensorView& out) {
  const Checks checks("embedding_forward");
  checks.activation("table", table, table.rows, table.cols);
  checks.activation("out", out, tokens.cols, table.cols);
  checks.vector("tokens", tokens, tokens.cols, {DType::i32});
}

void check_embedding_backward(const TensorView& tokens, const TensorView& dout,
                              const TensorView& dtable) {
  const Checks checks("embedding_backward");
  checks.tensor("dtable", dtable, dtable.rows, dtable.cols, {DType::f32});
  checks.activation("dout", dout, tokens.cols, dtable.cols);
  checks.vector("tokens", tokens, tokens.cols, {DType::i32});
}

void check_rmsnorm_forward(const TensorView& x, const TensorView& weight, const TensorView& y,
                           const TensorView& rstd) {
  const Checks checks("rmsnorm_forward");
  checks.activation("x", x, x.rows, x.cols);
  check_norm_weight(checks, weight, x);
  checks.activation("y", y, x.rows, x.cols);
  checks.vector("rstd", rstd, x.rows * NormHeads::of(x, weight).count, {DType::f32});
}

void check_rmsnorm_backward(const TensorView& dy, const TensorView& x, const TensorView& weight,
                            const TensorView& rstd, const TensorView& dx,
                            const TensorView& dweight) {
  const Checks checks("rmsnorm_backward");
  checks.activation("x", x, x.rows, x.cols);
  checks.activation("dy", dy, x.rows, x.cols);
  check_norm_weight(checks, weight, x);
  checks.vector("rstd", rstd, x.rows * NormHeads::of(x, weight).count, {DType::f32});
  checks.activation("dx", dx, x.rows, x.cols);
  checks.vector("dweight", dweight, weight.cols, {DType::f32});
  checks.require(dx.data != x.data, "dx must not overwrite x");
}

void check_add(const TensorView& a, const TensorView& b, const TensorView& sum) {
  const Checks checks("add");
  checks.activation("a", a, a.rows, a.cols);
  checks.activation("b", b, a.rows, a.cols);
  checks.activation("sum", sum, a.rows, a.cols);
}

void check_swiglu_forward(const TensorView& gate_up, const TensorView& out) {
  const Checks checks("swiglu_forward");
  checks.activation("out", out, out.rows, out.cols);
  checks.activation("gate_up", gate_up, out.rows, 2 * out.cols);
}

void check_swiglu_backward(const TensorView& gate_up, const TensorView& dout,
                           const TensorView& dgate_up) {
  const Checks checks("swiglu_backward");
  checks.activation("dout", dout, dout.rows, dout.cols);
  checks.activation("gate_up", gate_up, dout.rows, 2 * dout.cols);
  checks.activation("dgate_up", dgate_up, dout.rows, 2 * dout.cols);
}

void check_copy(const TensorView& source, const TensorView& destination) {
  const Checks checks("copy");
  checks.require(!source.empty(), "the source is missing");
  const bool same = source.dtype == destination.dtype;
  checks.tensor("destination", destination, source.rows, source.cols,
                same ? std::initializer_list<DType>{source.dtype}
                     : std::initializer_list<DType>{DType::bf16, DType::f32, DType::f64});
  checks.require(same || is_float(source.dtype),
                 "source " + describe(source) + " converts to its own type only");
}

void check_bias_backward(const TensorView& dy, const TensorView& dbias) {
  const Checks checks("bias_backward");
  checks.activation("dy", dy, dy.rows, dy.cols);
  checks.vector("dbias", dbias, dy.cols, {DType::f32});
}

void check_rope(const TensorView& x, const TensorView& positions, const TensorView& cosine,
                const TensorView& sine, std::int64_t head_dim) {
  const Checks checks("rope");
  checks.activation("x", x, x.rows, x.cols);
  checks.require(head_dim > 0 && head_dim % 2 == 0 && x.cols % head_dim == 0,
                 "x " + describe(x) + " does not divide into heads of " + std::to_string(head_dim) +
                     " columns (an even number)");
  checks.vector("positions", positions, x.rows, {DType::i32});
  checks.tensor("cosine", cosine, cosine.rows, head_dim / 2, {DType::f32});
  checks.tensor("sine", sine, cosine.rows, head_dim / 2, {DType::f32});
}

void check_cross_entropy(const TensorView& logits, const TensorView& targets,
                         const TensorView& weights, const TensorView& scalars,
                         const TensorView& token_loss, const TensorView& dlogits) {
  const Checks checks("cross_entropy");
  checks.activation("logits", logits, logits.rows, logits.cols);
  checks.vector("targets", targets, logits.rows, {DType::i32});
  checks.vector("weights", weights, logits.rows, {DType::f32});
  checks.vector("scalars", scalars, StepScalar::kCount, {DType::f32});
  checks.vector("token_loss", token_loss, logits.rows, {DType::f32});
  if (!dlogits.empty()) checks.activation("dlogits", dlogits, logits.rows, logits.cols);
}

void check_argmax(const TensorView& logits, const TensorView& out) {
  const Checks checks("argmax");
  checks.activation("logits", logits, logits.rows, logits.cols);
  checks.require(logits.cols > 0, "logits have no column");
  checks.vector("out", out, logits.rows, {DType::i32});
}

void check_accumulate_square_sum(const TensorView& gradient, const TensorView& scalars) {
  const Checks checks("accumulate_square_sum");
  checks.tensor("gradient", gradient, gradient.rows, gradient.cols, {DType::f32});
  checks.contiguous("gradient", gradient);
  checks.vector("scalars", scalars, StepScalar::kCount, {DType::f32});
}

void check_begin_update(const TensorView& scalars) {
  Checks("begin_update").vector("scalars", scalars, StepScalar::kCount, {DType::f32});
}

void check_adamw(const TensorView& scalars, const AdamWTensors& tensors) {
  const Checks checks("adamw");
  const std::int64_t rows = tensors.master.rows;
  const std::int64_t cols = tensors.master.cols;
  checks.vector("scalars", scalars, StepScalar::kCount, {DType::f32});
  checks.tensor("master", tensors.master, rows, cols, {DType::f32});
  checks.tensor("gradient", tensors.gradient, rows, cols, {DType::f32});
  checks.activation("first_moment", tensors.first_moment, rows, cols);
  checks.activation("second_moment", tensors.second_moment, rows, cols);
  checks.contiguous("master", tensors.master);
  checks.contiguous("gradient", tensors.gradient);
  checks.contiguous("first_moment", tensors.first_moment);
  checks.contiguous("second_moment", tensors.second_moment);
  if (tensors.working.empty()) return;
  checks.tensor("working", tensors.working, rows, cols, {DType::bf16});
  checks.contiguous("working", tensors.working);
}

}  // namespace fp8lab::cpu
