#include "src/objectives/objective.hpp"

#include <algorithm>
#include <iterator>
#include <utility>

#include "src/objectives/cross_entropy.hpp"
#include "src/objectives/policy_gradient.hpp"

namespace fp8lab {

std::vector<double> Objective::measure(std::span<const Batch>) const { return {}; }

std::vector<ColumnSpec> Objective::own_columns() const {
  std::vector<ColumnSpec> own = columns();
  std::erase_if(own, [](const ColumnSpec& column) {
    return std::any_of(std::begin(kBatchColumns), std::end(kBatchColumns),
                       [&](const ColumnSpec& known) { return known.name == column.name; });
  });
  return own;
}

void Objective::run(Transformer& model, const TensorView& scalars, Leaves leaves,
                    const std::function<void(const Transformer::LogitChunk&)>& look) const {
  const bool is_differentiated = leaves == Leaves::gradient;
  model.for_each_chunk(is_differentiated, [&](const Transformer::LogitChunk& chunk) {
    run_chunk(model, chunk,
              {scalars, is_differentiated ? chunk.logits : TensorView{},
               chunk.is_last ? model.token_losses() : TensorView{}});
    if (look) look(chunk);
  });
}

std::unique_ptr<Objective> make_objective(const ObjectiveConfig& config) {
  switch (config.kind) {
    case ObjectiveKind::cross_entropy: return std::make_unique<CrossEntropy>();
    case ObjectiveKind::policy_gradient: return std::make_unique<PolicyGradient>();
  }
  throw Error("unknown objective");
}

const Objective& likelihood() {
  static const CrossEntropy objective;
  return objective;
}

std::vector<MetricColumn> metrics_of(const RunConfig& config) {
  std::vector<MetricColumn> all;
  for (const StageConfig& stage : config.stages) {
    for (MetricColumn& metric : make_objective(stage.objective)->metrics()) {
      const auto place = std::lower_bound(
          all.begin(), all.end(), metric,
          [](const MetricColumn& a, const MetricColumn& b) { return a.name < b.name; });
      if (place == all.end() || place->name != metric.name) all.insert(place, std::move(metric));
    }
  }
  return all;
}

}  // namespace fp8lab
