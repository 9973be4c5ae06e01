#include "emulation/ops/gemm/join_products.hpp"

#include "emulation/ops/checks.hpp"

namespace fp8lab::ops {

void JoinProducts::check() const {
  const Checks checks("join_products");
  checks.activation("D", d, d.rows, d.cols);
  checks.tensor("partial product", partial, d.rows, d.cols, {DType::f32});
  checks.require(emulated.empty() == exact.empty(),
                 "the emulated and the exact product are given together");
  if (!exact.empty()) {
    checks.tensor("emulated product", emulated, d.rows, d.cols, {DType::f32});
    checks.tensor("exact product", exact, d.rows, d.cols, {DType::f32});
  }
  if (!bias.empty()) checks.vector("bias", bias, d.cols, {DType::bf16, DType::f32});
}

}  // namespace fp8lab::ops
