#include "src/diagnosis/diagnosis_time.hpp"

#include <algorithm>
#include <utility>

#include "src/architecture/parts.hpp"
#include "src/diagnosis/accumulators.hpp"
#include "src/diagnosis/layer_choice.hpp"
#include "src/train/plan/time_plan.hpp"

namespace fp8lab {
namespace {

/// Number of multiply-adds in about ten seconds.
constexpr double kLittle = 5e11;

/// Returns the stage with one micro-batch per step, without evaluations.
StageConfig one_micro_batch(const CheckpointedRun& run) {
  StageConfig stage = run.stage();
  stage.batch_sequences = stage.micro_batch_sequences;
  stage.eval.reset();
  return stage;
}

/// Returns the run's configuration without statistics and hashes.
RunConfig bare(const CheckpointedRun& run) {
  RunConfig config = run.config;
  config.logging.statistics_every_steps = 0;
  config.logging.hash_every_step = false;
  config.parallel.shards = 1;
  return config;
}

double elements(const LinearDeclaration& linear) {
  return static_cast<double>(linear.in) * static_cast<double>(linear.out);
}

/// Returns the fraction of all GEMM work of `linears` that `layers` do.
double share_of(const std::vector<LinearDeclaration>& linears,
                const std::vector<std::size_t>& layers) {
  double part = 0, all = 0;
  for (const LinearDeclaration& linear : linears) all += elements(linear);
  for (const std::size_t layer : layers) part += elements(linears[layer]);
  return part / all;
}

}  // namespace

PassTime time_pass(const CheckpointedRun& run, const Recipe& recipe, Backend& backend,
                   double within, std::vector<std::string> exact) {
  RunConfig config = bare(run);
  config.exact = std::move(exact);
  const TimePlan plan = plan_time(config, one_micro_batch(run), recipe, backend, within).step;
  const double gemms = plan.of(WorkClass::gemm);
  return {gemms, plan.total() - gemms - plan.of(WorkClass::optimizer)};
}

double gradient_seconds(const Switches& switches, const std::vector<LinearDeclaration>& linears,
                        const PassTime& emulated, const PassTime& exact) {
  double all = 0, gemms = 0, partial = 0;
  for (std::size_t i = 0; i < linears.size(); ++i) {
    const Switches::Layer& layer = switches.layers[i];
    const double size = elements(linears[i]) / 3.0;
    for (const GemmRole role : kGemmRoles) {
      const bool keeps_all =
          layer.operands[a_slot(role)].all() && layer.operands[b_slot(role)].all();
      all += size;
      if (!keeps_all) partial += size;
      if (!layer.accumulators[role]) {
        gemms += size * exact.gemms;
      } else {
        gemms += size * (emulated.gemms + (keeps_all ? 0.0 : 2.0 * exact.gemms));
      }
    }
  }
  const double share = partial / all;
  return gemms / all + emulated.rest + share * std::max(0.0, exact.rest - emulated.rest);
}

bool takes_no_time(const CheckpointedRun& run, const Recipe& recipe, const Backend& backend,
                   std::size_t passes) {
  double work = 0;
  for (const auto& [key, kind] : record_step(bare(run), one_micro_batch(run), recipe, backend)) {
    if (kind.work_class == WorkClass::gemm) work += kind.work;
  }
  return work * static_cast<double>(passes) < kLittle;
}

std::optional<double> replay_seconds(Backend& backend, const CheckpointedRun& run,
                                     const std::vector<Recipe>& recipes,
                                     const std::vector<std::string>& layers) {
  if (takes_no_time(run, run.recipe, backend, 1 + 3 * recipes.size())) return std::nullopt;
  const Declaration declaration = declaration_of(run.config.model);
  const double share = share_of(declaration.linears(), chosen_layers(run.config.model, layers));
  const double each = kEstimateSeconds / static_cast<double>(2 + recipes.size());
  const PassTime own = time_pass(run, run.recipe, backend, each);
  // The pass computes no weight gradients: two of three GEMMs. A product in double precision takes
  // as long as a GEMM with exact sums.
  double seconds = 2.0 / 3.0 * own.gemms + own.rest;
  const Recipe exact = with_accumulator(run.recipe, Accumulator::ideal_exact);
  const double product = share * time_pass(run, exact, backend, each).gemms;
  seconds += product;
  for (const Recipe& recipe : recipes) {
    seconds += share * time_pass(run, recipe, backend, each).gemms + product;
  }
  return seconds;
}

}  // namespace fp8lab
