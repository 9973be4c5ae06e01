#include "emulation/reference/truth_backend.hpp"

#include "emulation/reference/operand_hash.hpp"

#include "emulation/base/error.hpp"
#include "emulation/base/machine.hpp"

#include <fmt/format.h>

#include <Eigen/Dense>
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

namespace fp8lab::reference {
namespace {

using Matrix = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using Map = Eigen::Map<Matrix, 0, Eigen::OuterStride<>>;

Map matrix(const TensorView& view) {
  FP8LAB_ASSERT(view.dtype == DType::f64);
  return {view.row<double>(0), view.rows, view.cols, Eigen::OuterStride<>(view.row_stride)};
}

double& element(const TensorView& view, std::int64_t column) { return view.row<double>(0)[column]; }

constexpr double kSqrt2OverPi = 0.797884560802865355880;

/// The tanh in GELU.
Eigen::ArrayXXd gelu_tanh(const Eigen::ArrayXXd& x) {
  return (kSqrt2OverPi * (x + 0.044715 * x.cube())).tanh();
}

/// Recipes are not applied, so there is nothing to refuse but what measures their effect.
template <class Op>
Support refusal(const Op&) {
  return {};
}

Support refusal(const ops::MeasureOperand&) {
  return {"backend 'truth' quantizes nothing, so it has no operand statistics"};
}

class TruthBackend final : public Backend {
 public:
  using Backend::run;

  explicit TruthBackend(int threads) {
    if (checked_threads(threads, "threads") > 0) Eigen::setNbThreads(threads);
  }

  std::string name() const override { return "truth"; }
  std::string device() const override { return "CPU, double precision"; }
  DType storage(DType wanted) const override {
    return wanted == DType::i32 ? DType::i32 : DType::f64;
  }
  bool is_on_host() const override { return true; }

  using Backend::supports;
#define FP8LAB_OPERATION(Name) \
  Support supports(const ops::Name& op) const override { return refusal(op); }
  FP8LAB_FOR_EACH_OPERATION(FP8LAB_OPERATION)
#undef FP8LAB_OPERATION

