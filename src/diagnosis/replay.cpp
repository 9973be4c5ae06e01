#include "src/diagnosis/replay.hpp"

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>

#include "src/diagnosis/known_histories.hpp"
#include "src/diagnosis/operand_capture.hpp"
#include "src/error_sources/switches.hpp"
#include "src/model/decoder.hpp"
#include "src/train/amax_history.hpp"
#include "src/train/memory_plan.hpp"

namespace fp8lab {
namespace {

/// `source` in the type `dtype`: itself, or a copy.
TensorView as_type(Backend& backend, const TensorView& source, DType dtype) {
  if (source.dtype == dtype) return source;
  const TensorView copy = backend.allocate(dtype, source.rows, source.cols);
  backend.run(ops::Copy{source, copy});
  return copy;
}

/// Static smoothing goes on from the factors of `original` where they are those of its transform.
void continue_smoothing(Backend& backend, const Linear& original, const Linear& replayed,
                        LayerReplay& result) {
  for (const GemmRole role : kGemmRoles) {
    const TensorView& factors = replayed.smoothing_factors()[role];
    const Transform& transform = replayed.recipe().a(role).transform;
    if (factors.empty() || !transform.is_static) continue;
    if (original.recipe().a(role).transform == transform) {
      backend.run(ops::Copy{original.smoothing_factors()[role], factors});
    } else {
      result.smoothed_anew = true;
    }
  }
}

/// `recipe` with sums that are exact and rounded once, to FP32, with its estimators or without.
Recipe with_exact_sums(const Recipe& recipe, const ModelConfig& model, bool estimators) {
  Switches switches = all_switches(declaration_of(model).linears().size(), true);
  for (Switches::Layer& layer : switches.layers) {
    layer.accumulators = {false, false, false};
    layer.estimators.fill(estimators);
  }
  int replaced = 0;
  Recipe exact = with_switches(recipe, model, switches, replaced);
  for (RecipeOverride& layer : exact.overrides) {
    for (GemmSpec& gemm : layer.recipe.gemms) gemm.output = DType::f32;
  }
  return exact;
}

bool has_estimator(const LinearRecipe& recipe) {
  return std::any_of(recipe.slots.begin(), recipe.slots.end(),
                     [](const QuantSpec& spec) { return static_cast<bool>(spec.estimator); });
}

/// A recipe without some of its errors.
struct ReducedRecipes {
  Recipe exact_sums;
  Recipe straight_through;  ///< exact_sums without estimators
};

class StepReplay {
 public:
  StepReplay(Backend& backend, const CheckpointedRun& run, const StepBatch& step,
             const std::vector<Recipe>& recipes, int threads)
      : backend_(backend),
        run_(run),
        capture_(backend),
        work_(capture_, run),
        step_(step),
        layer_count_(static_cast<int>(run.config.model.num_hidden_layers)),
        exact_(threads) {
    for (const Recipe& recipe : recipes) {
      replays_.push_back({recipe, std::vector<LayerReplay>(work_.transformer->linears().size())});
      reduced_.push_back(reduced_of(recipe));
    }
  }

  std::vector<RecipeReplay> take(const std::function<void(const std::string&)>& progress) {
    const Transformer& transformer = *work_.transformer;
    capture_.watch(transformer.linears(), transformer.shape().tokens(),
                   backend_.storage(run_.recipe.activation_dtype),
                   [&](const CapturedLinear& captured) {
                     if (progress) progress(captured.linear.name());
                     for (std::size_t i = 0; i < replays_.size(); ++i) {
                       replays_[i].layers[captured.index] =
                           replay_layer(captured, replays_[i].recipe, reduced_[i]);
                     }
                   });
    work_.take(step_);
    return std::move(replays_);
  }

 private:
  const Parameter& weight_of(const CapturedLinear& captured) const {
    const Parameters& parameters = work_.memory.parameters;
    return parameters[parameters.declaration().linears()[captured.index].weight];
  }

  /// The weight as a model with activations of type `activation` reads it, and room for its
  /// gradient.
  Parameter make_weight(const CapturedLinear& captured, DType activation, DType gradient) {
    Parameter weight = weight_of(captured);
    if (activation != run_.recipe.activation_dtype) {
      weight.tensors.working = weight.master().dtype == activation
                                   ? TensorView{}
                                   : as_type(backend_, weight.working(), activation);
    }
    const bool bf16 = weight.gradient().dtype == DType::bf16;
    weight.tensors.gradient = backend_.allocate(bf16 ? DType::bf16 : gradient,
                                                weight.declaration.rows, weight.declaration.cols);
    return weight;
  }

  /// Where the backend has exact sums.
  std::optional<ReducedRecipes> reduced_of(const Recipe& recipe) {
    ReducedRecipes reduced = {with_exact_sums(recipe, run_.config.model, true),
                              with_exact_sums(recipe, run_.config.model, false)};
    StageConfig stage = run_.stage();
    stage.eval.reset();
    try {
      plan_memory(run_.config, stage, reduced.exact_sums, backend_);
    } catch (const Error&) {
      return std::nullopt;
    }
    return reduced;
  }

