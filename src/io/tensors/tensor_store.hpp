// The tensors of a model in one safetensors file, or in several with an index.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "src/io/tensors/safetensors.hpp"

namespace fp8lab {

/// The open files of one model. In a folder: model.safetensors, else the shards that
/// model.safetensors.index.json names.
class TensorStore {
 public:
  /// `path` is a safetensors file or a folder. Throws Error that names the file if SafetensorsFile
  /// refuses it, if an index is malformed or names a file outside the folder, or if index and
  /// shards disagree on the tensors.
  explicit TensorStore(const std::filesystem::path& path);

  /// All tensors, ordered by file and by position in the file.
  const std::vector<const StoredTensor*>& tensors() const { return tensors_; }
  const StoredTensor* find(const std::string& name) const;  ///< null if there is none
  /// Throws Error that names the file or folder and `name` if there is no such tensor.
  const StoredTensor& at(const std::string& name) const;
  const std::string& path() const { return path_; }
  const std::vector<SafetensorsFile>& files() const { return files_; }

 private:
  void open_shards(const std::filesystem::path& folder);

  std::string path_;
  std::vector<SafetensorsFile> files_;
  std::vector<const StoredTensor*> tensors_;
  std::unordered_map<std::string, const StoredTensor*> by_name_;
};

/// Returns the map from tensor name to shard file name in the text of an index file. Throws Error
/// that names `origin` and the tensor.
std::map<std::string, std::string> parse_shard_index(std::string_view text,
                                                     const std::string& origin);

/// Writes tensors into `folder`: model.safetensors if they fit into `shard_bytes`, else
/// model-0000i-of-0000n.safetensors, each of at most that size unless a single tensor is larger,
/// and model.safetensors.index.json. `produce` as in write_safetensors. `metadata` is added to that
/// of every file.
void write_tensor_store(const std::filesystem::path& folder, std::uint64_t shard_bytes,
                        const std::vector<TensorHeader>& tensors,
                        const std::function<TensorBytes(std::size_t)>& produce,
                        const std::map<std::string, std::string>& metadata = {});

}  // namespace fp8lab
