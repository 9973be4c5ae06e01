#include "src/diagnosis/replay.hpp"

#include <algorithm>
#include <map>
#include <optional>
#include <tuple>
#include <utility>

#include "src/architecture/parts.hpp"
#include "src/diagnosis/known_histories.hpp"
#include "src/diagnosis/layer_choice.hpp"
#include "src/diagnosis/operand_capture.hpp"
#include "src/error_sources/switches.hpp"
#include "src/model/linear/linear_function.hpp"
#include "src/train/plan/memory_plan.hpp"
#include "src/train/step/amax_history.hpp"

namespace fp8lab {
namespace {

/// Returns `source` if it has type `dtype`, else a converted copy.
TensorView as_type(Backend& backend, const TensorView& source, DType dtype) {
  if (source.dtype == dtype) return source;
  const TensorView copy = backend.allocate(dtype, source.rows, source.cols);
  backend.run(ops::Copy{source, copy});
  return copy;
}

/// Copies the static smoothing factors of `original` to `replayed` for each GEMM with an equal
/// transform; for other transforms sets result.smoothed_anew.
void continue_smoothing(Backend& backend, const Linear& original, const OperandSet& replayed,
                        LayerReplay& result) {
  for (const GemmRole role : kGemmRoles) {
    const TensorView& factors = replayed.smoothing_factors(id_of(a_slot(role)));
    const Transform& transform = result.recipe.a(role).transform;
    const auto* const smoothing = transform.as<Smoothing>();
    if (factors.empty() || smoothing == nullptr || !smoothing->is_static) continue;
    if (original.recipe().a(role).transform == transform) {
      backend.run(ops::Copy{original.smoothing_factors()[role], factors});
    } else {
      result.smoothed_anew = true;
    }
  }
}

/// Returns `recipe` with exact sums, rounded once to FP32; without its estimators if `estimators`
/// is false.
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

/// Unquantized tensors of one layer on the host, copied once for all recipes. Recipes differ in the
/// type of activations, and in the weights that a slot is quantized from.
class HostSources {
 public:
  /// Returns the copy of `view`. `tensor` and `is_master`, of a weight, say which tensor it is; for
  /// one type it has the same values in every recipe.
  const HostMatrix& of(Backend& backend, Tensor tensor, bool is_master, const TensorView& view) {
    const auto [found, is_new] = copies_.try_emplace(Key{tensor, is_master, view.dtype});
    if (is_new) copy_to_host(backend, view, found->second);
    return found->second;
  }

 private:
  using Key = std::tuple<Tensor, bool, DType>;
  std::map<Key, HostMatrix> copies_;
};

/// A recipe without some of its errors.
struct ReducedRecipes {
  Recipe exact_sums;
  Recipe straight_through;  ///< exact_sums without estimators
};

class StepReplay {
 public:
  StepReplay(Backend& backend, const CheckpointedRun& run, const StepBatch& step,
             const std::vector<Recipe>& recipes, std::vector<std::size_t> layers)
      : backend_(backend),
        run_(run),
        capture_(backend),
        work_(capture_, run),
        step_(step),
        layer_count_(static_cast<int>(run.config.model.layer_count())),
        layers_(std::move(layers)) {
    for (const Recipe& recipe : recipes) {
      replays_.push_back({recipe, std::vector<LayerReplay>(layers_.size())});
      reduced_.push_back(reduced_of(recipe));
    }
  }

  std::vector<RecipeReplay> take(const std::function<void(const std::string&)>& progress) {
    const Transformer& transformer = *work_.transformer;
    capture_.watch(
        transformer.linears(), layers_, transformer.shape().tokens(),
        backend_.storage(run_.recipe.activation_dtype), [&](const CapturedLinear& captured) {
          if (progress) progress(captured.linear.name());
          const auto found = std::find(layers_.begin(), layers_.end(), captured.index);
          const auto at = static_cast<std::size_t>(found - layers_.begin());
          products_ = {};
          sources_ = {};
          for (std::size_t i = 0; i < replays_.size(); ++i) {
            replays_[i].layers[at] = replay_layer(captured, replays_[i].recipe, reduced_[i]);
          }
        });
    work_.take(step_);
    return std::move(replays_);
  }

