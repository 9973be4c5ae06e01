// Attention and rotary positions.
#include <cmath>
#include <limits>

#include "emulation/reference/truth/matrix.hpp"
#include "emulation/reference/truth/operations.hpp"

namespace fp8lab::truth {
namespace {

struct Head {
  TensorView q, k, v;
};

TensorView part(const TensorView& view, const AttentionShape& shape, std::int64_t b,
                std::int64_t head) {
  return view.row_range(b * shape.sequence, shape.sequence)
      .columns(head * shape.head_dim, shape.head_dim);
}

Head select(const AttentionShape& shape, std::int64_t b, std::int64_t h, const TensorView& q,
            const TensorView& k, const TensorView& v) {
  const std::int64_t kv_head = h / (shape.heads / shape.kv_heads);
  return {part(q, shape, b, h), part(k, shape, b, kv_head), part(v, shape, b, kv_head)};
}

double scale_of(const AttentionShape& shape) {
  const double scale = shape.softmax_scale;
  return scale > 0.0 ? scale : 1.0 / std::sqrt(static_cast<double>(shape.head_dim));
}

/// Returns the attention probabilities. The queries belong to the last keys. `starts` holds one
/// document start per query; null: all keys are of one document.
Matrix probabilities(const AttentionShape& shape, const Head& head, const std::int32_t* starts,
                     Eigen::VectorXd& log_sum) {
  const double scale = scale_of(shape);
  Matrix p = matrix(head.q) * matrix(head.k).transpose() * scale;
  const std::int64_t before = p.cols() - p.rows();
  for (std::int64_t i = 0; i < p.rows(); ++i) {
    const std::int64_t first = shape.first_key(starts == nullptr ? 0 : starts[i], before + i);
    for (std::int64_t j = 0; j < p.cols(); ++j) {
      if (j > before + i || j < first) p(i, j) = -std::numeric_limits<double>::infinity();
    }
    const double largest = p.row(i).maxCoeff();
    p.row(i) = (p.row(i).array() - largest).exp().matrix();
    const double total = p.row(i).sum();
    p.row(i) /= total;
    log_sum[i] = largest + std::log(total);
  }
  return p;
}

}  // namespace

void run(const ops::AttentionForward& op) {
  for (std::int64_t b = 0; b < op.shape.batch; ++b) {
    for (std::int64_t h = 0; h < op.shape.heads; ++h) {
      const Head head = select(op.shape, b, h, op.q, op.k, op.v);
      Eigen::VectorXd log_sum(op.shape.sequence);
      const std::int32_t* starts = op.document_start.row<std::int32_t>(0) + b * op.shape.sequence;
      const Matrix p = probabilities(op.shape, head, starts, log_sum);
      matrix(part(op.out, op.shape, b, h)) = p * matrix(head.v);
      for (std::int64_t i = 0; i < op.shape.sequence; ++i) {
        op.lse.row<double>(h)[b * op.shape.sequence + i] = log_sum[i] / std::log(2.0);
      }
    }
  }
}

void run(const ops::AttentionBackward& op) {
  matrix(op.dk).setZero();
  matrix(op.dv).setZero();
  const std::int64_t group = op.shape.heads / op.shape.kv_heads;
  const double scale = scale_of(op.shape);
  for (std::int64_t b = 0; b < op.shape.batch; ++b) {
    for (std::int64_t h = 0; h < op.shape.heads; ++h) {
      const Head head = select(op.shape, b, h, op.q, op.k, op.v);
      Eigen::VectorXd log_sum(op.shape.sequence);
      const std::int32_t* starts = op.document_start.row<std::int32_t>(0) + b * op.shape.sequence;
      const Matrix p = probabilities(op.shape, head, starts, log_sum);
      const Matrix upstream = matrix(part(op.dout, op.shape, b, h));
      const Matrix output = matrix(part(op.out, op.shape, b, h));
      matrix(part(op.dv, op.shape, b, h / group)) += p.transpose() * upstream;
      Matrix ds = upstream * matrix(head.v).transpose();
      ds.colwise() -= upstream.cwiseProduct(output).rowwise().sum();
      ds = (p.array() * ds.array() * scale).matrix();
      matrix(part(op.dq, op.shape, b, h)) = ds * matrix(head.k);
      matrix(part(op.dk, op.shape, b, h / group)) += ds.transpose() * matrix(head.q);
    }
  }
}

void run(const ops::AttentionCached& op) {
  const std::int64_t group = op.shape.heads / op.shape.kv_heads, d = op.shape.head_dim;
  for (std::int64_t b = 0; b < op.shape.batch; ++b) {
    const std::int64_t start = op.query_start.row<std::int32_t>(0)[b];
    const std::int64_t count = op.query_start.row<std::int32_t>(0)[b + 1] - start;
    const std::int64_t held = op.cached.row<std::int32_t>(0)[b], first = b * op.shape.sequence;
    if (count == 0) continue;
    run(ops::Copy{op.k.row_range(start, count), op.k_cache.row_range(first + held, count)});
    run(ops::Copy{op.v.row_range(start, count), op.v_cache.row_range(first + held, count)});
    for (std::int64_t h = 0; h < op.shape.heads; ++h) {
      const auto keys = [&](const TensorView& cache) {
        return cache.row_range(first, held + count).columns(h / group * d, d);
      };
      const Head head{op.q.row_range(start, count).columns(h * d, d), keys(op.k_cache),
                      keys(op.v_cache)};
      Eigen::VectorXd log_sum(count);
      matrix(op.out.row_range(start, count).columns(h * d, d)) =
          probabilities(op.shape, head, nullptr, log_sum) * matrix(head.v);
    }
  }
}

void run(const ops::Rope& op) {
  const std::int64_t half = op.head_dim / 2;
  for (std::int64_t t = 0; t < op.x.rows; ++t) {
    const std::int32_t position = op.positions.row<std::int32_t>(0)[t];
    for (std::int64_t first = 0; first < op.x.cols; first += op.head_dim) {
      double* head = op.x.row<double>(t) + first;
      for (std::int64_t i = 0; i < half; ++i) {
        const double c = op.cosine.row<double>(position)[i];
        const double s =
            op.inverse ? -op.sine.row<double>(position)[i] : op.sine.row<double>(position)[i];
        const double low = head[i], high = head[i + half];
        head[i] = low * c - high * s;
        head[i + half] = high * c + low * s;
      }
    }
  }
}

}  // namespace fp8lab::truth
