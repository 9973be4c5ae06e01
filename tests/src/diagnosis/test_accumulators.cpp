// One checkpoint evaluated as different tensor cores accumulate.
#include <catch2/catch.hpp>

#include "src/architecture/parts.hpp"
#include "src/diagnosis/accumulators.hpp"
#include "tests/src/diagnosis/diagnosed_run.hpp"

using namespace fp8lab;
using fp8lab::test::DiagnosedRun;

namespace {

std::vector<AccumulatorEvaluation> evaluated(DiagnosedRun& run,
                                             const std::vector<Accumulator>& accumulators) {
  const CheckpointedRun at = run.at_checkpoint();
  const DataSources held_out =
      open_sources(at.stage().eval->data, at.config.model.vocab_size, "stage");
  return evaluate_accumulators(run.backend(), at, run.next_step(), &held_out, accumulators,
                               [](const std::string&) {});
}

}  // namespace

TEST_CASE("a run's own accumulator changes nothing, another one does") {
  DiagnosedRun run("infir2");
  const std::vector<AccumulatorEvaluation> rows =
      evaluated(run, {Accumulator::sm90_wgmma_fp8, Accumulator::sm89_mma_fp8,
                      Accumulator::ideal_exact, custom_accumulator({})});
  REQUIRE(rows.size() == 5);
  const AccumulatorEvaluation &own = rows[0], &same = rows[1], &ada = rows[2], &exact = rows[3];
  CHECK(own.accumulator.empty());
  CHECK(own.logit_rms > 0);
  CHECK(same.evidence == "measured");
  CHECK(same.layers == 8);
  CHECK_THAT(same.kept_because, Catch::StartsWith("lm_head: "));
  CHECK(same.loss == own.loss);
  CHECK(same.difference_rms == 0);
  CHECK(same.difference_largest == 0);
  CHECK(ada.evidence == "replayed");
  CHECK(ada.layers == 8);
  CHECK(ada.difference_rms > 0);
  CHECK(ada.difference_largest >= ada.difference_rms);
  CHECK(ada.loss != own.loss);
  CHECK(*ada.loss == Approx(*own.loss).epsilon(0.01));
  CHECK(exact.evidence == "definition");
  CHECK(exact.layers == 9);
  CHECK(exact.kept_because.empty());
}

TEST_CASE("the held-out loss of a checkpoint is that of its run") {
  DiagnosedRun run("te_delayed", {{"stages.s.eval.every_steps", "2"}});
  const std::vector<AccumulatorEvaluation> rows = evaluated(run, {Accumulator::ideal_exact});
  CHECK(rows[0].loss == run.evaluated(2));
}

TEST_CASE("without an evaluation there is no loss, and without a layer an error") {
  DiagnosedRun run("bf16");
  const CheckpointedRun at = run.at_checkpoint();
  const auto evaluate = [&](const Accumulator& accumulator) {
    return evaluate_accumulators(run.backend(), at, run.next_step(), nullptr, {accumulator},
                                 [](const std::string&) {});
  };
  const std::vector<AccumulatorEvaluation> rows = evaluate(Accumulator::ideal_fp32);
  CHECK_FALSE(rows[0].loss);
  CHECK(rows[1].layers == 9);
  CHECK_THROWS_WITH(
      evaluate(Accumulator::sm89_mma_fp8),
      Catch::Contains("no linear layer of recipe bf16 can use it") && Catch::Contains("bf16"));
}

TEST_CASE("GEMMs that cannot use an accumulator keep theirs") {
  const Recipe recipe = with_accumulator(load_recipe("infir2"), Accumulator::sm100_f8f6f4);
  for (const GemmRole role : kGemmRoles) {
    CHECK(recipe.linear.gemm(role).accumulator == Accumulator::sm100_f8f6f4);
    CHECK(recipe.linear.gemm(role).schedule == Schedule::promote);
    CHECK(recipe.high_precision.gemm(role).accumulator == Accumulator::sm90_bf16);
  }
}
