// What a run is made of, by content: the same identity is the same bits at every step.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "src/config/config.hpp"
#include "src/config/recipe/stage_recipes.hpp"
#include "src/data/mixture.hpp"
#include "src/evaluation/evaluator.hpp"
#include "src/io/hdf5/run_log.hpp"

namespace fp8lab {

/// The version of the project that last gave an operation another definition
/// (emulation/specification.md). Builds that differ in it take other steps from the same beginning,
/// so that it is part of an Identity; builds that do not have the same bits.
inline constexpr char kArithmetic[] = "0.2";

/// The name of Parameters::hash before the first step in an Identity.
inline constexpr char kInitialWeights[] = "initial weights";

/// The name of hash_of(AmaxHistories), where a run starts from a checkpoint that has some.
inline constexpr char kInitialHistories[] = "initial amax histories";

/// The opened data of one stage.
struct StageContents {
  std::vector<std::string> recipes;  ///< the hash of each of recipes_of, as it was read
  const DataSources* train = nullptr;
  const DataSources* eval = nullptr;  ///< null without an evaluation
  const EvaluationInputs* inputs = nullptr;
};

/// The name in an Identity of one of the recipes_of a stage.
std::string recipe_part(const StageConfig& stage, const StageRecipe& recipe);

/// 16 hex digits over all documents of all sources.
std::string content_hash(const DataSources& sources);

/// Names and hashes of the configuration (RunConfig::hash), the arithmetic, the recipes that the
/// stages and rollouts name, the data of each stage, its questions, and the initial weights
/// (Parameters::hash as 16 hex digits; empty: not part of it); nothing is read again. `stages` is
/// in the order of config.stages. Where a file lies and how its path is written is no part of it.
Identity make_identity(const RunConfig& config, const std::vector<StageContents>& stages,
                       const std::string& initial_weights_hash);

/// The parts of `identity` that steps alone depend on: those of evaluations are left out, and of
/// steps that go on from a checkpoint the start as well.
Identity identity_of_steps(const Identity& identity, bool goes_on);

/// 16 hex digits over all names and hashes.
std::string hash_of(const Identity& identity);

}  // namespace fp8lab
