// A model that commands run forward: its configuration, weights and numerics.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "src/cli/model_source.hpp"
#include "src/cli/options.hpp"
#include "src/config/config.hpp"
#include "src/model/transformer.hpp"

namespace fp8lab::cli {

/// Adds --backend, which accepts `backends`, --threads, --sequence-length, --sequences-together and
/// --look-in.
void add_pass_options(Options& options, std::vector<std::string> backends);
/// The same and --recipe.
void add_model_options(Options& options, std::vector<std::string> backends);

/// The run that `source` comes from, or one made up for a model that has none, with the options of
/// add_pass_options and `assignments` applied in this order.
RunConfig pass_run(const ModelSource& source, const Values& values,
                   const std::vector<Assignment>& assignments);
/// The same in the numerics of --recipe.
RunConfig model_run(const ModelSource& source, const Values& values,
                    const std::vector<Assignment>& assignments);

/// The stage whose data and lengths count: the last one.
const StageConfig& last_stage(const RunConfig& run);

/// A model at work without memory for training.
class LoadedModel {
 public:
  /// Loads the weights, and what the quantizers of a checkpoint remember. Throws Error for delayed
  /// scaling without a checkpoint that has its history.
  LoadedModel(const ModelSource& source, const RunConfig& run, const Values& values);

  /// Another one with the same recipe, weights and memory of its quantizers.
  std::unique_ptr<Transformer> make_transformer(Purpose purpose) const;

  Backend& backend() { return *backend_; }
  const Parameters& parameters() const { return *parameters_; }
  Transformer& transformer() { return *transformer_; }
  const Recipe& recipe() const { return recipe_; }
  StepContext context() const { return context_; }

 private:
  OpenCheckpoint checkpoint_;  ///< or null
  std::string source_;
  std::unique_ptr<Backend> backend_;
  Recipe recipe_;
  BatchShape shape_;
  std::unique_ptr<Parameters> parameters_;
  std::unique_ptr<Transformer> transformer_;
  StepContext context_;
};

}  // namespace fp8lab::cli
