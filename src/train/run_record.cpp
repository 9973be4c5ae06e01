#include "src/train/run_record.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <set>
#include <string_view>
#include <system_error>
#include <utility>

#include "emulation/base/error.hpp"
#include "emulation/base/input_error.hpp"
#include "src/config/config_difference.hpp"
#include "src/config/reading/hugging_face.hpp"
#include "src/config/reading/toml_reader.hpp"
#include "src/config/recipe/stage_recipes.hpp"
#include "src/data/corpus.hpp"
#include "src/io/files/atomic_file.hpp"
#include "src/io/files/file_kind.hpp"
#include "src/io/hash.hpp"
#include "src/io/hdf5/run_reader.hpp"
#include "src/objectives/objective.hpp"
#include "src/train/checkpoint/identity.hpp"

namespace fp8lab {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr char kLookIn[] = "its folder with --look-in";

/// Files of the run itself: a file of this name elsewhere is another one.
constexpr std::array<std::string_view, 2> kOwnFiles = {"run.h5", "checkpoint.safetensors"};

/// Returns "data" for "some/data/"; empty for ".." and "."
fs::path last_part(const fs::path& path) {
  const fs::path plain = path.has_filename() ? path : path.parent_path();
  const fs::path name = plain.filename();
  return name == "." || name == ".." ? fs::path() : name;
}

/// Returns the folder and all folders above it.
std::vector<fs::path> with_those_above(const fs::path& folder) {
  std::error_code error;
  std::vector<fs::path> folders = {
      fs::absolute(folder.empty() ? fs::path(".") : folder, error).lexically_normal()};
  if (folders.front().filename().empty()) folders.front() = folders.front().parent_path();
  while (folders.back() != folders.back().parent_path()) {
    folders.push_back(folders.back().parent_path());
  }
  return folders;
}

/// Returns the hashes of a stage's data sources in the manifest of the run; none if it has no
/// entry.
std::vector<std::string> recorded_hashes(const RunMeta& meta, const std::string& stage,
                                         const std::string& use) {
  const auto text = meta.extra.find("data_manifest");
  if (text == meta.extra.end()) return {};
  const json manifest = json::parse(text->second, nullptr, false);
  if (!manifest.is_array()) return {};
  std::vector<std::string> hashes;
  for (const json& entry : manifest) {
    if (!entry.is_object() || entry.value("stage", json()) != stage ||
        entry.value("use", json()) != use || !entry.value("sources", json()).is_array()) {
      continue;
    }
    for (const json& source : entry["sources"]) {
      const json hash = source.is_object() ? source.value("hash", json()) : json();
      hashes.push_back(hash.is_string() ? hash.get<std::string>() : std::string());
    }
  }
  return hashes;
}

/// Limit of a chain of runs that start from one another; the first started from a folder.
constexpr int kLongestChain = 16;

std::string part_of(const Identity& identity, const std::string& name) {
  for (const auto& [known, hash] : identity) {
    if (known == name) return hash;
  }
  return {};
}

bool has_content(const SourceConfig& source, DataForm form, const fs::path& tokenizer,
                 const std::string& hash, std::span<const ColumnSpec> columns) {
  try {
    return hex16(open_corpus(source, form, tokenizer, columns)->hash()) == hash;
  } catch (const Error&) {
    return false;
  }
}

}  // namespace

std::string recipes_record(const RecipeTexts& recipes) {
  // Names need not be UTF-8.
  return json(recipes).dump(-1, ' ', false, json::error_handler_t::replace);
}

std::string quantizers_record(const std::map<std::string, std::vector<TensorName>>& operands) {
  json record = json::object();
  for (const auto& [recipe, names] : operands) {
    std::map<std::pair<std::string, double>, std::vector<std::size_t>> of_quantizer;
    for (std::size_t i = 0; i < names.size(); ++i) {
      of_quantizer[{names[i].format, names[i].scale_bits_per_element}].push_back(i);
    }
    for (const auto& [quantizer, indices] : of_quantizer) {
      record[recipe].push_back({{"format", quantizer.first},
                                {"scale_bits_per_element", quantizer.second},
                                {"operands", indices}});
    }
  }
  return record.dump(-1, ' ', false, json::error_handler_t::replace);
}

