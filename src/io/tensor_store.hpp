// The tensors of a model in one safetensors file or in several with an index.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "src/io/safetensors.hpp"

namespace fp8lab {

/// Open files of one model. In a folder: model.safetensors, else the shards that
/// model.safetensors.index.json names.
class TensorStore {
 public:
  /// `path` is a safetensors file or a folder. Throws Error naming the file for what
  /// SafetensorsFile refuses, for an index that is no index or names a file outside the folder, and
  /// where index and shards disagree on the tensors.
  explicit TensorStore(const std::filesystem::path& path);

  /// All tensors: by file, and by place in it.
  const std::vector<const StoredTensor*>& tensors() const { return tensors_; }
  const StoredTensor* find(const std::string& name) const;  ///< null when there is none
  /// Throws Error naming the file or folder and `name` when there is no such tensor.
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

/// Tensor name -> shard file name of an index file's text. Throws Error naming `origin` and the
/// tensor.
std::map<std::string, std::string> parse_shard_index(std::string_view text,
                                                     const std::string& origin);

/// Writes tensors into `folder`: model.safetensors when they fit into `shard_bytes`, else
/// model-0000i-of-0000n.safetensors, each of at most that size unless one tensor is larger, and
/// model.safetensors.index.json. `produce` as in write_safetensors.
void write_tensor_store(const std::filesystem::path& folder, std::uint64_t shard_bytes,
                        const std::vector<TensorHeader>& tensors,
                        const std::function<TensorBytes(std::size_t)>& produce);

}  // namespace fp8lab
