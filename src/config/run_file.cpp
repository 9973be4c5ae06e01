// Run files: TOML to RunConfig and back.
#include <fmt/format.h>

#include <cstddef>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "emulation/base/input_error.hpp"
#include "src/config/config.hpp"
#include "src/config/reading/experiments.hpp"
#include "src/config/reading/hub_cache.hpp"
#include "src/config/reading/hugging_face.hpp"
#include "src/config/reading/run_document.hpp"
#include "src/config/reading/toml_reader.hpp"
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
  for (std::size_t i = 0; i < config.stages.size(); ++i) {
    StageConfig& stage = config.stages[i];
    const std::int64_t sequences = pass_sequences(config, stage);
    const bool is_said = root["stages"][i]["micro_batch_sequences"].is_integer();
    if (is_said && sequences < stage.micro_batch_sequences) {
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

/// Returns, for each stage of a document, whether it says learning_rate.warmup_steps.
std::vector<bool> says_warmup(const toml::table& root) {
  std::vector<bool> says;
  if (const toml::array* const stages = root["stages"].as_array()) {
    for (std::size_t i = 0; i < stages->size(); ++i) {
      says.push_back(root["stages"][i]["learning_rate"]["warmup_steps"].node() != nullptr);
    }
  }
  return says;
}

/// Returns a note on a warm-up that the file of a constant rate does not ask for; empty without.
std::string warmup_note(const StageConfig& stage, bool is_said) {
  const LearningRateSchedule& rate = stage.learning_rate;
  if (is_said || rate.kind != ScheduleKind::constant || rate.warmup_steps == 0 || rate.peak == 0) {
    return {};
  }
  return fmt::format(
      "stage {}: the rate is constant only after {} steps of warm-up, the default of "
      "learning_rate.warmup_steps, which this file does not say; 0: none",
      stage.name, rate.warmup_steps);
}

RunConfig read_run_text(const std::string& text, const std::string& origin,
                        const std::vector<Assignment>& assignments, double scale,
                        const RecipeTexts& recorded) {
  toml::table root = build_run_document(text, origin, assignments);
  const std::vector<bool> says = says_warmup(root);  // scale_steps() writes defaults
  if (scale != 1.0) scale_steps(run_table(), root, read_run(root, origin, recorded), scale);
  RunConfig config = read_run(root, origin, recorded);
  for (std::size_t i = 0; i < config.stages.size(); ++i) {
    std::string note = warmup_note(config.stages[i], says.at(i));
    if (!note.empty()) config.notes.push_back(std::move(note));
  }
  config.text = to_toml(config);
  config.hash = hex16(xxh3(kMeaning + text_of(config, Keys::hashed)));
  return config;
}

/// Returns the assignments that cause an error of all of them: those without which none occurs,
/// else the first with which it begins. None if the file alone has an error.
std::vector<Assignment> culprits(const std::vector<Assignment>& assignments,
                                 const std::function<bool(const std::vector<Assignment>&)>& fits) {
  if (assignments.empty() || !fits({})) return {};
  std::vector<Assignment> found;
  for (std::size_t i = 0; i < assignments.size(); ++i) {
    std::vector<Assignment> others = assignments;
    others.erase(others.begin() + static_cast<std::ptrdiff_t>(i));
    if (fits(others)) found.push_back(assignments[i]);
  }
  std::vector<Assignment> first;
  for (const Assignment& assignment : assignments) {
    if (!found.empty()) return found;
    first.push_back(assignment);
    if (!fits(first)) found = {assignment};
  }
  return found;
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
  try {
    return read_run_text(text, origin, assignments, scale, recorded);
  } catch (const Error& error) {
    const std::string message = error.what();
    if (message.find(kAssignmentOrigin) != std::string::npos) throw;
    const std::vector<Assignment> to_blame =
        culprits(assignments, [&](const std::vector<Assignment>& some) {
          try {
            read_run_text(text, origin, some, scale, recorded);
            return true;
          } catch (const Error&) {
            return false;
          }
        });
    std::string names;
    for (const Assignment& assignment : to_blame) {
      names += (names.empty() ? "" : " and ") + origin_of(assignment);
    }
    if (names.empty()) throw;
    throw InputError(in_place(names, error));
  }
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