namespace {

/// Keys of a recipe that change no bit.
constexpr std::array<std::string_view, 4> kAboutRecipes = {
    "name: ", "summary: ", "system: ", "source: "};

/// Adds what recorded_differences says of recipes.
void add_recipe_differences(const RunConfig& stored, const RunConfig& now,
                            std::vector<std::string>& found) {
  std::map<std::string, Recipe> before;
  for (const StageConfig& stage : stored.stages) {
    for (const StageRecipe& of : recipes_of(stored, stage)) {
      before.emplace(recipe_part(stage, of), load_recipe(of.name, stored.recorded));
    }
  }
  std::set<std::string> known;
  for (const StageConfig& stage : now.stages) {
    for (const StageRecipe& of : recipes_of(now, stage)) {
      const auto old = before.find(recipe_part(stage, of));
      const Recipe recipe = load_recipe(of.name, now.recorded);
      if (old == before.end() || old->second.hash == recipe.hash) continue;
      for (const std::string& key : differences(old->second.text, recipe.text)) {
        const bool is_about =
            std::any_of(kAboutRecipes.begin(), kAboutRecipes.end(),
                        [&](std::string_view word) { return key.starts_with(word); });
        if (is_about || !known.insert(key).second) continue;
        found.push_back(fmt::format("{}: {}", old->first, key));
      }
    }
  }
}

}  // namespace

std::vector<std::string> recorded_differences(const RunMeta& stored, const RunConfig& now) {
  std::vector<std::string> found = run_differences(stored.config_text, now.text);
  try {
    add_recipe_differences(recorded_run(stored, "run.h5", {}), now, found);
  } catch (const Error&) {
    // Of another version, or its recipe is gone.
  }
  return found;
}

RecipeTexts recorded_recipes(const RunMeta& meta) {
  RecipeTexts recipes;
  if (const auto text = meta.extra.find(kRecipesKey); text != meta.extra.end()) {
    const json recorded = json::parse(text->second, nullptr, false);
    if (!recorded.is_object()) return recipes;
    for (const auto& [name, recipe] : recorded.items()) {
      if (recipe.is_string()) recipes[name] = recipe.get<std::string>();
    }
    return recipes;
  }
  const toml::table config = parse_toml(meta.config_text, "run.h5");
  const std::string name = config["recipe"].value_or(std::string());
  if (!name.empty() && !meta.recipe_text.empty()) recipes[name] = meta.recipe_text;
  return recipes;
}

bool has_configuration(const RunMeta& meta, const std::string& origin) {
  return parse_toml(meta.config_text, origin)["stages"].node() != nullptr;
}

RunConfig recorded_run(const RunMeta& meta, const std::string& origin,
                       const std::vector<Assignment>& assignments) {
  if (!has_configuration(meta, origin)) {
    throw InputError({.where = origin,
                      .reason = "has no configuration: another program wrote it (fp8lab.torch)",
                      .accepted = "a run of fp8lab train"});
  }
  return parse_run_config(meta.config_text, origin, assignments, 1.0, recorded_recipes(meta));
}

RunPlaces::RunPlaces(const RunMeta& meta, fs::path run_file, std::vector<fs::path> look_in)
    : meta_(meta), run_file_(std::move(run_file)), look_in_(std::move(look_in)) {}

std::vector<fs::path> RunPlaces::places_of(const fs::path& recorded) const {
  if (recorded.empty() || run_file_.empty()) return {};
  const fs::path name = last_part(recorded);
  const bool is_relative = recorded.is_relative();
  std::vector<fs::path> places;
  for (const fs::path& folder : look_in_) {
    if (is_relative) places.push_back(folder / recorded);
    if (!name.empty()) places.push_back(folder / name);
  }
  const auto started_in = meta_.extra.find(kStartedInKey);
  places.push_back(started_in == meta_.extra.end() ? recorded : started_in->second / recorded);
  const std::vector<fs::path> folders = with_those_above(run_file_.parent_path());
  if (is_relative) {
    for (const fs::path& folder : folders) places.push_back(folder / recorded);
  }
  const bool is_own = std::find(kOwnFiles.begin(), kOwnFiles.end(), name) != kOwnFiles.end();
  if (!name.empty() && !is_own) places.push_back(folders.front() / name);
  if (is_relative) places.push_back(recorded);
  return places;
}

std::vector<fs::path> RunPlaces::candidates(const fs::path& recorded) const {
  std::vector<fs::path> found;
  std::set<fs::path> known;
  std::error_code error;
  const fs::path here = fs::weakly_canonical(recorded, error);
  for (const fs::path& place : places_of(recorded)) {
    if (!is_present(place)) continue;
    const fs::path file = fs::weakly_canonical(place, error);
    // Messages use the path as the run states it, if it is valid from here.
    if (known.insert(file).second) found.push_back(file == here ? recorded : place);
  }
  return found;
}

