// A model for commands that run its forward pass: configuration, weights and numerics.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "src/cli/inputs/model_source.hpp"
#include "src/cli/options/option_assignments.hpp"
#include "src/cli/options/options.hpp"
#include "src/config/config.hpp"
#include "src/model/transformer.hpp"

namespace fp8lab::cli {

/// Adds --backend (which accepts `backends`), --threads, --sequence-length,
/// --sequences-together and --look-in.
void add_pass_options(Options& options, std::vector<std::string> backends);
/// Adds the options of add_pass_options, and --recipe.
void add_model_options(Options& options, std::vector<std::string> backends);

/// Returns the run that `source` comes from, or a substitute for a model without a run. Applies the
/// options of add_pass_options, then `more`. Throws Error that names the option it is about.
RunConfig pass_run(const ModelSource& source, const Values& values, const std::string& command);
RunConfig pass_run(const ModelSource& source, const Values& values, const std::string& command,
                   const OptionAssignments& more);
/// Like pass_run in the numerics of --recipe.
RunConfig model_run(const ModelSource& source, const Values& values, const std::string& command);
RunConfig model_run(const ModelSource& source, const Values& values, const std::string& command,
                    const OptionAssignments& more);

/// Returns the last stage, whose data and lengths are used.
const StageConfig& last_stage(const RunConfig& run);

/// A model without memory for training.
class LoadedModel {
 public:
  /// Loads the weights, and the quantizer state of a checkpoint. Throws Error for delayed scaling
  /// without a checkpoint that contains its history.
  LoadedModel(const ModelSource& source, const RunConfig& run, const Values& values);

  /// Creates another transformer with the same recipe, weights and quantizer state.
  std::unique_ptr<Transformer> make_transformer(Purpose purpose) const;

  Backend& backend() { return *backend_; }
  const Parameters& parameters() const { return *parameters_; }
  Transformer& transformer() { return *transformer_; }
  const Recipe& recipe() const { return recipe_; }
  StepContext context() const { return context_; }

 private:
  OpenCheckpoint checkpoint_;  ///< may be null
  std::string source_;
  std::unique_ptr<Backend> backend_;
  Recipe recipe_;
  BatchShape shape_;
  std::unique_ptr<Parameters> parameters_;
  std::unique_ptr<Transformer> transformer_;
  StepContext context_;
};

}  // namespace fp8lab::cli
