#include "emulation/cpu/truth_backend.hpp"

#include "emulation/api/error.hpp"
#include "emulation/api/machine.hpp"
#include "emulation/cpu/operations.hpp"

#include <fmt/format.h>

#include <Eigen/Dense>
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

namespace fp8lab::cpu {
namespace {

using Matrix = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using Map = Eigen::Map<Matrix, 0, Eigen::OuterStride<>>;

Map matrix(const TensorView& view) {
  FP8LAB_ASSERT(view.dtype == DType::f64);
  return {view.row<double>(0), view.rows, view.cols, Eigen::OuterStride<>(view.row_stride)};
}

double& element(const TensorView& view, std::int64_t column) { return view.row<double>(0)[column]; }

class TruthBackend final : public Backend {
 public:
  explicit TruthBackend(int threads) {
    if (checked_threads(threads, "threads") > 0) Eigen::setNbThreads(threads);
  }

  std::string name() const override { return "truth"; }
  std::string device() const override { return "CPU, double precision"; }
  DType storage(DType wanted) const override {
    return wanted == DType::i32 ? DType::i32 : DType::f64;
  }
  Support supports(const GemmSpec&, const QuantSpec&, const QuantSpec&) const override {
    return {};
  }
  Support supports(const QuantSpec&) const override { return {}; }

  TensorView allocate(DType dtype, std::int64_t rows, std::int64_t cols) override {
    FP8LAB_ASSERT(rows >= 0 && cols >= 0);
    const double needed =
        static_cast<double>(rows) * static_cast<double>(cols) * static_cast<double>(size_of(dtype));
    require_memory(needed, fmt::format("allocate: a tensor of shape ({}, {})", rows, cols));
    const auto bytes = static_cast<std::size_t>(rows * cols) * size_of(dtype);
    buffers_.emplace_back((bytes + 7) / 8, 0.0);
    return {buffers_.back().data(), dtype, rows, cols, cols};
  }
  std::size_t memory_mark() const override { return buffers_.size(); }
  void release_to(std::size_t mark) override { buffers_.resize(mark); }
  std::size_t memory_bytes() const override {
    std::size_t total = 0;
    for (const auto& buffer : buffers_) total += buffer.size() * sizeof(double);
    return total;
  }
  void upload(const TensorView& destination, const void* source) override {
    const auto width = static_cast<std::size_t>(destination.cols) * size_of(destination.dtype);
    for (std::int64_t r = 0; r < destination.rows; ++r) {
      std::memcpy(row_bytes(destination, r),
                  static_cast<const std::byte*>(source) + static_cast<std::size_t>(r) * width,
                  width);
    }
  }
  void download(void* destination, const TensorView& source) override {
    const auto width = static_cast<std::size_t>(source.cols) * size_of(source.dtype);
    for (std::int64_t r = 0; r < source.rows; ++r) {
      std::memcpy(static_cast<std::byte*>(destination) + static_cast<std::size_t>(r) * width,
                  row_bytes(source, r), width);
    }
  }
  void fill_zero(const TensorView& view) override {
    for (std::int64_t r = 0; r < view.rows; ++r) {
      std::memset(row_bytes(view, r), 0, static_cast<std::size_t>(view.cols) * size_of(view.dtype));
    }
  }
  void copy(const TensorView& source, const TensorView& destination) override {
    matrix(destination) = matrix(source);
  }
  void synchronize() override {}

  void quantize(const TensorView& source, bool transpose, const RandomKey&, const TensorView&,
                QuantizedOperand& operand) override {
    if (transpose) {
      matrix(operand.codes) = matrix(source).transpose();
    } else {
      matrix(operand.codes) = matrix(source);
    }
  }
  void dequantize(const QuantizedOperand& operand, bool transpose,
                  const TensorView& destination) override {
    if (transpose) {
      matrix(destination) = matrix(operand.codes).transpose();
    } else {
      matrix(destination) = matrix(operand.codes);
    }
  }
  void update_delayed_scale(const QuantSpec&, const TensorView&) override {}
  // A transform cancels in the product without roundings, so operands are not transformed.
  void smoothing_factors(const Transform&, const TensorView&, bool, const TensorView&, bool,
                         const TensorView&) override {}
  // Nor clamped, so that nothing has been taken away.
  void compensate(const QuantizedOperand&, const TensorView&, bool, const QuantizedOperand&,
                  const TensorView&, bool, const TensorView&) override {}
  void gemm(const GemmSpec&, const QuantizedOperand& a, const QuantizedOperand& b,
            const TensorView& bias, bool accumulate, const TensorView& d) override {
    Matrix product = matrix(a.codes) * matrix(b.codes).transpose();
    if (!bias.empty()) product.rowwise() += matrix(bias).row(0);
    if (accumulate) {
      matrix(d) += product;
    } else {
      matrix(d) = product;
    }
  }
  void operand_statistics(const TensorView&, bool, const QuantizedOperand&,
                          const TensorView&) override {
    throw Error("backend 'truth' quantizes nothing, so it has no operand statistics");
  }

