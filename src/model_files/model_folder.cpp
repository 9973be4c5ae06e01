#include "src/model_files/model_folder.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <set>

#include "emulation/base/error.hpp"
#include "src/io/files/atomic_file.hpp"
#include "src/io/files/file_kind.hpp"
#include "src/io/json_document.hpp"
#include "src/io/tensors/tensor_store.hpp"

namespace fp8lab {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr const char* kSingleFile = "model.safetensors";
constexpr const char* kIndexFile = "model.safetensors.index.json";

/// Names of scales and of what belongs to inputs, outputs and caches, after a module or weight.
constexpr std::array<std::string_view, 7> kScaleSuffixes = {
    "_scale_inv",           ".weight_scale", ".weight_scale_2",
    ".weight_global_scale", "_weight_scale", "_weight_per_tensor_scale",
    "_proj_scale"};
constexpr std::array<std::string_view, 9> kInputSuffixes = {
    ".input_scale",      ".input_global_scale",
    ".activation_scale", ".output_scale",
    ".k_scale",          ".v_scale",
    ".q_scale",          ".prob_scale",
    ".weight_shape"};

template <std::size_t N>
bool ends_with_any(const std::string& name, const std::array<std::string_view, N>& suffixes) {
  return std::any_of(suffixes.begin(), suffixes.end(),
                     [&](std::string_view suffix) { return name.ends_with(suffix); });
}

class FolderReader {
 public:
  FolderReader(fs::path path, std::vector<ModelFinding>& findings) : findings_(findings) {
    folder_.path = std::move(path);
  }

  ModelFolder read() {
    if (is_folder(folder_.path)) {
      read_files();
      read_config();
    } else {
      open(folder_.path);
    }
    for (const SafetensorsFile& file : folder_.files) {
      folder_.metadata.insert(file.metadata().begin(), file.metadata().end());
      for (const StoredTensor& tensor : file.tensors()) add_tensor(file, tensor);
    }
    folder_.claim = read_claim(folder_.config);
    for (const std::string& problem : folder_.claim.problems) {
      add("config_malformed", "config.json",
          problem + ": loaders refuse the folder or read its weights by their defaults");
    }
    for (const std::string& setting : folder_.claim.unread) {
      add("config_unread", "config.json",
          fmt::format("quantization_config: {}: nothing here applies it, and weights read without "
                      "it are other weights",
                      setting));
    }
    if (folder_.claim.dialect && !folder_.claim.unknown.empty()) {
      add("config_unknown", "config.json",
          fmt::format("quantization_config has keys that are not known here: {}",
                      fmt::join(folder_.claim.unknown, ", ")),
          Severity::warning);
    }
    group();
    return std::move(folder_);
  }

 private:
  void add(const char* kind, const std::string& tensor, std::string text,
           Severity severity = Severity::error) {
    findings_.push_back({severity, kind, tensor, {}, 1, std::move(text)});
  }

  bool open(const fs::path& file) {
    try {
      folder_.files.emplace_back(file);
      return true;
    } catch (const Error& error) {
      add("file_unreadable", file.filename().string(),
          fmt::format("{}: none of its tensors can be loaded", error.what()));
      return false;
    }
  }

  void read_files() {
    const bool has_single = is_present(folder_.path / kSingleFile);
    const bool has_index = is_present(folder_.path / kIndexFile);
    std::set<std::string> read;
    if (has_single) {
      open(folder_.path / kSingleFile);
      read.insert(kSingleFile);
    } else if (has_index) {
      read = read_shards();
    }
    if (has_single && has_index) {
      add("index_ignored", kIndexFile,
          fmt::format("stands beside {}: loaders read that file alone, and the shards not at all",
                      kSingleFile),
          Severity::warning);
    }
    for (const fs::directory_entry& entry : fs::directory_iterator(folder_.path)) {
      const std::string name = entry.path().filename().string();
      if (!name.ends_with(".safetensors") || read.count(name) != 0) continue;
      if (has_single || has_index) {
        add("file_not_listed", name, "no loader reads this file: its tensors are not in the index",
            Severity::warning);
      } else {
        add("index_missing", name,
            fmt::format("neither {} nor {} is there, so that loaders find no weights", kSingleFile,
                        kIndexFile));
        open(entry.path());
      }
    }
  }

  std::set<std::string> read_shards() {
    const fs::path file = folder_.path / kIndexFile;
    std::map<std::string, std::string> shard_of;
    std::set<std::string> shards;
    try {
      shard_of = parse_shard_index(read_file(file), file.string());
    } catch (const Error& error) {
      add("index_malformed", kIndexFile, fmt::format("{}: no shard is loaded", error.what()));
      return shards;
    }
    for (const auto& [name, shard] : shard_of) shards.insert(shard);
    std::set<std::string> opened;
    for (const std::string& shard : shards) {
      if (!is_present(folder_.path / shard)) {
        add("shard_missing", shard, "the index names this file, which is not there");
      } else if (open(folder_.path / shard)) {
        opened.insert(shard);
        compare_shard(folder_.files.back(), shard, shard_of);
      }
    }
    for (const auto& [name, shard] : shard_of) {
      if (opened.count(shard) == 0) continue;
      const auto is_it = [&](const SafetensorsFile& one) {
        return fs::path(one.path()).filename() == shard && one.find(name) != nullptr;
      };
      if (std::any_of(folder_.files.begin(), folder_.files.end(), is_it)) continue;
      add("index_mismatch", name,
          fmt::format("the index says that it is in {}, where it is not: it keeps its random "
                      "initial values, or loading fails",
                      shard));
    }
    return shards;
  }