InputError RunPlaces::missing(const fs::path& recorded, const std::string& what,
                              const std::string& hash, const std::string& option) const {
  const auto started_in = meta_.extra.find(kStartedInKey);
  const std::string origin = started_in == meta_.extra.end() || recorded.is_absolute()
                                 ? std::string()
                                 : fmt::format(" (of {})", started_in->second);
  const std::string folder = with_those_above(run_file_.parent_path()).front().string();
  const std::vector<fs::path> found = candidates(recorded);
  const std::string others =
      found.empty() ? "" : fmt::format(" ({} holds something else)", found.front().string());
  return InputError({.where = run_file_.string(),
                     .reason = fmt::format("the {} are missing: {}{}{}{}", what, recorded.string(),
                                           origin, hash.empty() ? "" : ", hash " + hash, others),
                     .remedy = fmt::format("put that into {}, or give {}", folder, option)});
}

SourceConfig RunPlaces::located(const SourceConfig& source, DataForm form, const std::string& hash,
                                const std::string& what,
                                std::span<const ColumnSpec> columns) const {
  SourceConfig first = source;
  bool is_sure = true;
  for (fs::path& path : first.paths) {
    const std::vector<fs::path> found = candidates(path);
    if (found.empty()) throw missing(path, what, hash, kLookIn);
    is_sure = is_sure && found.size() == 1;
    path = found.front();
  }
  if (is_sure || hash.empty()) return first;
  fs::path tokenizer = initial_folder();
  if (!is_file(tokenizer / "tokenizer.json")) tokenizer.clear();
  if (has_content(first, form, tokenizer, hash, columns)) return first;
  const std::size_t count = places_of(source.paths.front()).size();
  for (std::size_t place = 0; place < count; ++place) {
    SourceConfig other = source;
    bool is_there = true;
    for (fs::path& path : other.paths) {
      const std::vector<fs::path> places = places_of(path);
      is_there = is_there && place < places.size() && is_present(places[place]);
      if (is_there) path = places[place];
    }
    if (is_there && has_content(other, form, tokenizer, hash, columns)) return other;
  }
  throw missing(source.paths.front(), what, hash, kLookIn);
}

DataConfig RunPlaces::located(DataConfig data, const std::string& stage, const std::string& use,
                              const std::string& what, std::span<const ColumnSpec> columns) const {
  const std::vector<std::string> hashes = recorded_hashes(meta_, stage, use);
  for (std::size_t i = 0; i < data.sources.size(); ++i) {
    const std::string hash = hashes.size() == data.sources.size() ? hashes[i] : std::string();
    data.sources[i] = located(data.sources[i], data.form, hash, what + stage, columns);
  }
  return data;
}

DataConfig RunPlaces::training_data(const StageConfig& stage) const {
  return located(stage.data, stage.name, "train", "training data of stage ",
                 make_objective(stage.objective)->own_columns());
}

DataConfig RunPlaces::evaluation_data(const StageConfig& stage) const {
  return located(stage.eval->data, stage.name, "eval", "evaluation data of stage ", {});
}

fs::path RunPlaces::questions(const StageConfig& stage) const {
  const fs::path& recorded = stage.eval->multiple_choice;
  if (recorded.empty()) return {};
  const std::string what = "questions of stage " + stage.name;
  const std::string hash = part_of(meta_.identity, what);
  const std::vector<fs::path> found = candidates(recorded);
  if (found.empty()) throw missing(recorded, what, hash, kLookIn);
  if (hash.empty()) return found.front();
  const auto same = std::find_if(found.begin(), found.end(), [&](const fs::path& file) {
    return is_file(file) && hex16(xxh3(read_file(file))) == hash;
  });
  if (same == found.end()) throw missing(recorded, what, hash, kLookIn);
  return *same;
}

fs::path RunPlaces::initial_folder() const { return initial_folder(kLongestChain); }

fs::path RunPlaces::initial_folder(int runs_before) const {
  if (run_file_.empty()) return {};
  const toml::table config = parse_toml(meta_.config_text, run_file_.string());
  const auto tokenizer = meta_.extra.find(kTokenizerKey);
  fs::path first;
  for (const fs::path& folder : candidates(config["init_from"].value_or(std::string()))) {
    if (!is_hugging_face_folder(folder)) {
      const fs::path run = (is_folder(folder) ? folder : folder.parent_path()) / "run.h5";
      if (runs_before == 0 || !first.empty() || !is_file(run)) continue;
      first = RunPlaces(read_run_status(run).meta, run, look_in_).initial_folder(runs_before - 1);
      continue;
    }
    if (tokenizer == meta_.extra.end() || folder_tokenizer(folder) == tokenizer->second) {
      return folder;
    }
    if (first.empty()) first = folder;
  }
  return first;
}

}  // namespace fp8lab
