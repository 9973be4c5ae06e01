// Operands and their products, without quantization.
#include <algorithm>
#include <cstdint>

#include "emulation/reference/operand_hash.hpp"
#include "emulation/reference/truth/matrix.hpp"
#include "emulation/reference/truth/operations.hpp"

namespace fp8lab::truth {

void run(const ops::Quantize& op) {
  if (op.transpose) {
    matrix(op.operand.codes) = matrix(op.source).transpose();
  } else {
    matrix(op.operand.codes) = matrix(op.source);
  }
}

void run(const ops::Dequantize& op) {
  if (op.transpose != op.operand.has_rows_contiguous()) {
    matrix(op.destination) = matrix(op.operand.codes).transpose();
  } else {
    matrix(op.destination) = matrix(op.operand.codes);
  }
}

void run(const ops::UpdateDelayedScale&) {}

// A transform cancels in the product if nothing is rounded, so operands are not transformed.
void run(const ops::SmoothingFactors&) {}

void run(const ops::RotateBack&) {}

// Nothing is quantized, so the gradient passes through unchanged.
void run(const ops::EstimatorFactor&) {}

// Nothing is clamped, so there is no residual.
void run(const ops::Compensate&) {}

void run(const ops::Gemm& op) {
  const auto a = matrix(op.a.codes), b = matrix(op.b.codes);
  const bool a_transposed = op.a.has_rows_contiguous(), b_transposed = op.b.has_rows_contiguous();
  Matrix product;
  if (a_transposed && b_transposed) {
    product = a.transpose() * b;
  } else if (a_transposed) {
    product = a.transpose() * b.transpose();
  } else if (b_transposed) {
    product = a * b;
  } else {
    product = a * b.transpose();
  }
  product *= static_cast<double>(op.spec.alpha);
  if (!op.bias.empty()) product.rowwise() += matrix(op.bias).row(0);
  if (op.accumulate) {
    matrix(op.d) += product;
  } else {
    matrix(op.d) = product;
  }
}

void run(const ops::MeasureOperand&) { throw Error(kNoStatistics); }

// Nothing is quantized, so no element has an error.
void run(const ops::PartialValues&) { throw Error(kNoStatistics); }

void run(const ops::JoinProducts& op) {
  Matrix sum = matrix(op.partial);
  if (!op.exact.empty()) sum += matrix(op.emulated) - matrix(op.exact);
  if (!op.bias.empty()) sum.rowwise() += matrix(op.bias).row(0);
  if (op.accumulate) sum += matrix(op.d);
  matrix(op.d) = sum;
}

void run(const ops::SquareDistance& op) {
  const Eigen::Map<const Eigen::VectorXd> x(static_cast<const double*>(op.x.data), op.x.size());
  const Eigen::Map<const Eigen::VectorXd> exact(static_cast<const double*>(op.exact.data),
                                                op.x.size());
  constexpr std::int64_t kEach = numerics::kSumChunk;
  for (std::int64_t first = 0; first < op.x.size(); first += kEach) {
    const std::int64_t count = std::min(kEach, op.x.size() - first);
    element(op.sums, first / kEach) =
        (x.segment(first, count) - exact.segment(first, count)).squaredNorm();
  }
}

void run(const ops::HashTensors& op) { reference::hash_tensors(op); }

}  // namespace fp8lab::truth
