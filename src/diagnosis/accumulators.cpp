#include "src/diagnosis/accumulators.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "emulation/spec/gemm_rules.hpp"
#include "emulation/spec/tensor_core.hpp"
#include "src/evaluation/evaluator.hpp"

namespace fp8lab {
namespace {

std::optional<ErrorFields> refusal(const LinearRecipe& recipe, GemmRole role,
                                   const Accumulator& accumulator) {
  GemmSpec spec = recipe.gemm(role);
  spec.accumulator = accumulator;
  return refuse_gemm(spec, recipe.a(role), recipe.b(role), slot_name(a_slot(role)),
                     slot_name(b_slot(role)));
}

void replace(LinearRecipe& recipe, const Accumulator& accumulator) {
  for (const GemmRole role : kGemmRoles) {
    if (!refusal(recipe, role, accumulator)) recipe.gemm(role).accumulator = accumulator;
  }
}

AccumulatorEvaluation describe(const CheckpointedRun& run, const Accumulator& accumulator) {
  AccumulatorEvaluation result;
  result.accumulator = accumulator_name(accumulator);
  const TensorCoreProfile* const profile = profile_of(accumulator);
  result.evidence = profile != nullptr ? evidence_name(profile->evidence) : "custom";
  const Declaration declaration = declaration_of(run.config.model);
  const auto layers = static_cast<int>(run.config.model.layer_count());
  for (const LinearDeclaration& linear : declaration.linears()) {
    std::optional<ErrorFields> refused =
        refusal(run.recipe.for_layer(linear.name, layers), GemmRole::fprop, accumulator);
    if (!refused) {
      ++result.layers;
    } else if (result.kept_because.empty()) {
      refused->where = linear.name;
      refused->key.clear();
      result.kept_because = render(*refused);
    }
  }
  if (result.layers == 0) {
    throw Error(fmt::format("accumulator {}: no linear layer of recipe {} can use it; {}",
                            result.accumulator, run.recipe.name, result.kept_because));
  }
  return result;
}

/// Returns `config` reduced to the held-out loss.
EvalConfig loss_of(EvalConfig config) {
  config.exact_match = 0;
  config.multiple_choice.clear();
  config.pass_at_k.reset();
  config.rollout.reset();
  return config;
}

/// Evaluates the run under `recipe`: stores the loss in `result`, returns the logits.
std::vector<float> evaluate(Backend& backend, const CheckpointedRun& run, const Recipe& recipe,
                            const Parameters& parameters, const StepBatch& step,
                            const DataSources* held_out, AccumulatorEvaluation& result) {
  const std::size_t mark = backend.memory_mark();
  const StageConfig& stage = run.stage();
  std::vector<float> logits;
  {
    Transformer transformer(
        backend, parameters, run.config.model, recipe,
        BatchShape{stage.micro_batch_sequences, stage.sequence_length, run.config.attention},
        Purpose::inference);
    load_quantizer_states(*run.checkpoint, backend, transformer.operand_sets());
    StepContext context = step.context;
    context.log_statistics = false;
    transformer.load(step.batch);
    transformer.prepare_weights(context);
    transformer.forward(context);
    logits.resize(static_cast<std::size_t>(transformer.logits().size()));
    download_floats(backend, transformer.logits(), logits);
    transformer.discard_amaxes();
    if (held_out != nullptr) {
      const EvaluationInputs none;  // the loss reads no other files
      Evaluator evaluator(backend, parameters, transformer, loss_of(*stage.eval), *held_out, none);
      context.step = static_cast<std::uint32_t>(run.position.step);
      result.loss = evaluator.evaluate(context, false).held_out.mean;
    }
  }
  backend.release_to(mark);
  return logits;
}

/// Returns the RMS and the largest magnitude of a - b.
std::pair<double, double> distance(const std::vector<float>& a, const std::vector<float>& b) {
  double squares = 0, largest = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double difference = double{a[i]} - double{b[i]};
    squares += difference * difference;
    largest = std::isnan(difference) ? difference : std::max(largest, std::abs(difference));
  }
  return {std::sqrt(squares / static_cast<double>(a.size())), largest};
}

}  // namespace

Recipe with_accumulator(const Recipe& recipe, const Accumulator& accumulator) {
  Recipe result = recipe;
  replace(result.linear, accumulator);
  replace(result.high_precision, accumulator);
  for (RecipeOverride& exception : result.overrides) replace(exception.recipe, accumulator);
  return result;
}

std::vector<AccumulatorEvaluation> evaluate_accumulators(
    Backend& backend, const CheckpointedRun& run, const StepBatch& step,
    const DataSources* held_out, const std::vector<Accumulator>& accumulators,
    const std::function<void(const std::string&)>& progress) {
  std::vector<AccumulatorEvaluation> results(1);
  for (const Accumulator& accumulator : accumulators) {
    results.push_back(describe(run, accumulator));
  }
  Parameters parameters(backend, run.config.model, run.config.optimizer,
                        run.recipe.activation_dtype, Purpose::inference);
  load_parameters(*open_checkpoint_tensors(run.checkpoint, run.config.model),
                  run.checkpoint->path(), parameters);
  std::vector<float> own;
  for (std::size_t i = 0; i < results.size(); ++i) {
    AccumulatorEvaluation& result = results[i];
    progress(i == 0 ? "the run as it is" : result.accumulator);
    const Recipe recipe = i == 0 ? run.recipe : with_accumulator(run.recipe, accumulators[i - 1]);
    const std::vector<float> logits =
        evaluate(backend, run, recipe, parameters, step, held_out, result);
    if (i == 0) own = logits;
    result.logit_rms = distance(logits, std::vector<float>(logits.size())).first;
    std::tie(result.difference_rms, result.difference_largest) = distance(logits, own);
  }
  return results;
}

}  // namespace fp8lab