 private:
  /// What a layer read and wrote, in backend memory.
  struct LayerTensors {
    TensorView x, dy;
    LinearWeight w;
    PerGemm<TensorView> products;
    TensorView statistics;  ///< of its operands
  };

  const Parameter& weight_of(const CapturedLinear& captured) const {
    const Parameters& parameters = work_.memory.parameters;
    return parameters[parameters.declaration().linears()[captured.index].weight];
  }

  /// Returns the weight as a model with activations of type `activation` reads it.
  LinearWeight read_weight(const CapturedLinear& captured, DType activation) {
    const Parameter& weight = weight_of(captured);
    if (activation == run_.recipe.activation_dtype) return {weight.master(), weight.working()};
    const bool is_master = weight.master().dtype == activation;
    return {weight.master(),
            is_master ? weight.master() : as_type(backend_, weight.working(), activation)};
  }

  /// Returns the layer under `recipe`. Each pass quantizes its weight. The factor of the model's
  /// products (LinearDeclaration::alpha) is left out: it changes no relative error.
  LinearFunction function_of(const CapturedLinear& captured, const LinearRecipe& recipe,
                             const LayerTensors& tensors) {
    LinearDescription description;
    description.name = captured.linear.name();
    description.index = static_cast<std::uint32_t>(captured.index);
    description.recipe = recipe;
    description.tokens = tensors.x.rows;
    description.in = tensors.x.cols;
    description.out = tensors.dy.cols;
    description.activation = tensors.w.working.dtype;
    description.master_weight = tensors.w.master.dtype;
    const bool bf16 = weight_of(captured).gradient().dtype == DType::bf16;
    description.weight_gradient = bf16 ? DType::bf16 : recipe.gemm(GemmRole::wgrad).output;
    description.life.weights = WeightCodes::remake;
    return LinearFunction(backend_, description);
  }

  /// Returns the reduced recipes; none if the backend has no exact sums.
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
    const auto products_of = [&](const Recipe& one, PerGemm<HostMatrix>& products) {
      StepContext unmeasured = step_.context;
      unmeasured.log_statistics = false;
      run_layer(captured, one, unmeasured, [&](const LayerTensors& tensors, LayerReplay&) {
        for (const GemmRole role : kGemmRoles) {
          copy_to_host(backend_, tensors.products[role], products[role]);
        }
      });
    };
    const bool estimates =
        reduced && has_estimator(recipe.for_layer(captured.linear.name(), layer_count_));
    if (reduced) products_of(reduced->exact_sums, exact_);
    if (estimates) products_of(reduced->straight_through, straight_);
    return run_layer(
        captured, recipe, step_.context, [&](const LayerTensors& tensors, LayerReplay& result) {
          backend_.download(result.operands.data(), tensors.statistics);
          for (const GemmRole role : kGemmRoles) {
            const auto factor = [&](Slot slot) -> Factor {
              return {source_of(tensors, result.recipe, slot), is_second_orientation(slot)};
            };
            copy_to_host(backend_, tensors.products[role], whole_);
            result.errors[role] = product_error(
                products_.of(factor(a_slot(role)), factor(b_slot(role))), whole_,
                reduced ? &exact_[role] : nullptr, estimates ? &straight_[role] : nullptr);
          }
        });
  }

  /// Returns the tensor that `slot` is quantized from.
  const HostMatrix& source_of(const LayerTensors& tensors, const LinearRecipe& recipe, Slot slot) {
    const Tensor tensor = tensor_of(slot);
    if (!is_weight(slot)) {
      return sources_.of(backend_, tensor, false, tensor == Tensor::x ? tensors.x : tensors.dy);
    }
    const TensorView& weight = tensors.w.source(recipe.slot(slot));
    return sources_.of(backend_, tensor, weight.data == tensors.w.master.data, weight);
  }

