// Reads a run from its run file: its configuration with the recorded recipes, and the present
// locations of its files.
#pragma once

#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "emulation/base/input_error.hpp"
#include "src/config/config.hpp"
#include "src/data/batch.hpp"
#include "src/io/hdf5/run_log.hpp"

namespace fp8lab {

/// Keys of RunMeta::extra: the TOML of every recipe by its name in the configuration, as JSON; the
/// folder of relative paths; and the command line that began the run there, for a shell.
inline constexpr char kRecipesKey[] = "recipes";
inline constexpr char kStartedInKey[] = "started_in";
inline constexpr char kCommandKey[] = "command";
/// Tokenizer of the weights, as Vocabulary::tokenizer(); empty if unknown. Also a key of a
/// checkpoint's metadata.
inline constexpr char kTokenizerKey[] = "tokenizer";

/// Quantizers of the logged operands under every recipe of the run but that of /tensors/format, as
/// JSON (src/io/README.md); absent if there is one recipe.
inline constexpr char kQuantizersKey[] = "quantizers";

/// Returns the text for kRecipesKey.
std::string recipes_record(const RecipeTexts& recipes);

/// Returns the keys that differ between two runs: those of run_differences, then those of recipes
/// where both have one in the same place of the same stage, each once: "recipe of stage cpt:
/// slots.dy.format: "e5m2" -> "e4m3fn"". Name, summary and sources of a recipe do not count.
/// Recipes of a run that this version cannot read are left out.
std::vector<std::string> recorded_differences(const RunMeta& stored, const RunConfig& now);

/// Returns the text for kQuantizersKey: operands by the name of their recipe, in the order of
/// /tensors.
std::string quantizers_record(const std::map<std::string, std::vector<TensorName>>& operands);

/// Returns the recorded recipes; for files without kRecipesKey only that of the run.
RecipeTexts recorded_recipes(const RunMeta& meta);

/// Returns true if a run of fp8lab wrote the file: those of other programs (fp8lab.torch) have no
/// stages to execute again. Throws Error if the configuration is not TOML.
bool has_configuration(const RunMeta& meta, const std::string& origin);

/// Returns the configuration with `assignments` applied. Uses the recorded recipes; a recipe that
/// the file does not contain is looked up by its name.
RunConfig recorded_run(const RunMeta& meta, const std::string& origin,
                       const std::vector<Assignment>& assignments);

/// Finds data, questions and initial weights of a run that may have been moved. A path is looked up
/// in this order: in the folders that a user names; where the run was started, or here if that is
/// not recorded; in the run's folder and those above it, for a tree that was moved as a whole; by
/// its last part alone beside the run file; and here. If several exist, the one with the recorded
/// hash is taken.
class RunPlaces {
 public:
  /// For no run: finds nothing.
  RunPlaces() = default;
  /// For the run of `run_file`, whose metadata are `meta`.
  RunPlaces(const RunMeta& meta, std::filesystem::path run_file,
            std::vector<std::filesystem::path> look_in);

  /// Return the data of a stage with existing paths. Throw Error naming the missing file, its hash,
  /// and the option that gives its location.
  DataConfig training_data(const StageConfig& stage) const;
  DataConfig evaluation_data(const StageConfig& stage) const;
  /// Returns the file of questions; empty if the stage has none. Throws Error likewise.
  std::filesystem::path questions(const StageConfig& stage) const;

  /// Returns the Hugging Face folder at the beginning of the chain of initial weights, if it still
  /// exists.
  std::filesystem::path initial_folder() const;

  /// Returns the existing candidates, the likeliest first, each file once.
  std::vector<std::filesystem::path> candidates(const std::filesystem::path& recorded) const;
  /// Returns the error for a path without a file, or without one of that hash. `what`: the part of
  /// the run. `option`: the option that gives its location. The hash may be empty.
  InputError missing(const std::filesystem::path& recorded, const std::string& what,
                     const std::string& hash, const std::string& option) const;

 private:
  std::filesystem::path initial_folder(int runs_before) const;
  /// Returns all candidates for a path, existing or not.
  std::vector<std::filesystem::path> places_of(const std::filesystem::path& recorded) const;
  /// `columns`: those of the original data, whose values are part of the hash.
  DataConfig located(DataConfig data, const std::string& stage, const std::string& use,
                     const std::string& what, std::span<const ColumnSpec> columns) const;
  SourceConfig located(const SourceConfig& source, DataForm form, const std::string& hash,
                       const std::string& what, std::span<const ColumnSpec> columns) const;

  RunMeta meta_;
  std::filesystem::path run_file_;
  std::vector<std::filesystem::path> look_in_;
};

}  // namespace fp8lab
