#include "src/config/reading/hub_cache.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "emulation/base/input_error.hpp"
#include "src/config/reading/document_kind.hpp"
#include "src/config/reading/nearest_name.hpp"
#include "src/io/files/atomic_file.hpp"
#include "src/io/files/file_kind.hpp"
#include "src/io/files/missing_file.hpp"

namespace fp8lab {
namespace {

namespace fs = std::filesystem;

fs::path variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? fs::path() : fs::path(value);
}

/// Finds the cache as huggingface_hub does; empty if no home directory is set.
fs::path hub_folder() {
  if (const fs::path own = variable("HF_HUB_CACHE"); !own.empty()) return own;
  if (const fs::path home = variable("HF_HOME"); !home.empty()) return home / "hub";
  if (const fs::path cache = variable("XDG_CACHE_HOME"); !cache.empty()) {
    return cache / "huggingface/hub";
  }
  const fs::path home = variable("HOME");
  return home.empty() ? fs::path() : home / ".cache/huggingface/hub";
}

/// Returns true if `part` can be one part of a repository name: letters, digits, '-', '_' and
/// '.', at most 96 characters.
bool is_part(std::string_view part) {
  const auto is_allowed = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
           c == '_' || c == '.';
  };
  return !part.empty() && part.size() <= 96 && part.front() != '.' && part.front() != '-' &&
         std::all_of(part.begin(), part.end(), is_allowed);
}

/// Returns true for names of files that commands accept in place of models.
bool is_file_name(const std::string& name) {
  constexpr std::array<std::string_view, 8> kEndings = {".safetensors", ".toml",  ".npy", ".npz",
                                                        ".h5",          ".jsonl", ".txt", ".gguf"};
  return std::any_of(kEndings.begin(), kEndings.end(),
                     [&](std::string_view ending) { return name.ends_with(ending); });
}

/// Returns true for ORGANIZATION/MODEL, unless a file or folder of that name exists.
bool can_be_of_hub(const std::string& name) {
  const std::size_t slash = name.find('/');
  if (slash == std::string::npos || is_file_name(name)) return false;
  const std::string_view all = name;
  return is_part(all.substr(0, slash)) && is_part(all.substr(slash + 1)) && !is_present(name);
}

std::string without_space(std::string text) {
  text.erase(text.find_last_not_of(" \r\n") + 1);
  return text;
}

/// Returns the folder of the snapshot that main refers to; empty if there is none.
fs::path snapshot_of(const std::string& name) {
  const fs::path hub = hub_folder();
  if (hub.empty()) return {};
  const std::size_t slash = name.find('/');
  const fs::path model = hub / ("models--" + name.substr(0, slash) + "--" + name.substr(slash + 1));
  if (!is_file(model / "refs/main")) return {};
  const std::string revision = without_space(read_file(model / "refs/main"));
  const fs::path snapshot = model / "snapshots" / revision;
  return is_part(revision) && is_file(snapshot / "config.json") ? snapshot : fs::path();
}

/// Returns the models in the cache, ORGANIZATION/MODEL.
std::vector<std::string> cached_models() {
  constexpr std::string_view kBegin = "models--";
  std::vector<std::string> models;
  std::error_code unreadable;
  for (const fs::directory_entry& entry : fs::directory_iterator(hub_folder(), unreadable)) {
    std::string name = entry.path().filename().string();
    const std::size_t middle = name.find("--", kBegin.size());
    if (!name.starts_with(kBegin) || middle == std::string::npos) continue;
    name = name.substr(kBegin.size(), middle - kBegin.size()) + "/" + name.substr(middle + 2);
    if (!snapshot_of(name).empty()) models.push_back(std::move(name));
  }
  return models;
}

}  // namespace

std::string did_you_mean_model(const std::string& name) {
  std::vector<std::string> models, last_parts;
  const auto add = [&](std::string model) {
    last_parts.push_back(fs::path(model).filename().string());
    models.push_back(std::move(model));
  };
  const fs::path given =
      fs::path(name).has_filename() ? fs::path(name) : fs::path(name).parent_path();
  std::error_code unreadable;
  const fs::path folder = given.has_parent_path() ? given.parent_path() : fs::path(".");
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, unreadable)) {
    const fs::path& path = entry.path();
    if (is_folder(path) || path.extension() == ".safetensors") {
      add((given.parent_path() / path.filename()).string());
    }
  }
  for (std::string& model : cached_models()) add(std::move(model));
  std::vector<std::string> meant;
  for (const std::string& near : nearest_names(given.filename().string(), last_parts)) {
    for (std::size_t i = 0; i < models.size(); ++i) {
      if (last_parts[i] == near) meant.push_back(models[i]);
    }
  }
  constexpr std::size_t kMostNames = 5;
  std::sort(meant.begin(), meant.end());
  if (meant.size() > kMostNames) meant.resize(kMostNames);
  return meant.empty() ? "" : fmt::format(" (did you mean '{}'?)", fmt::join(meant, "' or '"));
}

std::string existing_model_path(const std::string& name) {
  std::string path = require_model_path(name);
  refuse_document(path, "a model or a run");
  if (is_present(path)) return path;
  throw InputError(
      {.where = name,
       .reason = "there is no such file or folder" + did_you_mean_model(name) + where_looked(name),
       .accepted = kAcceptedModels});
}

std::string model_path(const std::string& name) {
  if (!can_be_of_hub(name)) return name;
  const fs::path snapshot = snapshot_of(name);
  return snapshot.empty() ? name : snapshot.string();
}

std::string start_path(const std::string& name) {
  const fs::path path = model_path(name);
  refuse_document(path, "a model or a run");
  const fs::path folder = path.filename() == "run.h5" ? path.parent_path() : path;
  const fs::path checkpoint = folder / "checkpoint.safetensors";
  return is_present(folder / "run.h5") && is_present(checkpoint) ? checkpoint.string()
                                                                 : path.string();
}

std::string require_model_path(const std::string& name) {
  const std::string path = model_path(name);
  if (path != name || !can_be_of_hub(name)) return path;
  if (is_present(fs::path(name).parent_path())) return path;
  throw InputError(
      {.where = name,
       .reason = fmt::format(
           "is neither a path nor a model in the Hub's cache {}; download it: hf download {}",
           hub_folder().string(), name)});
}

}  // namespace fp8lab
