#include "src/assessment/gradient_errors.hpp"

#include <cmath>
#include <limits>

#include "src/model/weights/parameters.hpp"
#include "src/train/step/training_step.hpp"

namespace fp8lab {
namespace {

struct Gradients {
  std::vector<std::vector<float>> parameters;
  std::vector<OperandStatistics> statistics;  ///< one per slot, layer by layer
};

/// Sums over elements, in double precision.
struct Comparison {
  double difference = 0, baseline = 0, own = 0, product = 0;

  void add(std::span<const float> gradient, std::span<const float> of_baseline) {
    for (std::size_t i = 0; i < gradient.size(); ++i) {
      const double g = gradient[i], g0 = of_baseline[i];
      difference += (g - g0) * (g - g0);
      baseline += g0 * g0;
      own += g * g;
      product += g * g0;
    }
  }
  void add(const Comparison& other) {
    difference += other.difference;
    baseline += other.baseline;
    own += other.own;
    product += other.product;
  }
  double error() const { return std::sqrt(difference / baseline); }
  double cosine() const { return product / std::sqrt(own * baseline); }
};

}  // namespace

std::vector<RecipeGradient> gradient_errors(Backend& backend, const ModelConfig& model,
                                            const ModelTensors& tensors, const std::string& origin,
                                            const AmaxHistories& histories, const BatchShape& shape,
                                            std::span<const Batch> batches,
                                            const std::vector<Recipe>& recipes, std::uint64_t seed,
                                            const GradientProgress& progress) {
  const auto gradients_under = [&](const Recipe& recipe) {
    const std::size_t mark = backend.memory_mark();
    Gradients result;
    {
      Parameters parameters(backend, model, OptimizerConfig{}, recipe.activation_dtype);
      load_parameters(tensors, origin, parameters);
      const StepBlock block(backend);
      Transformer transformer(backend, parameters, model, recipe, shape);
      continue_histories(backend, histories, transformer.operand_sets());
      StepContext context;
      context.seed = seed;
      context.log_statistics = true;
      const TrainingStep step{backend, parameters, transformer, block, likelihood()};
      step.accumulate(context, batches, 0.0);
      result.statistics = step.results(false, true).statistics;
      for (const Parameter& parameter : parameters.all()) {
        const TensorView& view = parameter.gradient();
        result.parameters.emplace_back(static_cast<std::size_t>(view.size()));
        download_floats(backend, view, result.parameters.back());
      }
    }
    backend.release_to(mark);
    return result;
  };
  const Declaration declaration = declaration_of(model);
  const auto layer_count = static_cast<int>(model.layer_count());
  std::vector<RecipeGradient> results;
  Gradients baseline;
  for (const Recipe& recipe : recipes) {
    progress(recipe.name, results.size(), recipes.size());
    Gradients own = gradients_under(recipe);
    if (results.empty()) baseline = own;
    RecipeGradient result;
    Comparison all;
    std::vector<Comparison> parts(own.parameters.size());
    for (std::size_t i = 0; i < parts.size(); ++i) {
      parts[i].add(own.parameters[i], baseline.parameters[i]);
      all.add(parts[i]);
    }
    result.error = all.error();
    result.cosine = all.cosine();
    for (std::size_t i = 0; i < declaration.linears().size(); ++i) {
      const LinearDeclaration& linear = declaration.linears()[i];
      const Comparison& part = parts[static_cast<std::size_t>(linear.weight)];
      LayerGradient layer{i, part.error(), part.cosine(), {}};
      const LinearRecipe& numerics = recipe.for_layer(linear.name, layer_count);
      for (const Slot slot : kSlots) {
        const std::size_t record = i * std::size(kSlots) + static_cast<std::size_t>(slot);
        layer.sqnr_db[slot] = numerics.slot(slot).is_cast()
                                  ? own.statistics[record].sqnr_db
                                  : std::numeric_limits<double>::quiet_NaN();
      }
      result.layers.push_back(layer);
    }
    results.push_back(std::move(result));
  }
  return results;
}

}  // namespace fp8lab
