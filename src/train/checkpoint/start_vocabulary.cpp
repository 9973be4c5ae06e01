#include "src/train/checkpoint/start_vocabulary.hpp"

#include <nlohmann/json.hpp>

#include "src/config/reading/hugging_face.hpp"
#include "src/io/files/file_kind.hpp"
#include "src/io/hdf5/run_reader.hpp"
#include "src/train/checkpoint/identity.hpp"

namespace fp8lab {
namespace {

namespace fs = std::filesystem;

ModelVocabulary folder_vocabulary(const fs::path& folder, const std::string& origin,
                                  std::int64_t vocab_size) {
  ModelVocabulary vocabulary(vocab_size);
  vocabulary.origin = origin;
  vocabulary.tokenizer = folder_tokenizer(folder);
  if (is_file(folder / "tokenizer.json"))
    vocabulary.folder = folder.empty() ? "." : folder.string();
  return vocabulary;
}

/// Returns the first tokenizer that the data of a run name.
std::string tokenizer_of_data(const RunMeta& run) {
  const auto found = run.extra.find("data_manifest");
  if (found == run.extra.end()) return {};
  const auto manifest = nlohmann::json::parse(found->second, nullptr, false);
  if (!manifest.is_array()) return {};
  for (const auto& entry : manifest) {
    if (!entry.is_object() || !entry.contains("sources")) continue;
    for (const auto& source : entry["sources"]) {
      if (!source.is_object() || !source.contains("tokenizer")) continue;
      const auto& tokenizer = source["tokenizer"];
      if (tokenizer.is_string() && !tokenizer.empty()) {
        const auto name = tokenizer.get<std::string>();
        if (!name.empty()) return name;
      }
    }
  }
  return {};
}

}  // namespace

std::optional<RunMeta> run_meta_in(const fs::path& folder) {
  const fs::path file = folder / "run.h5";
  if (!is_file(file)) return std::nullopt;
  return read_run_status(file).meta;
}

ModelVocabulary checkpoint_vocabulary(const CheckpointFile& checkpoint, const RunMeta* run,
                                      const fs::path& folder, const std::string& origin,
                                      std::int64_t vocab_size) {
  ModelVocabulary vocabulary(vocab_size);
  vocabulary.origin = origin;
  if (!folder.empty()) vocabulary = folder_vocabulary(folder, origin, vocab_size);
  const auto& metadata = checkpoint.file().metadata();
  if (const auto stated = metadata.find(kTokenizerKey); stated != metadata.end()) {
    vocabulary.tokenizer = stated->second;
  } else if (vocabulary.tokenizer.empty() && run != nullptr) {
    vocabulary.tokenizer = tokenizer_of_data(*run);
  }
  return vocabulary;
}

ModelVocabulary start_vocabulary(const fs::path& start, std::int64_t vocab_size) {
  if (!is_present(start)) return vocab_size;
  if (is_folder(start)) return folder_vocabulary(start, start.string(), vocab_size);
  if (const OpenCheckpoint checkpoint = CheckpointFile::open_if(start)) {
    const std::optional<RunMeta> run = run_meta_in(start.parent_path());
    const RunPlaces places =
        run ? RunPlaces(*run, start.parent_path() / "run.h5", {}) : RunPlaces();
    return checkpoint_vocabulary(*checkpoint, run ? &*run : nullptr, places.initial_folder(),
                                 start.string(), vocab_size);
  }
  return folder_vocabulary(start.parent_path(), start.string(), vocab_size);
}

}  // namespace fp8lab
