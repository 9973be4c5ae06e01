// Writes a model as a folder that appears complete or not at all.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "src/io/tensors/safetensors.hpp"
#include "src/model/part_report.hpp"

namespace fp8lab {

/// The content of a model's folder.
struct ModelFolderContent {
  std::string file = {};  ///< the one file of all tensors; empty: model.safetensors or its shards
  std::uint64_t shard_bytes = 5'000'000'000;  ///< as transformers divides models
  std::vector<TensorHeader> headers;
  std::map<std::string, std::string> metadata = {};  ///< of the tensors' files, beside "format"
  /// Returns the bytes of tensor `i` of headers. It is called once for each.
  std::function<TensorBytes(std::size_t)> produce;
  /// Returns the bytes that producing tensor `i` reads, for progress; unset: those of the tensor.
  std::function<std::uint64_t(std::size_t)> work = {};
  std::map<std::string, std::string> files =
      {};                                  ///< further files by name: config.json and the like
  std::filesystem::path copied_from = {};  ///< folder of companion_files to copy; or empty
};

/// Writes `folder`, which appears complete or not at all. The lock of `folder` (FileLock) is held
/// meanwhile, and what a killed process left of an earlier attempt removed. One tensor is in memory
/// at a time. Throws Error if the folder exists and is not empty, or if another process writes it.
void write_model_folder(const std::filesystem::path& folder, const ModelFolderContent& content,
                        const PartReport& report);

/// Throws Error unless `folder` is new or empty. Returns its path without a slash at the end.
std::filesystem::path check_new_folder(const std::filesystem::path& folder);

/// Returns true for the name of a file of tokenizers, templates, processors and generation, which
/// a model's folder has beside the tensors and its configuration.
bool is_companion_file(const std::string& name);

/// Returns the half-written folders beside `folder` that attempts to write it, running or killed,
/// have.
std::vector<std::filesystem::path> unfinished_exports(const std::filesystem::path& folder);
/// Returns the folders in `directory`, there or not, that have some.
std::vector<std::filesystem::path> folders_with_unfinished_exports(
    const std::filesystem::path& directory);
/// Removes one of them with all that it holds. The caller must hold the lock of the folder.
void remove_folder(const std::filesystem::path& folder);

}  // namespace fp8lab
