#include "src/model/linear/linear.hpp"

#include <utility>

namespace fp8lab {
namespace {

LinearDescription describe(std::string name, std::uint32_t index, const LinearRecipe& recipe,
                           const Parameter& weight, std::int64_t tokens, Purpose purpose,
                           OperandLife life) {
  LinearDescription description;
  description.name = std::move(name);
  description.index = index;
  description.recipe = recipe;
  description.tokens = tokens;
  description.in = weight.master().cols;
  description.out = weight.master().rows;
  description.activation = weight.working().dtype;
  description.master_weight = weight.master().dtype;
  description.weight_gradient = weight.gradient().dtype;
  const bool trains = purpose == Purpose::training;
  description.runs = {true, trains, trains && weight.is_trained()};
  description.life = std::move(life);
  return description;
}

}  // namespace

Linear::Linear(Backend& backend, Workspace& workspace, std::string name, std::uint32_t index,
               const LinearRecipe& recipe, const Parameter& weight, const Parameter* bias,
               std::int64_t tokens, Purpose purpose, OperandLife life)
    : weight_(weight),
      bias_(bias),
      function_(backend,
                describe(std::move(name), index, recipe, weight, tokens, purpose, std::move(life))),
      operands_(function_.make_operands(workspace)) {}

LinearGradients Linear::gradients(const TensorView& dx) const {
  return {dx, weight_.gradient(), bias_ == nullptr ? TensorView{} : bias_->gradient()};
}

PerGemm<TensorView> Linear::smoothing_factors() const {
  PerGemm<TensorView> factors;
  for (const GemmRole role : kGemmRoles) {
    factors[role] = operands_.smoothing_factors(id_of(a_slot(role)));
  }
  return factors;
}

void Linear::prepare_weights(const StepContext& context) {
  function_.prepare_weights(operands_, context, weight());
}

void Linear::forward(const StepContext& context, const TensorView& x, const TensorView& y) {
  function_.forward(operands_, context, {x, weight()}, bias(), y);
}

void Linear::forward(const StepContext& context, const ops::Producer& producer,
                     const TensorView& y) {
  function_.forward(operands_, context, producer, weight(), bias(), y);
}

void Linear::recompute_x(const StepContext& context, const ops::Producer& producer) {
  function_.recompute_x(operands_, context, producer);
}

void Linear::backward(const StepContext& context, const TensorView& x, const TensorView& dy,
                      const TensorView& dx) {
  function_.backward(operands_, context, {x, weight()}, dy, gradients(dx));
}

void Linear::backward(const StepContext& context, const TensorView& x,
                      const ops::Producer& producer, const TensorView& dx) {
  function_.backward(operands_, context, {x, weight()}, producer, gradients(dx));
}

}  // namespace fp8lab