  void compare_shard(const SafetensorsFile& file, const std::string& shard,
                     const std::map<std::string, std::string>& shard_of) {
    for (const StoredTensor& tensor : file.tensors()) {
      const auto named = shard_of.find(tensor.name);
      if (named == shard_of.end()) {
        add("index_mismatch", tensor.name,
            fmt::format("is in {}, but the index does not list it: loaders that follow the index "
                        "never read it",
                        shard));
      } else if (named->second != shard) {
        add("index_mismatch", tensor.name,
            fmt::format("is in {}, but the index says {}", shard, named->second));
      }
    }
  }

  void read_config() {
    const fs::path file = folder_.path / "config.json";
    if (!is_present(file)) {
      add("config_missing", "config.json", "is not there: no loader knows the model");
      return;
    }
    try {
      folder_.config = read_json_object(file);
    } catch (const Error& error) {
      add("config_malformed", "config.json",
          fmt::format("{}: no loader knows the model", error.what()));
    }
  }

  void add_tensor(const SafetensorsFile& file, const StoredTensor& tensor) {
    const auto [found, is_new] = folder_.by_name.emplace(tensor.name, &tensor);
    if (is_new) {
      folder_.tensors.push_back(&tensor);
      return;
    }
    add("tensor_twice", tensor.name,
        fmt::format("is in {} and in {}: which one counts depends on the loader",
                    fs::path(found->second->file->path()).filename().string(),
                    fs::path(file.path()).filename().string()));
  }

  void group() {
    const FindTensor find = [&](const std::string& name) { return folder_.find(name); };
    std::set<std::string> used;
    for (const StoredTensor* tensor : folder_.tensors) {
      if (tensor->name.ends_with("_scale_inv")) continue;
      std::optional<StoredWeight> weight = weight_of_codes(*tensor, find, folder_.claim.dialect);
      if (!weight) continue;
      read_torchao_fields(*weight);
      used.insert(tensor->name);
      for (const StoredTensor* part : {weight->scales, weight->global}) {
        if (part != nullptr) used.insert(part->name);
      }
      folder_.weights.push_back(std::move(*weight));
    }
    for (const StoredTensor* tensor : folder_.tensors) {
      if (used.count(tensor->name) != 0) continue;
      const bool is_scale = ends_with_any(tensor->name, kScaleSuffixes);
      if (is_scale) {
        folder_.orphans.push_back(tensor);
      } else if (!ends_with_any(tensor->name, kInputSuffixes)) {
        folder_.plain.push_back(tensor);
      }
    }
  }

  /// torchao states in the header whether scales are swizzled.
  void read_torchao_fields(StoredWeight& weight) const {
    if (weight.layout.dialect != Dialect::torchao) return;
    const auto found = folder_.metadata.find(weight.name);
    if (found == folder_.metadata.end()) return;
    const json table = json::parse(found->second, nullptr, false);
    if (!table.is_object() || !table.contains("_data") || !table["_data"].is_object()) return;
    const json& swizzled = table["_data"].value("is_swizzled_scales", json(false));
    weight.is_swizzled = swizzled.is_boolean() && swizzled.get<bool>();
  }

  std::vector<ModelFinding>& findings_;
  ModelFolder folder_;
};

}  // namespace

const char* severity_name(Severity severity) {
  switch (severity) {
    case Severity::error: return "error";
    case Severity::warning: return "warning";
    case Severity::note: break;
  }
  return "note";
}

const StoredTensor* ModelFolder::find(const std::string& name) const {
  const auto found = by_name.find(name);
  return found == by_name.end() ? nullptr : found->second;
}

ModelFolder open_model_folder(const fs::path& path, std::vector<ModelFinding>& findings) {
  ModelFolder folder = FolderReader(path, findings).read();
  if (folder.files.empty() && findings.empty()) {
    throw Error(fmt::format("{}: holds no model; accepted: a folder with {} or {}", path.string(),
                            kSingleFile, kIndexFile));
  }
  return folder;
}

bool is_model_folder(const fs::path& path) {
  if (!is_folder(path)) return path.extension() == ".safetensors" && is_file(path);
  if (is_present(path / "run.h5") || is_present(path / "study.h5")) return false;
  if (is_present(path / "config.json") || is_present(path / kIndexFile)) return true;
  const fs::directory_iterator entries(path);
  return std::any_of(begin(entries), end(entries), [](const fs::directory_entry& entry) {
    const fs::path name = entry.path().filename();
    return name.extension() == ".safetensors" && name != "checkpoint.safetensors" &&
           name.string()[0] != '.';
  });
}

std::string module_of_tensor(const std::string& name) {
  const std::size_t dot = name.rfind('.');
  return dot == std::string::npos ? name : name.substr(0, dot);
}

std::string leaf_of_module(const std::string& module) {
  const std::size_t dot = module.rfind('.');
  return dot == std::string::npos ? module : module.substr(dot + 1);
}

const json& config_field(const json& config, const char* key) {
  static const json kNull;
  if (!config.is_object()) return kNull;
  const auto found = config.find(key);
  return found == config.end() ? kNull : *found;
}

std::int64_t config_number(const json& config, const char* key, std::int64_t otherwise) {
  const json& value = config_field(config, key);
  return value.is_number_integer() ? value.get<std::int64_t>() : otherwise;
}

}  // namespace fp8lab
