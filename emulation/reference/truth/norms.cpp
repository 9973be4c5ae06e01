// Norms of rows and of heads.
#include <cmath>

#include "emulation/reference/truth/matrix.hpp"
#include "emulation/reference/truth/operations.hpp"

namespace fp8lab::truth {

void run(const ops::RmsNormForward& op) {
  const NormHeads heads = NormHeads::of(op.x, op.weight);
  const std::int64_t cols = heads.cols;
  for (std::int64_t i = 0; i < op.x.rows * heads.count; ++i) {
    const std::int64_t t = heads.row(i), first = heads.first(i);
    const Eigen::ArrayXXd row = matrix(op.x).row(t).segment(first, cols).array();
    const double scale = 1.0 / std::sqrt(row.square().mean() + static_cast<double>(op.epsilon));
    element(op.rstd, i) = scale;
    matrix(op.y).row(t).segment(first, cols) =
        (row * scale * matrix(op.weight).row(0).array()).matrix();
  }
}

void run(const ops::RmsNormBackward& op) {
  const auto gain = matrix(op.weight).row(0).array();
  const NormHeads heads = NormHeads::of(op.x, op.weight);
  const std::int64_t cols = heads.cols;
  for (std::int64_t i = 0; i < op.x.rows * heads.count; ++i) {
    const std::int64_t t = heads.row(i), first = heads.first(i);
    const double scale = element(op.rstd, i);
    const Eigen::ArrayXXd normalized = matrix(op.x).row(t).segment(first, cols).array() * scale;
    const Eigen::ArrayXXd upstream = matrix(op.dy).row(t).segment(first, cols).array();
    const Eigen::ArrayXXd inner = upstream * gain;
    matrix(op.dweight).row(0).array() += upstream * normalized;
    matrix(op.dx).row(t).segment(first, cols) =
        (scale * (inner - normalized * (inner * normalized).mean())).matrix();
  }
}

void run(const ops::LayerNormForward& op) {
  const auto gain = matrix(op.weight).row(0).array(), shift = matrix(op.bias).row(0).array();
  for (std::int64_t t = 0; t < op.x.rows; ++t) {
    const Eigen::ArrayXXd row = matrix(op.x).row(t).array();
    const double mean = row.mean();
    const double variance = (row - mean).square().mean();
    const double scale = 1.0 / std::sqrt(variance + static_cast<double>(op.epsilon));
    element(op.mean, t) = mean;
    element(op.rstd, t) = scale;
    matrix(op.y).row(t) = ((row - mean) * scale * gain + shift).matrix();
  }
}

void run(const ops::LayerNormBackward& op) {
  const auto gain = matrix(op.weight).row(0).array();
  for (std::int64_t t = 0; t < op.x.rows; ++t) {
    const double scale = element(op.rstd, t);
    const Eigen::ArrayXXd normalized = (matrix(op.x).row(t).array() - element(op.mean, t)) * scale;
    const Eigen::ArrayXXd upstream = matrix(op.dy).row(t).array();
    const Eigen::ArrayXXd inner = upstream * gain;
    matrix(op.dweight).row(0).array() += upstream * normalized;
    matrix(op.dbias).row(0).array() += upstream;
    matrix(op.dx).row(t) =
        (scale * (inner - inner.mean() - normalized * (inner * normalized).mean())).matrix();
  }
}

}  // namespace fp8lab::truth