  void embedding_forward(const TensorView& tokens, const TensorView& table,
                         const TensorView& out) override {
    for (std::int64_t t = 0; t < tokens.cols; ++t) {
      matrix(out).row(t) = matrix(table).row(tokens.row<std::int32_t>(0)[t]);
    }
  }
  void embedding_backward(const TensorView& tokens, const TensorView& dout,
                          const TensorView& dtable) override {
    for (std::int64_t t = 0; t < tokens.cols; ++t) {
      matrix(dtable).row(tokens.row<std::int32_t>(0)[t]) += matrix(dout).row(t);
    }
  }
  void rmsnorm_forward(const TensorView& x, const TensorView& weight, float epsilon,
                       const TensorView& y, const TensorView& rstd) override {
    const NormHeads heads = NormHeads::of(x, weight);
    const std::int64_t cols = heads.cols;
    for (std::int64_t i = 0; i < x.rows * heads.count; ++i) {
      const std::int64_t t = heads.row(i), first = heads.first(i);
      const Eigen::ArrayXXd row = matrix(x).row(t).segment(first, cols).array();
      const double scale = 1.0 / std::sqrt(row.square().mean() + static_cast<double>(epsilon));
      element(rstd, i) = scale;
      matrix(y).row(t).segment(first, cols) =
          (row * scale * matrix(weight).row(0).array()).matrix();
    }
  }
  void rmsnorm_backward(const TensorView& dy, const TensorView& x, const TensorView& weight,
                        const TensorView& rstd, const TensorView& dx,
                        const TensorView& dweight) override {
    const auto gain = matrix(weight).row(0).array();
    const NormHeads heads = NormHeads::of(x, weight);
    const std::int64_t cols = heads.cols;
    for (std::int64_t i = 0; i < x.rows * heads.count; ++i) {
      const std::int64_t t = heads.row(i), first = heads.first(i);
      const double scale = element(rstd, i);
      const Eigen::ArrayXXd normalized = matrix(x).row(t).segment(first, cols).array() * scale;
      const Eigen::ArrayXXd upstream = matrix(dy).row(t).segment(first, cols).array();
      const Eigen::ArrayXXd inner = upstream * gain;
      matrix(dweight).row(0).array() += upstream * normalized;
      matrix(dx).row(t).segment(first, cols) =
          (scale * (inner - normalized * (inner * normalized).mean())).matrix();
    }
  }
  void add(const TensorView& a, const TensorView& b, const TensorView& sum) override {
    matrix(sum) = (matrix(a) + matrix(b)).eval();
  }
  void bias_backward(const TensorView& dy, const TensorView& dbias) override {
    matrix(dbias) += matrix(dy).colwise().sum();
  }
  void rope(const TensorView& x, const TensorView& positions, const TensorView& cosine,
            const TensorView& sine, std::int64_t head_dim, bool inverse) override {
    const std::int64_t half = head_dim / 2;
    for (std::int64_t t = 0; t < x.rows; ++t) {
      const std::int32_t position = positions.row<std::int32_t>(0)[t];
      for (std::int64_t first = 0; first < x.cols; first += head_dim) {
        double* head = x.row<double>(t) + first;
        for (std::int64_t i = 0; i < half; ++i) {
          const double c = cosine.row<double>(position)[i];
          const double s = inverse ? -sine.row<double>(position)[i] : sine.row<double>(position)[i];
          const double low = head[i], high = head[i + half];
          head[i] = low * c - high * s;
          head[i + half] = high * c + low * s;
        }
      }
    }
  }

