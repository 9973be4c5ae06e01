#include "src/model/dialects/folder_writer.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>
#include <set>
#include <system_error>

#include "emulation/base/error.hpp"
#include "emulation/base/input_error.hpp"
#include "src/io/files/atomic_file.hpp"
#include "src/io/files/file_kind.hpp"
#include "src/io/files/file_lock.hpp"
#include "src/io/tensors/tensor_store.hpp"

namespace fp8lab {
namespace {

namespace fs = std::filesystem;

constexpr std::array<const char*, 18> kCompanionFiles = {"tokenizer.json",
                                                         "tokenizer_config.json",
                                                         "special_tokens_map.json",
                                                         "added_tokens.json",
                                                         "vocab.json",
                                                         "vocab.txt",
                                                         "merges.txt",
                                                         "tokenizer.model",
                                                         "tekken.json",
                                                         "spiece.model",
                                                         "sentencepiece.bpe.model",
                                                         "chat_template.jinja",
                                                         "chat_template.json",
                                                         "generation_config.json",
                                                         "preprocessor_config.json",
                                                         "video_preprocessor_config.json",
                                                         "processor_config.json",
                                                         "tokenizer.model.v3"};
constexpr std::array<const char*, 2> kConfigFiles = {"config.json", "hf_quant_config.json"};

/// A folder that vanishes unless it got its name.
class TemporaryFolder {
 public:
  explicit TemporaryFolder(const fs::path& path) : path_(temporary_beside(path)) {
    make_directories(path_);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  ~TemporaryFolder() {
    std::error_code ignored;
    if (!path_.empty()) fs::remove_all(path_, ignored);
  }
  const fs::path& path() const { return path_; }

  void rename_to(const fs::path& path) {
    std::error_code error;
    fs::rename(path_, path, error);  // replaces an empty folder
    if (error) {
      throw RuntimeFailure(
          fmt::format("{}: cannot rename a new folder to it: {}", path.string(), error.message()));
    }
    path_.clear();
  }

 private:
  fs::path path_;
};

bool is_exported_file(const fs::directory_entry& entry) {
  std::error_code ignored;
  if (!fs::is_regular_file(entry.symlink_status(ignored))) return false;
  const fs::path path = target_of_temporary(entry.path()).value_or(entry.path());
  const std::string name = path.filename().string();
  return name.ends_with(".safetensors") || name.ends_with(".safetensors.index.json") ||
         std::find(kConfigFiles.begin(), kConfigFiles.end(), name) != kConfigFiles.end() ||
         is_companion_file(name);
}

/// A folder, no link to one, that holds nothing but files which write_model_folder writes.
bool holds_export(const fs::path& path) {
  std::error_code ignored;
  if (!fs::is_directory(fs::symlink_status(path, ignored))) return false;
  const fs::directory_iterator entries(path, ignored);
  return std::all_of(begin(entries), end(entries), is_exported_file);
}

void copy_companions(const fs::path& from, const fs::path& to) {
  if (from.empty()) return;
  for (const char* name : kCompanionFiles) {
    if (!is_file(from / name)) continue;
    write_file_atomically(to / name, read_file(from / name));
  }
}

}  // namespace

bool is_companion_file(const std::string& name) {
  return std::find(kCompanionFiles.begin(), kCompanionFiles.end(), name) != kCompanionFiles.end();
}

fs::path check_new_folder(const fs::path& folder) {
  const fs::path path = folder.has_filename() ? folder : folder.parent_path();
  std::error_code ignored;
  if (is_present(path) && (!is_folder(path) || !fs::is_empty(path, ignored))) {
    throw InputError(
        {.where = folder.string(), .reason = "exists", .accepted = "a new folder or an empty one"});
  }
  return path;
}

std::vector<fs::path> unfinished_exports(const fs::path& folder) {
  std::vector<fs::path> found;
  for (const fs::path& path : temporaries(folder)) {
    if (holds_export(path)) found.push_back(path);
  }
  return found;
}

std::vector<fs::path> folders_with_unfinished_exports(const fs::path& directory) {
  std::set<fs::path> found;
  for (const fs::directory_entry& entry : fs::directory_iterator(directory)) {
    const std::optional<fs::path> target = target_of_temporary(entry.path());
    if (target && holds_export(entry.path())) found.insert(*target);
  }
  return {found.begin(), found.end()};
}

void remove_folder(const fs::path& folder) {
  std::error_code error;
  fs::remove_all(folder, error);
  if (!error) return;
  throw RuntimeFailure(fmt::format("{}: cannot remove what a killed process left: {}",
                                   folder.string(), error.message()));
}

void write_model_folder(const fs::path& folder, const ModelFolderContent& content,
                        const PartReport& report) {
  const fs::path path = check_new_folder(folder);
  make_directories(path.parent_path());
  const std::optional<FileLock> lock = FileLock::try_acquire(path);
  if (!lock) {
    throw InputError({.where = folder.string(),
                      .reason = fmt::format("is being written by {}", FileLock::owner(path))});
  }
  for (const fs::path& left : unfinished_exports(path)) remove_folder(left);
  TemporaryFolder temporary(path);
  const auto megabytes = [](std::uint64_t bytes) {
    return static_cast<std::size_t>(bytes / 1'000'000);
  };
  const std::string part = "writing " + folder.string();
  std::uint64_t all = 0, done = 0;
  const auto work_of = [&](std::size_t i) {
    return content.work ? content.work(i) : content.headers[i].bytes();
  };
  for (std::size_t i = 0; i < content.headers.size(); ++i) all += work_of(i);
  const auto produce = [&](std::size_t i) {
    if (report) report(part, megabytes(done), std::max<std::size_t>(megabytes(all), 1), "MB");
    done += work_of(i);
    return content.produce(i);
  };
  if (content.file.empty()) {
    write_tensor_store(temporary.path(), content.shard_bytes, content.headers, produce,
                       content.metadata);
  } else {
    write_safetensors(temporary.path() / content.file, {{"format", "pt"}}, content.headers,
                      produce);
  }
  copy_companions(content.copied_from, temporary.path());
  for (const auto& [name, text] : content.files) {
    write_file_atomically(temporary.path() / name, text);
  }
  temporary.rename_to(path);
}

}  // namespace fp8lab
