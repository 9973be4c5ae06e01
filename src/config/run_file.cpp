// Run files: TOML to RunConfig and back.
#include <fmt/format.h>

#include <string>
#include <vector>

#include "emulation/base/input_error.hpp"
#include "src/config/config.hpp"
#include "src/config/reading/experiments.hpp"
#include "src/config/reading/hub_cache.hpp"
#include "src/config/reading/hugging_face.hpp"
#include "src/config/reading/run_document.hpp"
#include "src/config/tables/model_table.hpp"
#include "src/config/tables/run_tables.hpp"
#include "src/io/files/atomic_file.hpp"
#include "src/io/hash.hpp"

namespace fp8lab {
namespace {

/// Prefix of every hashed text. Increment the number if a changed default
/// changes the meaning of files.
constexpr const char* kMeaning = "# fp8lab configuration 1\n";

std::string text_of(const RunConfig& config, Keys keys) {
  return table_text(run_table(), config, {}, "", "", true, keys);
}

RunConfig read_run(const toml::table& root, const std::string& origin,
                   const RecipeTexts& recorded) {
  TomlReader document(root, "", origin);
  document.share_recipes(recorded);
  RunConfig config;
  config.recorded = recorded;
  read_table(document, run_table(), config);
  // Every micro-batch of at least a shard means the same run.
  for (StageConfig& stage : config.stages) {
    const std::int64_t sequences = pass_sequences(config, stage);
    if (sequences < stage.micro_batch_sequences) {
      config.notes.push_back(
          fmt::format("stage {}: a forward pass takes one shard, {} of {} sequences "
                      "([parallel] shards = {}), not micro_batch_sequences = {}",
                      stage.name, sequences, stage.batch_sequences, config.parallel.shards,
                      stage.micro_batch_sequences));
    }
    stage.micro_batch_sequences = sequences;
  }
  return config;
}

}  // namespace

void check_scale(double scale, const std::string& where) {
  if (scale > 0.0 && scale <= kLargestScale) return;
  throw InputError({.where = fmt::format("{} {}", where, scale),
                    .accepted = fmt::format("a number above 0, at most {}", kLargestScale)});
}

RunConfig parse_run_config(const std::string& text, const std::string& origin,
                           const std::vector<Assignment>& assignments, double scale,
                           const RecipeTexts& recorded) {
  toml::table root = build_run_document(text, origin, assignments);
  if (scale != 1.0) scale_steps(run_table(), root, read_run(root, origin, recorded), scale);
  RunConfig config = read_run(root, origin, recorded);
  config.text = to_toml(config);
  config.hash = hex16(xxh3(kMeaning + text_of(config, Keys::hashed)));
  return config;
}

std::string to_toml(const RunConfig& config) { return text_of(config, Keys::complete); }

std::string canonical_text(const RunConfig& config) {
  return kMeaning + text_of(config, Keys::canonical);
}

RunConfig load_run_config(const std::filesystem::path& file,
                          const std::vector<Assignment>& assignments, double scale) {
  return parse_run_config(read_file(file), file.string(), assignments, scale);
}

ModelConfig load_model(const std::string& name_or_path) {
  if (!is_hugging_face_folder(require_model_path(name_or_path)))
    find_experiment("models", name_or_path, "");
  const std::string origin = "model " + name_or_path;
  const toml::table root = build_run_document("model = " + toml_quoted(name_or_path), origin, {});
  TomlReader document(root, "", origin);
  return read_model_table(document);
}

RunConfig load_preset(const std::string& name, const std::vector<Assignment>& assignments,
                      double scale) {
  return load_run_config(find_experiment("presets", name, ""), assignments, scale);
}

}  // namespace fp8lab