  void attention_forward(const AttentionShape& shape, const TensorView& q, const TensorView& k,
                         const TensorView& v, const TensorView& document_start,
                         const TensorView& out, const TensorView& lse) override {
    for (std::int64_t b = 0; b < shape.batch; ++b) {
      for (std::int64_t h = 0; h < shape.heads; ++h) {
        const Head head = select(shape, b, h, q, k, v);
        Eigen::VectorXd log_sum(shape.sequence);
        const std::int32_t* starts = document_start.row<std::int32_t>(0) + b * shape.sequence;
        const Matrix p = probabilities(head, starts, log_sum);
        matrix(part(out, shape, b, h)) = p * matrix(head.v);
        for (std::int64_t i = 0; i < shape.sequence; ++i) {
          lse.row<double>(h)[b * shape.sequence + i] = log_sum[i] / std::log(2.0);
        }
      }
    }
  }
  void attention_backward(const AttentionShape& shape, const TensorView& q, const TensorView& k,
                          const TensorView& v, const TensorView& document_start,
                          const TensorView& out, const TensorView&, const TensorView& dout,
                          const TensorView& dq, const TensorView& dk,
                          const TensorView& dv) override {
    fill_zero(dk);
    fill_zero(dv);
    const std::int64_t group = shape.heads / shape.kv_heads;
    const double scale = 1.0 / std::sqrt(static_cast<double>(shape.head_dim));
    for (std::int64_t b = 0; b < shape.batch; ++b) {
      for (std::int64_t h = 0; h < shape.heads; ++h) {
        const Head head = select(shape, b, h, q, k, v);
        Eigen::VectorXd log_sum(shape.sequence);
        const std::int32_t* starts = document_start.row<std::int32_t>(0) + b * shape.sequence;
        const Matrix p = probabilities(head, starts, log_sum);
        const Matrix upstream = matrix(part(dout, shape, b, h));
        const Matrix output = matrix(part(out, shape, b, h));
        matrix(part(dv, shape, b, h / group)) += p.transpose() * upstream;
        Matrix ds = upstream * matrix(head.v).transpose();
        ds.colwise() -= upstream.cwiseProduct(output).rowwise().sum();
        ds = (p.array() * ds.array() * scale).matrix();
        matrix(part(dq, shape, b, h)) = ds * matrix(head.k);
        matrix(part(dk, shape, b, h / group)) += ds.transpose() * matrix(head.q);
      }
    }
  }

  void attention_cached(const AttentionShape& shape, const TensorView& q, const TensorView& k,
                        const TensorView& v, const TensorView& query_start,
                        const TensorView& cached, const TensorView& k_cache,
                        const TensorView& v_cache, const TensorView& out) override {
    const std::int64_t group = shape.heads / shape.kv_heads, d = shape.head_dim;
    for (std::int64_t b = 0; b < shape.batch; ++b) {
      const std::int64_t start = query_start.row<std::int32_t>(0)[b];
      const std::int64_t count = query_start.row<std::int32_t>(0)[b + 1] - start;
      const std::int64_t held = cached.row<std::int32_t>(0)[b], first = b * shape.sequence;
      if (count == 0) continue;
      copy(k.row_range(start, count), k_cache.row_range(first + held, count));
      copy(v.row_range(start, count), v_cache.row_range(first + held, count));
      for (std::int64_t h = 0; h < shape.heads; ++h) {
        const auto keys = [&](const TensorView& cache) {
          return cache.row_range(first, held + count).columns(h / group * d, d);
        };
        const Head head{q.row_range(start, count).columns(h * d, d), keys(k_cache), keys(v_cache)};
        Eigen::VectorXd log_sum(count);
        matrix(out.row_range(start, count).columns(h * d, d)) =
            probabilities(head, nullptr, log_sum) * matrix(head.v);
      }
    }
  }

  void swiglu_forward(const TensorView& gate_up, const TensorView& out) override {
    const auto gate = matrix(gate_up.columns(0, out.cols)).array();
    const auto up = matrix(gate_up.columns(out.cols, out.cols)).array();
    matrix(out) = (gate / (1.0 + (-gate).exp()) * up).matrix();
  }
  void swiglu_backward(const TensorView& gate_up, const TensorView& dout,
                       const TensorView& dgate_up) override {
    const auto gate = matrix(gate_up.columns(0, dout.cols)).array();
    const auto up = matrix(gate_up.columns(dout.cols, dout.cols)).array();
    const auto upstream = matrix(dout).array();
    const Eigen::ArrayXXd sigmoid = 1.0 / (1.0 + (-gate).exp());
    const Eigen::ArrayXXd dgate = upstream * up * sigmoid * (1.0 + gate * (1.0 - sigmoid));
    const Eigen::ArrayXXd dup = upstream * gate * sigmoid;
    matrix(dgate_up.columns(0, dout.cols)) = dgate.matrix();
    matrix(dgate_up.columns(dout.cols, dout.cols)) = dup.matrix();
  }
  void cross_entropy(const TensorView& logits, const TensorView& targets, const TensorView& weights,
                     const TensorView& scalars, const TensorView& token_loss,
                     const TensorView& dlogits) override {
    double sum = 0;
    for (std::int64_t t = 0; t < logits.rows; ++t) {
      const Eigen::ArrayXXd row = matrix(logits).row(t).array();
      const double weight = static_cast<double>(weights.row<float>(0)[t]);
      const std::int32_t target = targets.row<std::int32_t>(0)[t];
      const double largest = row.maxCoeff();
      const Eigen::ArrayXXd exponentials = (row - largest).exp();
      const double total = exponentials.sum();
      const double loss = weight * (std::log(total) + largest - row(0, target));
      element(token_loss, t) = loss;
      sum += loss;
      if (dlogits.empty()) continue;
      const double factor = weight * element(scalars, StepScalar::kInverseTokens);
      matrix(dlogits).row(t) = (exponentials / total * factor).matrix();
      matrix(dlogits)(t, target) -= factor;
    }
    element(scalars, StepScalar::kLossSum) += sum;
  }
  void argmax(const TensorView& logits, const TensorView& out) override {
    for (std::int64_t t = 0; t < logits.rows; ++t) {
      Eigen::Index best = 0;
      matrix(logits).row(t).maxCoeff(&best);
      out.row<std::int32_t>(0)[t] = static_cast<std::int32_t>(best);
    }
  }

