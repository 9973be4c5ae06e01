// The content that determines a run: equal identities give equal bits at every step.
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

/// The version of the project that last changed the definition of an operation
/// (emulation/specification.md). Part of an Identity: builds with equal kArithmetic compute equal
/// bits, others need not.
inline constexpr char kArithmetic[] = "0.2";

/// Name in an Identity of Parameters::hash before the first step.
inline constexpr char kInitialWeights[] = "initial weights";

/// Name in an Identity of hash_of(AmaxHistories), for a run that starts from a checkpoint with
/// histories.
inline constexpr char kInitialHistories[] = "initial amax histories";

/// The opened data of one stage.
struct StageContents {
  std::vector<std::string> recipes;  ///< hash of each of recipes_of
  const DataSources* train = nullptr;
  const DataSources* eval = nullptr;  ///< null without an evaluation
  const EvaluationInputs* inputs = nullptr;
};

/// Returns the name in an Identity of one of the recipes_of a stage.
std::string recipe_part(const StageConfig& stage, const StageRecipe& recipe);

/// Returns 16 hex digits over all documents of all sources.
std::string content_hash(const DataSources& sources);

/// Returns names and hashes of the configuration (RunConfig::hash), the arithmetic, the recipes of
/// stages and rollouts, the data of each stage, its questions, and the initial weights
/// (Parameters::hash as 16 hex digits; empty: omitted). Reads no file. `stages` is in the order of
/// config.stages. Paths are no part of an identity.
Identity make_identity(const RunConfig& config, const std::vector<StageContents>& stages,
                       const std::string& initial_weights_hash);

/// Returns the parts of `identity` that determine the steps: without evaluations, and for steps
/// that resume from a checkpoint without the initial state.
Identity identity_of_steps(const Identity& identity, bool goes_on);

/// Returns 16 hex digits over all names and hashes.
std::string hash_of(const Identity& identity);

}  // namespace fp8lab
