// A run as its run file tells it, to whoever goes on with it: its configuration with the recipes
// that it was read with, and where the files that it names may lie now.
#pragma once

#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "src/config/config.hpp"
#include "src/data/batch.hpp"
#include "src/io/hdf5/run_log.hpp"

namespace fp8lab {

/// Keys of RunMeta::extra: TOML of every recipe by what the configuration calls it, as JSON, and
/// the folder that relative paths were looked up in.
inline constexpr char kRecipesKey[] = "recipes";
inline constexpr char kStartedInKey[] = "started_in";
/// As Vocabulary::tokenizer(), of the weights; empty where nothing says it. Also a key of a
/// checkpoint's metadata.
inline constexpr char kTokenizerKey[] = "tokenizer";

/// The text under kRecipesKey.
std::string recipes_record(const RecipeTexts& recipes);

/// What recorded_run reads of recipes; of files without kRecipesKey the run's own alone.
RecipeTexts recorded_recipes(const RunMeta& meta);

/// The configuration with `assignments` applied. Its recipes are the recorded ones, whatever files
/// there are; where those have been left out of the file, the ones that their names stand for now.
RunConfig recorded_run(const RunMeta& meta, const std::string& origin,
                       const std::vector<Assignment>& assignments);

/// Where data, questions and initial weights of a run lie now. A path is looked up, in this order:
/// in the folders that a user names; where the run was started, or here if that is not recorded; in
/// the run's folder and those above it, for a tree that was moved as a whole; by its last part
/// alone beside the run file; and here. Of several that are there the one with the recorded hash
/// counts.
class RunPlaces {
 public:
  /// Of no run: no path is found.
  RunPlaces() = default;
  /// Of the run of `run_file`, which says `meta`.
  RunPlaces(const RunMeta& meta, std::filesystem::path run_file,
            std::vector<std::filesystem::path> look_in);

  /// The data of a stage, with paths that are there. They throw Error, in one line that says which
  /// file with which hash is missing and how to give it.
  DataConfig training_data(const StageConfig& stage) const;
  DataConfig evaluation_data(const StageConfig& stage) const;
  /// The file of questions; empty where the stage asks none. Throws Error like them.
  std::filesystem::path questions(const StageConfig& stage) const;

  /// The Hugging Face folder that the run started from, or the run that it started from, and so on,
  /// if it is still there.
  std::filesystem::path initial_folder() const;

  /// Those that are there, the likeliest first, each file once.
  std::vector<std::filesystem::path> candidates(const std::filesystem::path& recorded) const;
  /// What to say where there is none, or none with the hash: `what` names the part of the run,
  /// `option` how it can be given; the hash may be empty.
  Error missing(const std::filesystem::path& recorded, const std::string& what,
                const std::string& hash, const std::string& option) const;

 private:
  std::filesystem::path initial_folder(int runs_before) const;
  /// All places of a path, whether there is something or not.
  std::vector<std::filesystem::path> places_of(const std::filesystem::path& recorded) const;
  /// With `columns`, as the data were opened, whose numbers are part of their hashes.
  DataConfig located(DataConfig data, const std::string& stage, const std::string& use,
                     const std::string& what, std::span<const ColumnSpec> columns) const;
  SourceConfig located(const SourceConfig& source, DataForm form, const std::string& hash,
                       const std::string& what, std::span<const ColumnSpec> columns) const;

  RunMeta meta_;
  std::filesystem::path run_file_;
  std::vector<std::filesystem::path> look_in_;
};

}  // namespace fp8lab
