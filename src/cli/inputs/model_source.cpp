#include "src/cli/inputs/model_source.hpp"

#include <fmt/format.h>

#include <system_error>
#include <utility>

#include "emulation/base/input_error.hpp"
#include "src/config/reading/hub_cache.hpp"
#include "src/config/reading/hugging_face.hpp"
#include "src/io/files/file_kind.hpp"
#include "src/train/checkpoint/checkpoint.hpp"
#include "src/train/checkpoint/start_vocabulary.hpp"

namespace fp8lab::cli {
namespace {

namespace fs = std::filesystem;

constexpr const char* kCheckpointFile = "checkpoint.safetensors";

ModelSource open_checkpoint(OpenCheckpoint checkpoint, const std::string& name,
                            const std::vector<fs::path>& look_in) {
  ModelSource source;
  const fs::path path = checkpoint->path();
  source.model = read_checkpoint_model(*checkpoint);
  source.tensors = open_checkpoint_tensors(checkpoint, *source.model);
  source.checkpoint = std::move(checkpoint);
  source.run = run_meta_in(path.parent_path());
  if (source.run) source.places = RunPlaces(*source.run, path.parent_path() / "run.h5", look_in);
  source.tokenizer = source.places.initial_folder();
  source.vocabulary = checkpoint_vocabulary(*source.checkpoint, source.run ? &*source.run : nullptr,
                                            source.places, name, source.model->vocab_size);
  return source;
}

}  // namespace

const ModelConfig& ModelSource::require_model() const {
  if (!model) throw InputError({.where = name, .reason = "no config.json lies beside it"});
  return *model;
}

void ModelSource::require_unchanged(const std::string& part, const std::string& hash,
                                    const std::string& instead) const {
  if (!run) return;
  for (const auto& [known, stored] : run->identity) {
    if (known != part || stored == hash) continue;
    throw InputError(
        {.where = name,
         .reason = fmt::format("the {} was {} in the run and is {} now; put it back, or {}", part,
                               stored, hash, instead)});
  }
}

void add_look_in(Options& options) {
  options.add(
      "look-in", value<std::vector<std::string>>(),
      "folder to search for files of the run that have moved (data, questions, initial weights); "
      "repeatable");
}

std::vector<fs::path> folders_to_look_in(const Values& values, const std::string& command) {
  std::vector<fs::path> folders;
  for (const std::string& folder : words_of(values, "look-in")) {
    if (!is_folder(folder)) {
      throw InputError(
          {.where = command, .key = "--look-in", .found = folder, .reason = ": is no folder"});
    }
    folders.emplace_back(folder);
  }
  return folders;
}

std::string folder_of_run_file(const std::string& path) {
  const fs::path file = path;
  if (file.filename() != "run.h5" || !is_file(file)) return path;
  return file.has_parent_path() ? file.parent_path().string() : ".";
}

ModelSource open_model(const std::string& given, const std::vector<fs::path>& look_in) {
  const std::string path = folder_of_run_file(existing_model_path(given));
  const bool directory = is_folder(path);
  ModelSource source;
  if (directory && is_present(fs::path(path) / kCheckpointFile)) {
    source = open_checkpoint(
        std::make_shared<const CheckpointFile>(fs::path(path) / kCheckpointFile), path, look_in);
  } else if (OpenCheckpoint checkpoint = CheckpointFile::open_if(path)) {
    source = open_checkpoint(std::move(checkpoint), path, look_in);
  } else {
    source.tensors = open_model_tensors(path);
    const fs::path folder = directory ? fs::path(path) : fs::path(path).parent_path();
    if (is_hugging_face_folder(folder)) {
      source.model = read_hugging_face_config(folder);
      source.tensors = fit_to_model(std::move(source.tensors), path, *source.model);
      source.tokenizer = folder;
      source.vocabulary = start_vocabulary(path, source.model->vocab_size);
    }
  }
  source.name = given;
  return source;
}

}  // namespace fp8lab::cli
