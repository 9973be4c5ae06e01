#include "src/cli/model_source.hpp"

#include <fmt/format.h>

#include <system_error>
#include <utility>

#include "emulation/base/error.hpp"
#include "src/config/hugging_face.hpp"
#include "src/config/toml_reader.hpp"
#include "src/io/file_kind.hpp"
#include "src/train/checkpoint.hpp"
#include "src/train/start_vocabulary.hpp"

namespace fp8lab::cli {
namespace {

namespace fs = std::filesystem;

constexpr const char* kCheckpointFile = "checkpoint.safetensors";

/// The Hugging Face folder that a run started from, if it is still there.
fs::path initial_folder(const std::string& config_text) {
  const toml::table config = parse_toml(config_text, "run.h5");
  const fs::path start = config["init_from"].value_or(std::string());
  return is_hugging_face_folder(start) ? start : fs::path();
}

ModelSource open_checkpoint(OpenCheckpoint checkpoint, const std::string& name) {
  ModelSource source;
  const fs::path path = checkpoint->path();
  source.model = read_checkpoint_model(*checkpoint);
  source.tensors = open_checkpoint_tensors(checkpoint, *source.model);
  source.checkpoint = std::move(checkpoint);
  const std::optional<RunMeta> run = run_meta_in(path.parent_path());
  if (run) {
    source.run_config = run->config_text;
    source.identity = run->identity;
  }
  source.vocabulary = checkpoint_vocabulary(*source.checkpoint, run ? &*run : nullptr, name,
                                            source.model->vocab_size);
  source.tokenizer = initial_folder(source.run_config);
  return source;
}

}  // namespace

const ModelConfig& ModelSource::require_model() const {
  if (!model) throw Error(fmt::format("{}: no config.json lies beside it", name));
  return *model;
}

void ModelSource::require_unchanged(const std::string& part, const std::string& hash,
                                    const std::string& instead) const {
  for (const auto& [known, stored] : identity) {
    if (known != part || stored == hash) continue;
    throw Error(fmt::format("{}: the {} was {} in the run and is {} now; put it back, or {}", name,
                            part, stored, hash, instead));
  }
}

ModelSource open_model(const std::string& path) {
  const bool directory = is_folder(path);
  ModelSource source;
  if (directory && is_present(fs::path(path) / kCheckpointFile)) {
    source = open_checkpoint(
        std::make_shared<const CheckpointFile>(fs::path(path) / kCheckpointFile), path);
  } else if (OpenCheckpoint checkpoint = CheckpointFile::open_if(path)) {
    source = open_checkpoint(std::move(checkpoint), path);
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
  source.name = path;
  return source;
}

}  // namespace fp8lab::cli
