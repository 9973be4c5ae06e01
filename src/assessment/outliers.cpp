#include "src/assessment/outliers.hpp"

#include <algorithm>
#include <cmath>
#include <span>
#include <utility>

namespace fp8lab {
namespace {

std::vector<float> download(Backend& backend, const TensorView& view) {
  std::vector<float> values(static_cast<std::size_t>(view.size()));
  download_floats(backend, view, values);
  return values;
}

/// Returns the median; 0 if `values` is empty. Reorders `values`.
double median(std::vector<float>& values) {
  if (values.empty()) return 0;
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

double ratio(double value, double to) { return to > 0 ? value / to : 0; }

InputOutliers look_at(std::size_t linear, std::vector<float> x, std::int64_t rows) {
  InputOutliers result;
  result.linear = linear;
  const auto columns = x.size() / static_cast<std::size_t>(rows);
  std::vector<float> of_channel(columns, 0.0f), of_token(static_cast<std::size_t>(rows), 0.0f);
  for (std::size_t i = 0; i < x.size(); ++i) {
    x[i] = std::abs(x[i]);
    const std::size_t token = i / columns, channel = i % columns;
    of_channel[channel] = std::max(of_channel[channel], x[i]);
    of_token[token] = std::max(of_token[token], x[i]);
    if (x[i] <= result.amax) continue;
    result.amax = x[i];
    result.token = static_cast<std::int64_t>(token);
    result.channel = static_cast<std::int64_t>(channel);
  }
  result.median = median(x);
  result.channel_ratio = ratio(result.amax, median(of_channel));
  result.token_ratio = ratio(result.amax, median(of_token));
  return result;
}

/// Adds to `shares`, for each key, the softmax weights of one head summed over queries and divided
/// by the number of heads.
void add_shares(std::span<const float> q, std::span<const float> k, const AttentionShape& shape,
                std::int64_t head, const std::vector<std::int32_t>& starts,
                std::vector<double>& shares) {
  const auto depth = static_cast<std::size_t>(shape.head_dim);
  const auto q_stride = static_cast<std::size_t>(shape.heads) * depth;
  const auto k_stride = static_cast<std::size_t>(shape.kv_heads) * depth;
  const std::size_t q_first = static_cast<std::size_t>(head) * depth;
  const std::size_t k_first =
      static_cast<std::size_t>(head / (shape.heads / shape.kv_heads)) * depth;
  const double scale = 1.0 / std::sqrt(static_cast<double>(depth));
  std::vector<double> weights;
  for (std::size_t query = 0; query < starts.size(); ++query) {
    const auto first = static_cast<std::size_t>(starts[query]);
    if (first == query) continue;  // the query attends only to itself
    weights.assign(query - first + 1, 0.0);
    double largest = -INFINITY, sum = 0;
    for (std::size_t key = first; key <= query; ++key) {
      double score = 0;
      for (std::size_t d = 0; d < depth; ++d) {
        score += static_cast<double>(q[query * q_stride + q_first + d]) *
                 static_cast<double>(k[key * k_stride + k_first + d]);
      }
      weights[key - first] = score * scale;
      largest = std::max(largest, score * scale);
    }
    for (double& weight : weights) sum += weight = std::exp(weight - largest);
    for (std::size_t key = first; key <= query; ++key) {
      shares[key] += weights[key - first] / sum / static_cast<double>(shape.heads);
    }
  }
}

AttentionSink find_sink(Backend& backend, const ops::AttentionForward& op,
                        const std::vector<std::int32_t>& starts) {
  const std::vector<float> q = download(backend, op.q.row_range(0, op.shape.sequence));
  const std::vector<float> k = download(backend, op.k.row_range(0, op.shape.sequence));
  std::vector<double> shares(starts.size(), 0.0), seen_by(starts.size(), 0.0);
  for (std::int64_t head = 0; head < op.shape.heads; ++head) {
    add_shares(q, k, op.shape, head, starts, shares);
  }
  for (std::size_t query = 0; query < starts.size(); ++query) {
    const auto first = static_cast<std::size_t>(starts[query]);
    if (first == query) continue;
    for (std::size_t key = first; key <= query; ++key) ++seen_by[key];
  }
  AttentionSink sink;
  // A key that few queries attend to can have a large share by chance.
  const double enough = 0.25 * *std::max_element(seen_by.begin(), seen_by.end());
  for (std::size_t key = 0; key < shares.size(); ++key) {
    if (seen_by[key] < std::max(1.0, enough)) continue;
    const double share = shares[key] / seen_by[key];
    if (share > sink.share) sink = {static_cast<std::int64_t>(key), share};
  }
  return sink;
}

}  // namespace

Outliers find_outliers(AssessedModel& model, const Recipe& recipe, const Batch& batch) {
  Outliers result;
  const std::int64_t rows = batch.sequence_length;
  const std::vector<std::int32_t>& all = batch[kDocumentStarts];
  const std::vector<std::int32_t> starts(all.begin(), all.begin() + rows);
  model.under(recipe, [&](Transformer& transformer) {
    model.products().watch(
        transformer.linears(),
        [&](Backend& original, std::size_t linear, const ops::Gemm& op) {
          original.run(op);
          const bool is_new = result.inputs.empty() || result.inputs.back().linear != linear;
          if (!is_new) return;  // further chunks of the head
          const std::int64_t count = std::min(rows, op.a.rows);
          result.inputs.push_back(
              look_at(linear, download(original, op.a.codes.row_range(0, count)), count));
        },
        [&](const ops::AttentionForward& op) {
          result.sinks.push_back(find_sink(model.backend(), op, starts));
        });
    transformer.load(batch);
    transformer.forward(model.context());
    model.products().watch({}, {});
  });
  return result;
}

}  // namespace fp8lab
