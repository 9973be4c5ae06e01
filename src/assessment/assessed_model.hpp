// Runs inference of one model under a sequence of recipes.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "src/assessment/linear_products.hpp"
#include "src/config/config.hpp"
#include "src/model/transformer.hpp"
#include "src/model/weights/model_tensors.hpp"
#include "src/model/weights/parameters.hpp"
#include "src/train/step/amax_history.hpp"

namespace fp8lab {

class AssessedModel {
 public:
  /// Loads the weights of `tensors` into the model of `config`; `origin` names their source in
  /// error messages. `histories` are the amax histories of the checkpoint that contains the
  /// weights, if they come from one. Precondition: `backend` and `tensors` outlive this.
  AssessedModel(Backend& backend, const RunConfig& config, const ModelTensors& tensors,
                std::string origin, AmaxHistories histories, const BatchShape& shape);

  /// Returns `recipe` with current scales instead of delayed ones for tensors without an amax
  /// history (with_known_histories). Adds a sentence to `remarks` if there are such tensors.
  Recipe runnable(const Recipe& recipe, std::vector<std::string>& remarks) const;

  /// Calls use() with the model under `recipe`, its weights quantized, then releases the model's
  /// memory. Throws Error if the recipe cannot run.
  void under(const Recipe& recipe, const std::function<void(Transformer&)>& use);

  /// Returns `others` with the numerics of `recipe` in the linear layers for which `chosen` returns
  /// true. Its argument is the index in Declaration::linears().
  Recipe mixed(const Recipe& recipe, const Recipe& others,
               const std::function<bool(std::size_t)>& chosen) const;

  Backend& backend() { return products_; }
  LinearProducts& products() { return products_; }
  const ModelConfig& model() const { return model_; }
  const Parameters& parameters() const { return parameters_; }
  /// Overwrites the first weights of `parameter`. Affects only recipes with BF16 activations.
  void upload(const Parameter& parameter, const std::vector<float>& first) {
    parameters_.upload(parameter, 0, first);
  }
  const std::vector<LinearDeclaration>& linears() const {
    return parameters_.declaration().linears();
  }
  const StepContext& context() const { return context_; }

 private:
  LinearProducts products_;
  ModelConfig model_;
  OptimizerConfig optimizer_;
  const ModelTensors& tensors_;
  std::string origin_;
  AmaxHistories histories_;
  BatchShape shape_;
  StepContext context_;
  Parameters parameters_;  ///< working copies in BF16
};

}  // namespace fp8lab