  void accumulate_square_sum(const TensorView& gradient, const TensorView& scalars) override {
    element(scalars, StepScalar::kGradNormSquared) += matrix(gradient).squaredNorm();
  }
  void begin_update(const AdamWSpec& spec, const TensorView& scalars) override {
    const double norm = std::sqrt(element(scalars, StepScalar::kGradNormSquared));
    element(scalars, StepScalar::kGradNorm) = norm;
    const auto limit = static_cast<double>(spec.clip_norm);
    element(scalars, StepScalar::kClipFactor) =
        limit > 0 ? std::min(1.0, limit / (norm + 1e-6)) : 1.0;
    multiply_power(element(scalars, StepScalar::kBeta1Power), spec.beta1);
    multiply_power(element(scalars, StepScalar::kBeta2Power), spec.beta2);
  }
  void adamw(const AdamWSpec& spec, const TensorView& scalars, float decay_mask,
             const AdamWTensors& tensors) override {
    const double rate = element(scalars, StepScalar::kLearningRate);
    const double beta1 = static_cast<double>(spec.beta1), beta2 = static_cast<double>(spec.beta2);
    const Eigen::ArrayXXd gradient =
        matrix(tensors.gradient).array() * element(scalars, StepScalar::kClipFactor);
    auto first = matrix(tensors.first_moment).array();
    auto second = matrix(tensors.second_moment).array();
    first = beta1 * first + (1 - beta1) * gradient;
    second = beta2 * second + (1 - beta2) * gradient.square();
    const double correction1 = 1 - element(scalars, StepScalar::kBeta1Power);
    const double correction2 = 1 - element(scalars, StepScalar::kBeta2Power);
    auto master = matrix(tensors.master).array();
    master *= 1 - rate * static_cast<double>(spec.weight_decay) * static_cast<double>(decay_mask);
    master -= rate / correction1 * first /
              ((second / correction2).sqrt() + static_cast<double>(spec.epsilon));
  }

 private:
  struct Head {
    TensorView q, k, v;
  };

  static std::byte* row_bytes(const TensorView& view, std::int64_t r) {
    return static_cast<std::byte*>(view.data) +
           static_cast<std::size_t>(r * view.row_stride) * size_of(view.dtype);
  }
  /// A fresh power of 0 stands for beta^0 = 1.
  static void multiply_power(double& power, float beta) {
    power = (power == 0 ? 1.0 : power) * static_cast<double>(beta);
  }
  static TensorView part(const TensorView& view, const AttentionShape& shape, std::int64_t b,
                         std::int64_t head) {
    return view.row_range(b * shape.sequence, shape.sequence)
        .columns(head * shape.head_dim, shape.head_dim);
  }
  static Head select(const AttentionShape& shape, std::int64_t b, std::int64_t h,
                     const TensorView& q, const TensorView& k, const TensorView& v) {
    const std::int64_t kv_head = h / (shape.heads / shape.kv_heads);
    return {part(q, shape, b, h), part(k, shape, b, kv_head), part(v, shape, b, kv_head)};
  }
  /// The queries are those of the last keys. `starts` holds one document start a query; null: all
  /// keys are of one document.
  static Matrix probabilities(const Head& head, const std::int32_t* starts,
                              Eigen::VectorXd& log_sum) {
    const double scale = 1.0 / std::sqrt(static_cast<double>(head.q.cols));
    Matrix p = matrix(head.q) * matrix(head.k).transpose() * scale;
    const std::int64_t before = p.cols() - p.rows();
    for (std::int64_t i = 0; i < p.rows(); ++i) {
      const std::int64_t first = starts == nullptr ? 0 : starts[i];
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

  std::vector<std::vector<double>> buffers_;
};

}  // namespace

std::unique_ptr<Backend> make_truth_backend(int threads) {
  return std::make_unique<TruthBackend>(threads);
}

}  // namespace fp8lab::cpu
