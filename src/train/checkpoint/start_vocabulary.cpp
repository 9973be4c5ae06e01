#include "src/train/checkpoint/start_vocabulary.hpp"

#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

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

constexpr const char* kTokenizerFile = "tokenizer.json";

constexpr int kMostRunsBefore = 16;  ///< that start from each other

/// Returns the folders in which a run, or one of up to `runs_before` that it started from, may have
/// its tokenizer.json, the likeliest first.
std::vector<fs::path> tokenizer_folders(const RunMeta& run, const RunPlaces& places,
                                        int runs_before) {
  std::vector<fs::path> folders;
  try {
    const RunConfig config = recorded_run(run, "run.h5", {});
    for (auto stage = config.stages.rbegin(); stage != config.stages.rend(); ++stage) {
      for (const SourceConfig& data : stage->data.sources) {
        for (const fs::path& path : data.paths) {
          for (const fs::path& found : places.candidates(path)) {
            folders.push_back(is_folder(found) ? found : found.parent_path());
          }
        }
      }
    }
    for (const fs::path& start : places.candidates(config.init_from)) {
      const fs::path file = (is_folder(start) ? start : start.parent_path()) / "run.h5";
      if (runs_before == 0 || !is_file(file)) continue;
      const RunMeta before = read_run_status(file).meta;
      for (fs::path& folder :
           tokenizer_folders(before, RunPlaces(before, file, {}), runs_before - 1)) {
        folders.push_back(std::move(folder));
      }
      break;
    }
  } catch (const Error&) {
    // The configuration is of another version: what needs it says so.
  }
  for (const fs::path& found : places.candidates(kTokenizerFile)) {
    folders.push_back(found.has_parent_path() ? found.parent_path() : fs::path("."));
  }
  return folders;
}

}  // namespace

std::optional<RunMeta> run_meta_in(const fs::path& folder) {
  const fs::path file = folder / "run.h5";
  if (!is_file(file)) return std::nullopt;
  return read_run_status(file).meta;
}

ModelVocabulary checkpoint_vocabulary(const CheckpointFile& checkpoint, const RunMeta* run,
                                      const RunPlaces& places, const std::string& origin,
                                      std::int64_t vocab_size) {
  ModelVocabulary vocabulary(vocab_size);
  vocabulary.origin = origin;
  const fs::path folder = places.initial_folder();
  if (!folder.empty()) vocabulary = folder_vocabulary(folder, origin, vocab_size);
  const std::string of_folder = vocabulary.tokenizer;
  const auto& metadata = checkpoint.file().metadata();
  if (const auto stated = metadata.find(kTokenizerKey); stated != metadata.end()) {
    vocabulary.tokenizer = stated->second;
  } else if (vocabulary.tokenizer.empty() && run != nullptr) {
    vocabulary.tokenizer = tokenizer_of_data(*run);
  }
  const std::string& known = vocabulary.tokenizer;
  const bool is_found = !vocabulary.folder.empty() && of_folder == known;
  if (is_found || run == nullptr || known.empty() || known == "bytes") return vocabulary;
  for (const fs::path& place : tokenizer_folders(*run, places, kMostRunsBefore)) {
    if (!is_file(place / kTokenizerFile) || folder_tokenizer(place) != known) continue;
    vocabulary.folder = place.string();
    break;
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
    return checkpoint_vocabulary(*checkpoint, run ? &*run : nullptr, places, start.string(),
                                 vocab_size);
  }
  return folder_vocabulary(start.parent_path(), start.string(), vocab_size);
}

}  // namespace fp8lab
