// One model under one recipe after another, for inference.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "src/assessment/linear_products.hpp"
#include "src/config/config.hpp"
#include "src/model/model_tensors.hpp"
#include "src/model/parameters.hpp"
#include "src/model/transformer.hpp"
#include "src/train/amax_history.hpp"

namespace fp8lab {

class AssessedModel {
 public:
  /// Loads the weights of `tensors`, which come from `origin`, into the model of `config`.
  /// `histories` are those of delayed scales in the checkpoint that holds the weights, if one does.
  /// `backend` and `tensors` must outlive this.
  AssessedModel(Backend& backend, const RunConfig& config, const ModelTensors& tensors,
                std::string origin, AmaxHistories histories, const BatchShape& shape);

  /// `recipe` as it runs here: delayed scales without a history are those of the tensors
  /// themselves, of which a sentence is added to `remarks`.
  Recipe runnable(const Recipe& recipe, std::vector<std::string>& remarks) const;

  /// Calls use() with the model under `recipe`, its weights quantized, and takes back the memory.
  /// Throws Error for a recipe that cannot run.
  void under(const Recipe& recipe, const std::function<void(Transformer&)>& use);

  /// `name`'s numerics in the layers that `chosen` is true of, by their place in
  /// Declaration::linears(), and those of `others` in the rest.
  Recipe mixed(const Recipe& recipe, const Recipe& others,
               const std::function<bool(std::size_t)>& chosen) const;

  Backend& backend() { return products_; }
  LinearProducts& products() { return products_; }
  const ModelConfig& model() const { return model_; }
  const Parameters& parameters() const { return parameters_; }
  /// Sets the first weights of `parameter`, as models under recipes with BF16 activations read
  /// them.
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
  Parameters parameters_;  ///< with working copies in BF16
};

}  // namespace fp8lab
