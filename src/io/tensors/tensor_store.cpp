#include "src/io/tensors/tensor_store.hpp"

#include <fmt/format.h>

#include <set>
#include <system_error>
#include <utility>

#include "emulation/base/input_error.hpp"
#include "src/io/files/atomic_file.hpp"
#include "src/io/files/file_kind.hpp"
#include "src/io/json_document.hpp"

namespace fp8lab {
namespace {

namespace fs = std::filesystem;

constexpr const char* kSingleFile = "model.safetensors";
constexpr const char* kIndexFile = "model.safetensors.index.json";
/// The metadata that transformers writes and requires.
const std::map<std::string, std::string> kMetadata = {{"format", "pt"}};

bool is_shard_name(const std::string& name) {
  return name.ends_with(".safetensors") && name.find('/') == std::string::npos &&
         name.find('\0') == std::string::npos;
}

/// Returns the index of the first tensor of each shard, and the end.
std::vector<std::size_t> divide(const std::vector<TensorHeader>& tensors,
                                std::uint64_t shard_bytes) {
  std::vector<std::size_t> first = {0};
  std::uint64_t filled = 0;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const std::uint64_t bytes = tensors[i].bytes();
    if (filled > 0 && filled + bytes > shard_bytes) {
      first.push_back(i);
      filled = 0;
    }
    filled += bytes;
  }
  first.push_back(tensors.size());
  return first;
}

}  // namespace

std::map<std::string, std::string> parse_shard_index(std::string_view text,
                                                     const std::string& origin) {
  const nlohmann::json document = parse_json(text, origin);
  const auto map = document.is_object() ? document.find("weight_map") : document.end();
  if (map == document.end() || !map->is_object()) {
    throw InputError({.where = origin, .reason = "is no index: needs an object 'weight_map'"});
  }
  std::map<std::string, std::string> files;
  for (const auto& [name, file] : map->items()) {
    if (!file.is_string() || !is_shard_name(file.get<std::string>())) {
      throw InputError(
          {.where = origin,
           .noun = "tensor",
           .key = name.substr(0, 200),
           .reason = ": the shard is not the name of a .safetensors file beside the index"});
    }
    files[name] = file.get<std::string>();
  }
  if (files.empty())
    throw InputError({.where = origin, .key = "weight_map", .reason = "names no tensor"});
  return files;
}

TensorStore::TensorStore(const fs::path& path) : path_(path.string()) {
  if (!is_folder(path)) {
    files_.emplace_back(path);
  } else if (is_present(path / kSingleFile)) {
    files_.emplace_back(path / kSingleFile);
  } else if (is_present(path / kIndexFile)) {
    open_shards(path);
  } else {
    const fs::path of_run = path / "checkpoint.safetensors";
    if (is_present(path / "run.h5") && !is_present(of_run)) {
      throw InputError({.where = path_,
                        .reason = "a run without a checkpoint: it ended before its first one "
                                  "(logging.checkpoint_every_steps), or another program wrote it "
                                  "(fp8lab.torch)",
                        .accepted = "a run with checkpoint.safetensors"});
    }
    throw InputError({.where = path_,
                      .reason = "holds no model",
                      .accepted = fmt::format(
                          "a folder with {} or {}{}", kSingleFile, kIndexFile,
                          is_present(of_run) ? ", or the run's weights, " + of_run.string() : "")});
  }
  for (const SafetensorsFile& file : files_) {
    for (const StoredTensor& tensor : file.tensors()) {
      tensors_.push_back(&tensor);
      by_name_[tensor.name] = &tensor;
    }
  }
}

void TensorStore::open_shards(const fs::path& folder) {
  const std::string index = (folder / kIndexFile).string();
  const std::map<std::string, std::string> shard_of = parse_shard_index(read_file(index), index);
  std::set<std::string> shards;
  for (const auto& [name, shard] : shard_of) shards.insert(shard);
  for (const std::string& shard : shards) {
    files_.emplace_back(folder / shard);
    for (const StoredTensor& tensor : files_.back().tensors()) {
      const auto named = shard_of.find(tensor.name);
      if (named == shard_of.end() || named->second != shard) {
        throw InputError(
            {.where = files_.back().path(),
             .noun = "tensor",
             .key = tensor.name,
             .reason = fmt::format(
                 "is here, but {} {}", kIndexFile,
                 named == shard_of.end() ? "does not list it" : "says " + named->second)});
      }
    }
  }
  for (const auto& [name, shard] : shard_of) {
    const auto at = static_cast<std::size_t>(std::distance(shards.begin(), shards.find(shard)));
    if (files_[at].find(name) == nullptr) {
      throw InputError({.where = fmt::to_string(index),
                        .noun = "tensor",
                        .key = name,
                        .reason = fmt::format("is not in {}, where the index says it is", shard)});
    }
  }
}

const StoredTensor* TensorStore::find(const std::string& name) const {
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? nullptr : found->second;
}

const StoredTensor& TensorStore::at(const std::string& name) const {
  const StoredTensor* const tensor = find(name);
  if (tensor == nullptr) throw InputError({.where = path_, .noun = "no tensor", .key = name});
  return *tensor;
}

void write_tensor_store(const fs::path& folder, std::uint64_t shard_bytes,
                        const std::vector<TensorHeader>& tensors,
                        const std::function<TensorBytes(std::size_t)>& produce,
                        const std::map<std::string, std::string>& metadata) {
  std::map<std::string, std::string> all = kMetadata;
  all.insert(metadata.begin(), metadata.end());
  const std::vector<std::size_t> first = divide(tensors, shard_bytes);
  const std::size_t shards = first.size() - 1;
  if (shards == 1) return write_safetensors(folder / kSingleFile, all, tensors, produce);
  nlohmann::json index;
  std::uint64_t total = 0;
  std::set<std::string_view> names;
  for (const TensorHeader& tensor : tensors) {
    total += tensor.bytes();
    if (names.insert(tensor.name).second) continue;
    throw InputError(
        {.noun = "tensor", .key = tensor.name, .reason = "is to be written under a taken name"});
  }
  index["metadata"]["total_size"] = total;
  for (std::size_t shard = 0; shard < shards; ++shard) {
    const std::string file = fmt::format("model-{:05}-of-{:05}.safetensors", shard + 1, shards);
    const auto begin = tensors.begin() + static_cast<std::ptrdiff_t>(first[shard]);
    const auto end = tensors.begin() + static_cast<std::ptrdiff_t>(first[shard + 1]);
    write_safetensors(folder / file, all, {begin, end},
                      [&](std::size_t i) { return produce(first[shard] + i); });
    for (auto tensor = begin; tensor != end; ++tensor) index["weight_map"][tensor->name] = file;
  }
  write_file_atomically(folder / kIndexFile, index.dump(2) + "\n");
}

}  // namespace fp8lab