  LayerReplay replay_layer(const CapturedLinear& captured, const Recipe& recipe,
                           const std::optional<ReducedRecipes>& reduced) {
    const auto products_of = [&](const Recipe& one) {
      PerGemm<HostMatrix> products;
      run_layer(captured, one,
                [&](GemmRole role, const Factor&, const Factor&, HostMatrix product) {
                  products[role] = std::move(product);
                });
      return products;
    };
    std::optional<PerGemm<HostMatrix>> exact, straight;
    if (reduced) {
      exact = products_of(reduced->exact_sums);
      const bool estimates = has_estimator(recipe.for_layer(captured.linear.name(), layer_count_));
      if (estimates) straight = products_of(reduced->straight_through);
    }
    PerGemm<ProductError> errors{};
    LayerReplay result =
        run_layer(captured, recipe,
                  [&](GemmRole role, const Factor& a, const Factor& b, const HostMatrix& product) {
                    errors[role] = exact_.error(a, b, product, exact ? &(*exact)[role] : nullptr,
                                                straight ? &(*straight)[role] : nullptr);
                  });
    result.errors = errors;
    return result;
  }

  /// Everything but the errors of the products, which `take_product(role, A, B, D)` gets.
  template <class TakeProduct>
  LayerReplay run_layer(const CapturedLinear& captured, const Recipe& recipe,
                        TakeProduct take_product) {
    const std::size_t mark = backend_.memory_mark();
    LayerReplay result;
    result.layer = captured.linear.name();
    result.recipe = recipe.for_layer(result.layer, layer_count_);
    result.without_history = replace_unknown_histories(run_.histories, result.layer, result.recipe);
    const TensorView x = as_type(backend_, captured.x, recipe.activation_dtype);
    const TensorView dy = as_type(backend_, captured.dy, recipe.activation_dtype);
    const Parameter weight =
        make_weight(captured, recipe.activation_dtype, result.recipe.gemm(GemmRole::wgrad).output);
    Workspace workspace(backend_);
    std::vector<std::unique_ptr<Linear>> layer;
    layer.push_back(std::make_unique<Linear>(
        backend_, workspace, result.layer, static_cast<std::uint32_t>(captured.index),
        result.recipe, weight, nullptr, captured.x.rows, Purpose::training, OperandLife{}));
    workspace.allocate();
    continue_histories(backend_, run_.histories, layer);
    continue_smoothing(backend_, captured.linear, *layer.front(), result);
    multiply(*layer.front(), x, dy, weight, result, take_product);
    layer.clear();
    backend_.release_to(mark);
    return result;
  }

  /// The three GEMMs, and what their operands lose.
  template <class TakeProduct>
  void multiply(Linear& linear, const TensorView& x, const TensorView& dy, const Parameter& weight,
                LayerReplay& result, TakeProduct take_product) {
    const LinearRecipe& recipe = result.recipe;
    const TensorView y =
        backend_.allocate(recipe.gemm(GemmRole::fprop).output, x.rows, linear.out());
    const TensorView dx =
        backend_.allocate(recipe.gemm(GemmRole::dgrad).output, x.rows, linear.in());
    linear.prepare_weights(step_.context);
    linear.forward(step_.context, x, y);
    linear.backward(step_.context, x, dy, dx);
    backend_.download(result.operands.data(), linear.statistics());
    const PerTensor<HostMatrix> tensors = {host_matrix(backend_, x), {}, host_matrix(backend_, dy)};
    const PerGemm<TensorView> products = {y, dx, weight.gradient()};
    for (const GemmRole role : kGemmRoles) {
      HostMatrix w;
      const auto factor = [&](Slot slot) -> Factor {
        if (is_weight(slot)) w = host_matrix(backend_, linear.weight_source(slot));
        return {is_weight(slot) ? w : tensors[tensor_of(slot)], is_second_orientation(slot)};
      };
      const Factor a = factor(a_slot(role)), b = factor(b_slot(role));
      take_product(role, a, b, host_matrix(backend_, products[role]));
    }
  }

  Backend& backend_;
  const CheckpointedRun& run_;
  OperandCapture capture_;
  CheckpointAtWork work_;
  const StepBatch& step_;
  int layer_count_;
  ExactProduct exact_;
  std::vector<RecipeReplay> replays_;
  std::vector<std::optional<ReducedRecipes>> reduced_;  ///< of each, where there are such sums
};

}  // namespace

std::vector<RecipeReplay> replay_step(Backend& backend, const CheckpointedRun& run,
                                      const StepBatch& step, const std::vector<Recipe>& recipes,
                                      int threads,
                                      const std::function<void(const std::string&)>& progress) {
  StageConfig stage = run.stage();
  stage.eval.reset();
  for (const Recipe& recipe : recipes) {
    plan_memory(run.config, stage, recipe, backend);  // refuses what cannot run
    const Support support = backend.supports(ops::MeasureOperand{
        TensorView::without_memory(DType::f32, 1, 1),
        false,
        QuantizedOperand::without_memory(recipe.linear.slot(kSlots.front()), 1, 1),
        {}});
    if (!support) throw Error(support.reason);
  }
  const std::size_t mark = backend.memory_mark();
  std::vector<RecipeReplay> replays =
      StepReplay(backend, run, step, recipes, threads).take(progress);
  backend.release_to(mark);
  return replays;
}

}  // namespace fp8lab
