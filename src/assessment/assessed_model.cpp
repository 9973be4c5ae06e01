#include "src/assessment/assessed_model.hpp"

#include <optional>
#include <utility>

#include "src/diagnosis/known_histories.hpp"

namespace fp8lab {

AssessedModel::AssessedModel(Backend& backend, const RunConfig& config, const ModelTensors& tensors,
                             std::string origin, AmaxHistories histories, const BatchShape& shape)
    : products_(backend),
      model_(config.model),
      optimizer_(config.optimizer),
      tensors_(tensors),
      origin_(std::move(origin)),
      histories_(std::move(histories)),
      shape_(shape),
      parameters_(products_, model_, optimizer_, DType::bf16, Purpose::inference) {
  load_parameters(tensors_, origin_, parameters_);
  context_.seed = config.seed;
}

Recipe AssessedModel::runnable(const Recipe& recipe, std::vector<std::string>& remarks) const {
  return with_known_histories(recipe, model_, histories_, remarks);
}

Recipe AssessedModel::mixed(const Recipe& recipe, const Recipe& others,
                            const std::function<bool(std::size_t)>& chosen) const {
  Recipe result = others;
  result.keep_high_precision.clear();
  result.overrides.clear();
  const auto layers = static_cast<int>(model_.layer_count());
  for (std::size_t i = 0; i < linears().size(); ++i) {
    const std::string& name = linears()[i].name;
    result.overrides.push_back({name, (chosen(i) ? recipe : others).for_layer(name, layers)});
  }
  return result;
}

void AssessedModel::under(const Recipe& recipe, const std::function<void(Transformer&)>& use) {
  Backend& memory = backend();
  const std::size_t mark = memory.memory_mark();
  {
    std::optional<Parameters> others;  // working copies in another activation type
    if (recipe.activation_dtype != parameters_.working_dtype()) {
      others.emplace(memory, model_, optimizer_, recipe.activation_dtype, Purpose::inference);
      load_parameters(tensors_, origin_, *others);
    }
    Transformer transformer(memory, others ? *others : parameters_, model_, recipe, shape_,
                            Purpose::inference);
    continue_histories(memory, histories_, transformer.operand_sets());
    transformer.prepare_weights(context_);
    use(transformer);
  }
  memory.release_to(mark);
}

}  // namespace fp8lab