  std::size_t allocation_bytes(DType dtype, std::int64_t rows, std::int64_t cols) const override {
    FP8LAB_ASSERT(rows >= 0 && cols >= 0);
    const auto bytes = static_cast<std::size_t>(rows * cols) * size_of(dtype);
    return (bytes + 7) / 8 * 8;
  }
  TensorView allocate(DType dtype, std::int64_t rows, std::int64_t cols) override {
    FP8LAB_ASSERT(rows >= 0 && cols >= 0);
    const double needed =
        static_cast<double>(rows) * static_cast<double>(cols) * static_cast<double>(size_of(dtype));
    require_memory(needed, fmt::format("allocate: a tensor of shape ({}, {})", rows, cols));
    buffers_.emplace_back(allocation_bytes(dtype, rows, cols) / sizeof(double), 0.0);
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
  void run(const ops::Copy& op) override { matrix(op.destination) = matrix(op.source); }
  void synchronize() override {}

  void run(const ops::Quantize& op) override {
    if (op.transpose) {
      matrix(op.operand.codes) = matrix(op.source).transpose();
    } else {
      matrix(op.operand.codes) = matrix(op.source);
    }
  }
  void run(const ops::Dequantize& op) override {
    if (op.transpose) {
      matrix(op.destination) = matrix(op.operand.codes).transpose();
    } else {
      matrix(op.destination) = matrix(op.operand.codes);
    }
  }
  void run(const ops::UpdateDelayedScale&) override {}
  // A transform cancels in the product without roundings, so operands are not transformed.
  void run(const ops::SmoothingFactors&) override {}
  void run(const ops::RotateBack&) override {}
  // Nor clamped, so that nothing has been taken away.
  void run(const ops::Compensate&) override {}
  void run(const ops::Gemm& op) override {
    Matrix product = matrix(op.a.codes) * matrix(op.b.codes).transpose();
    if (!op.bias.empty()) product.rowwise() += matrix(op.bias).row(0);
    if (op.accumulate) {
      matrix(op.d) += product;
    } else {
      matrix(op.d) = product;
    }
  }
  void run(const ops::MeasureOperand& op) override { throw Error(refusal(op).reason); }

  void run(const ops::EmbeddingForward& op) override {
    for (std::int64_t t = 0; t < op.tokens.cols; ++t) {
      matrix(op.out).row(t) = matrix(op.table).row(op.tokens.row<std::int32_t>(0)[t]);
    }
  }
  void run(const ops::EmbeddingBackward& op) override {
    for (std::int64_t t = 0; t < op.tokens.cols; ++t) {
      matrix(op.dtable).row(op.tokens.row<std::int32_t>(0)[t]) += matrix(op.dout).row(t);
    }
  }
  void run(const ops::RmsNormForward& op) override {
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
  void run(const ops::RmsNormBackward& op) override {
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
  void run(const ops::LayerNormForward& op) override {
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
  void run(const ops::LayerNormBackward& op) override {
    const auto gain = matrix(op.weight).row(0).array();
    for (std::int64_t t = 0; t < op.x.rows; ++t) {
      const double scale = element(op.rstd, t);
      const Eigen::ArrayXXd normalized =
          (matrix(op.x).row(t).array() - element(op.mean, t)) * scale;
      const Eigen::ArrayXXd upstream = matrix(op.dy).row(t).array();
      const Eigen::ArrayXXd inner = upstream * gain;
      matrix(op.dweight).row(0).array() += upstream * normalized;
      matrix(op.dbias).row(0).array() += upstream;
      matrix(op.dx).row(t) =
          (scale * (inner - inner.mean() - normalized * (inner * normalized).mean())).matrix();
    }
  }
  void run(const ops::Add& op) override { matrix(op.sum) = (matrix(op.a) + matrix(op.b)).eval(); }
  void run(const ops::BiasBackward& op) override {
    matrix(op.dbias) += matrix(op.dy).colwise().sum();
  }
  void run(const ops::Rope& op) override {
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

  void run(const ops::AttentionForward& op) override {
    for (std::int64_t b = 0; b < op.shape.batch; ++b) {
      for (std::int64_t h = 0; h < op.shape.heads; ++h) {
        const Head head = select(op.shape, b, h, op.q, op.k, op.v);
        Eigen::VectorXd log_sum(op.shape.sequence);
        const std::int32_t* starts = op.document_start.row<std::int32_t>(0) + b * op.shape.sequence;
        const Matrix p = probabilities(head, starts, log_sum);
        matrix(part(op.out, op.shape, b, h)) = p * matrix(head.v);
        for (std::int64_t i = 0; i < op.shape.sequence; ++i) {
          op.lse.row<double>(h)[b * op.shape.sequence + i] = log_sum[i] / std::log(2.0);
        }
      }
    }
  }
  void run(const ops::AttentionBackward& op) override {
    fill_zero(op.dk);
    fill_zero(op.dv);
    const std::int64_t group = op.shape.heads / op.shape.kv_heads;
    const double scale = 1.0 / std::sqrt(static_cast<double>(op.shape.head_dim));
    for (std::int64_t b = 0; b < op.shape.batch; ++b) {
      for (std::int64_t h = 0; h < op.shape.heads; ++h) {
        const Head head = select(op.shape, b, h, op.q, op.k, op.v);
        Eigen::VectorXd log_sum(op.shape.sequence);
        const std::int32_t* starts = op.document_start.row<std::int32_t>(0) + b * op.shape.sequence;
        const Matrix p = probabilities(head, starts, log_sum);
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

  void run(const ops::AttentionCached& op) override {
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
            probabilities(head, nullptr, log_sum) * matrix(head.v);
      }
    }
  }

  void run(const ops::SwigluForward& op) override {
    const auto gate = matrix(op.gate_up.columns(0, op.out.cols)).array();
    const auto up = matrix(op.gate_up.columns(op.out.cols, op.out.cols)).array();
    matrix(op.out) = (gate / (1.0 + (-gate).exp()) * up).matrix();
  }
  void run(const ops::SwigluBackward& op) override {
    const auto gate = matrix(op.gate_up.columns(0, op.dout.cols)).array();
    const auto up = matrix(op.gate_up.columns(op.dout.cols, op.dout.cols)).array();
    const auto upstream = matrix(op.dout).array();
    const Eigen::ArrayXXd sigmoid = 1.0 / (1.0 + (-gate).exp());
    const Eigen::ArrayXXd dgate = upstream * up * sigmoid * (1.0 + gate * (1.0 - sigmoid));
    const Eigen::ArrayXXd dup = upstream * gate * sigmoid;
    matrix(op.dgate_up.columns(0, op.dout.cols)) = dgate.matrix();
    matrix(op.dgate_up.columns(op.dout.cols, op.dout.cols)) = dup.matrix();
  }
  void run(const ops::GeluForward& op) override {
    const auto x = matrix(op.x).array();
    matrix(op.out) = (0.5 * x * (1.0 + gelu_tanh(x))).matrix();
  }
  void run(const ops::GeluBackward& op) override {
    const Eigen::ArrayXXd x = matrix(op.x).array();
    const Eigen::ArrayXXd t = gelu_tanh(x);
    const Eigen::ArrayXXd inner = kSqrt2OverPi * (1.0 + 3 * 0.044715 * x.square());
    const Eigen::ArrayXXd slope = 0.5 * (1.0 + t) + 0.5 * x * (1.0 - t.square()) * inner;
    matrix(op.dx) = (matrix(op.dout).array() * slope).matrix();
  }
  void run(const ops::CrossEntropy& op) override {
    double sum = 0;
    for (std::int64_t t = 0; t < op.logits.rows; ++t) {
      const Eigen::ArrayXXd row = matrix(op.logits).row(t).array();
      const double weight = static_cast<double>(op.weights.row<float>(0)[t]);
      const std::int32_t target = op.targets.row<std::int32_t>(0)[t];
      const double largest = row.maxCoeff();
      const Eigen::ArrayXXd exponentials = (row - largest).exp();
      const double total = exponentials.sum();
      const double loss = weight * (std::log(total) + largest - row(0, target));
      element(op.token_loss, t) = loss;
      sum += loss;
      if (op.dlogits.empty()) continue;
      const double factor = weight * element(op.scalars, StepScalar::kInverseTokens);
      matrix(op.dlogits).row(t) = (exponentials / total * factor).matrix();
      matrix(op.dlogits)(t, target) -= factor;
    }
    element(op.scalars, StepScalar::kLossSum) += sum;
  }
  void run(const ops::Argmax& op) override {
    for (std::int64_t t = 0; t < op.logits.rows; ++t) {
      Eigen::Index best = 0;
      matrix(op.logits).row(t).maxCoeff(&best);
      op.out.row<std::int32_t>(0)[t] = static_cast<std::int32_t>(best);
    }
  }

  void run(const ops::AccumulateSquareSum& op) override {
    element(op.scalars, StepScalar::kGradNormSquared) += matrix(op.gradient).squaredNorm();
  }
  void run(const ops::BeginUpdate& op) override {
    const double norm = std::sqrt(element(op.scalars, StepScalar::kGradNormSquared));
    element(op.scalars, StepScalar::kGradNorm) = norm;
    const auto limit = static_cast<double>(op.spec.clip_norm);
    element(op.scalars, StepScalar::kClipFactor) =
        limit > 0 ? std::min(1.0, limit / (norm + 1e-6)) : 1.0;
    multiply_power(element(op.scalars, StepScalar::kBeta1Power), op.spec.beta1);
    multiply_power(element(op.scalars, StepScalar::kBeta2Power), op.spec.beta2);
  }
  void run(const ops::AdamW& op) override {
    const double rate = element(op.scalars, StepScalar::kLearningRate);
    const double beta1 = static_cast<double>(op.spec.beta1),
                 beta2 = static_cast<double>(op.spec.beta2);
    const Eigen::ArrayXXd gradient =
        matrix(op.tensors.gradient).array() * element(op.scalars, StepScalar::kClipFactor);
    auto first = matrix(op.tensors.first_moment).array();
    auto second = matrix(op.tensors.second_moment).array();
    first = beta1 * first + (1 - beta1) * gradient;
    second = beta2 * second + (1 - beta2) * gradient.square();
    const double correction1 = 1 - element(op.scalars, StepScalar::kBeta1Power);
    const double correction2 = 1 - element(op.scalars, StepScalar::kBeta2Power);
    auto master = matrix(op.tensors.master).array();
    master *=
        1 - rate * static_cast<double>(op.spec.weight_decay) * static_cast<double>(op.decay_mask);
    master -= rate / correction1 * first /
              ((second / correction2).sqrt() + static_cast<double>(op.spec.epsilon));
  }

  void run(const ops::HashTensor& op) override { hash_tensor(op); }

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

}  // namespace fp8lab::reference
