#include "src/model/weights/growth.hpp"

#include <algorithm>
#include <map>
#include <optional>
#include <unordered_set>
#include <utility>
#include <vector>

#include "emulation/base/error.hpp"
#include "src/architecture/parts.hpp"
#include "src/model/weights/weight_names.hpp"

namespace fp8lab {
namespace {

struct Copied {
  std::int64_t layer = 0;  ///< of the shallower model
  bool is_first = true;    ///< the first layer that copies it
};

Copied copied_by(std::int64_t layer, const GrowthConfig& growth, std::int64_t layers) {
  if (growth.order == GrowthOrder::stack) {
    return {layer % growth.from_layers, layer < growth.from_layers};
  }
  const std::int64_t copies = layers / growth.from_layers;
  return {layer / copies, layer % copies == 0};
}

/// The parameters whose linear layers write into the residual stream.
std::unordered_set<std::string> written_to_residual(const Declaration& declaration) {
  std::unordered_set<std::string> names;
  const auto name = [&](ParameterId id) {
    return declaration.parameters()[static_cast<std::size_t>(id)].name;
  };
  for (const LinearDeclaration& linear : declaration.linears()) {
    if (!linear.writes_residual) continue;
    names.insert(name(linear.weight));
    if (linear.bias) names.insert(name(*linear.bias));
  }
  return names;
}

class GrownTensors : public ModelTensors {
 public:
  GrownTensors(std::unique_ptr<ModelTensors> tensors, const GrowthConfig& growth,
               const ModelConfig& model)
      : ModelTensors(tensors->values_of()), tensors_(std::move(tensors)) {
    // Where the tensors of each layer begin; all layers declare the same ones in the same order.
    std::map<std::optional<std::int64_t>, std::vector<std::size_t>> of_layer;
    const ModelConfig before = model_before(growth, model);
    const Declaration shallow = declaration_of(before);
    std::size_t index = 0;
    for (const ParameterDeclaration& parameter : shallow.parameters()) {
      const std::size_t parts = weight_parts(parameter, before).size();
      for (std::size_t i = 0; i < parts; ++i) of_layer[parameter.layer].push_back(index++);
    }
    FP8LAB_ASSERT(index == tensors_->headers().size());

    const Declaration declaration = declaration_of(model);
    const std::unordered_set<std::string> residual = written_to_residual(declaration);
    std::map<std::optional<std::int64_t>, std::size_t> next;
    for (const ParameterDeclaration& parameter : declaration.parameters()) {
      Copied copied;
      std::optional<std::int64_t> source;
      if (parameter.layer) {
        copied = copied_by(*parameter.layer, growth, model.layer_count());
        source = copied.layer;
      }
      const bool is_zero =
          growth.silent_copies && !copied.is_first && residual.count(parameter.name) != 0;
      for (WeightPart& part : weight_parts(parameter, model)) {
        const std::size_t from = of_layer.at(source).at(next[parameter.layer]++);
        TensorHeader header = tensors_->headers()[from];
        header.name = std::move(part.name);
        headers_.push_back(std::move(header));
        sources_.push_back({from, is_zero});
      }
    }
  }

  void read(std::size_t index, std::int64_t first, std::span<float> destination) const override {
    const Source& source = sources_[index];
    if (source.is_zero) return std::fill(destination.begin(), destination.end(), 0.0f);
    tensors_->read(source.index, first, destination);
  }

 private:
  struct Source {
    std::size_t index = 0;  ///< among the tensors of the shallower model
    bool is_zero = false;   ///< instead of them
  };

  std::unique_ptr<ModelTensors> tensors_;
  std::vector<Source> sources_;
};

}  // namespace

ModelConfig model_before(const GrowthConfig& growth, const ModelConfig& model) {
  ModelConfig before = model;
  before.set_layer_count(growth.from_layers);
  return before;
}

std::unique_ptr<ModelTensors> grown(std::unique_ptr<ModelTensors> tensors,
                                    const GrowthConfig& growth, const ModelConfig& model) {
  FP8LAB_ASSERT(model.layer_count() % growth.from_layers == 0);
  return std::make_unique<GrownTensors>(std::move(tensors), growth, model);
}

}  // namespace fp8lab