  void allocate_products(const LinearDescription& layer, PerGemm<TensorView>& products) {
    const auto output = [&](GemmRole role) { return layer.recipe.gemm(role).output; };
    products[GemmRole::fprop] = backend_.allocate(output(GemmRole::fprop), layer.tokens, layer.out);
    products[GemmRole::dgrad] = backend_.allocate(output(GemmRole::dgrad), layer.tokens, layer.in);
    products[GemmRole::wgrad] = backend_.allocate(layer.weight_gradient, layer.out, layer.in);
  }

  /// Runs the three GEMMs of the layer. Calls `look(tensors, result)` before it releases their
  /// memory.
  template <class Look>
  LayerReplay run_layer(const CapturedLinear& captured, const Recipe& recipe,
                        const StepContext& context, const Look& look) {
    const std::size_t mark = backend_.memory_mark();
    LayerReplay result;
    result.layer = captured.linear.name();
    result.recipe = recipe.for_layer(result.layer, layer_count_);
    result.without_history = replace_unknown_histories(run_.histories, result.layer, result.recipe);
    LayerTensors tensors;
    tensors.x = as_type(backend_, captured.x, recipe.activation_dtype);
    tensors.dy = as_type(backend_, captured.dy, recipe.activation_dtype);
    tensors.w = read_weight(captured, recipe.activation_dtype);
    const LinearFunction function = function_of(captured, result.recipe, tensors);
    LinearMemory memory = function.make_operands();
    OperandSet& operands = memory.operands;
    continue_histories(backend_, run_.histories, result.layer, operands);
    continue_smoothing(backend_, captured.linear, operands, result);
    tensors.statistics = operands.statistics();
    allocate_products(function.description(), tensors.products);
    const LinearInputs inputs{tensors.x, tensors.w};
    function.forward(operands, context, inputs, {}, tensors.products[GemmRole::fprop]);
    function.backward(operands, context, inputs, tensors.dy,
                      {.dx = tensors.products[GemmRole::dgrad],
                       .dw = tensors.products[GemmRole::wgrad],
                       .bias = {}});
    look(tensors, result);
    backend_.release_to(mark);
    return result;
  }

  Backend& backend_;
  const CheckpointedRun& run_;
  OperandCapture capture_;
  CheckpointAtWork work_;
  const StepBatch& step_;
  int layer_count_;
  std::vector<std::size_t> layers_;       ///< layers to replay
  HostSources sources_;                   ///< of the current layer
  ExactProducts products_;                ///< of sources_
  PerGemm<HostMatrix> exact_, straight_;  ///< products of the reduced recipes, memory is kept
  HostMatrix whole_;                      ///< a product of the recipe, likewise
  std::vector<RecipeReplay> replays_;
  std::vector<std::optional<ReducedRecipes>> reduced_;  ///< one per recipe
};

}  // namespace

std::vector<RecipeReplay> replay_step(Backend& backend, const CheckpointedRun& run,
                                      const StepBatch& step, const std::vector<Recipe>& recipes,
                                      const std::vector<std::string>& layers,
                                      const std::function<void(const std::string&)>& progress) {
  StageConfig stage = run.stage();
  stage.eval.reset();
  const std::vector<std::size_t> chosen = chosen_layers(run.config.model, layers);
  for (const Recipe& recipe : recipes) {
    plan_memory(run.config, stage, recipe, backend);  // throws if the recipe cannot run
    const Support support = backend.supports(ops::MeasureOperand{
        .source = TensorView::without_memory(DType::f32, 1, 1),
        .operand = QuantizedOperand::without_memory(recipe.linear.slot(kSlots.front()), 1, 1),
        .record = {}});
    if (!support) throw Error(support.reason);
  }
  const std::size_t mark = backend.memory_mark();
  std::vector<RecipeReplay> replays =
      StepReplay(backend, run, step, recipes, chosen).take(progress);
  backend.release_to(mark);
  return replays;
}

}  // namespace fp8lab
