// A checkpoint open for reading.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>

#include "src/io/tensors/safetensors.hpp"

namespace fp8lab {

/// A checkpoint and the checksums of its tensors. All reads are from one file, even if a run
/// replaces its checkpoint meanwhile.
class CheckpointFile {
 public:
  /// Reads the header. Throws Error for a file that is no checkpoint, another version, and a
  /// damaged header.
  explicit CheckpointFile(const std::filesystem::path& path);

  /// Returns null for a file that is no checkpoint. Throws Error as the constructor does.
  static std::shared_ptr<const CheckpointFile> open_if(const std::filesystem::path& path);

  const std::string& path() const { return file_.path(); }
  const SafetensorsFile& file() const { return file_; }
  std::uint64_t hash() const { return hash_; }  ///< over all checksums
  /// Returns a field of the metadata. Throws Error if it is missing.
  std::string field(const std::string& key) const;

  /// Calls visit as visit_data does, then compares the checksum. Throws Error naming the tensor.
  void read(const StoredTensor& tensor,
            const std::function<void(std::size_t, std::span<const std::byte>)>& visit) const;
  void verify(const StoredTensor& tensor) const;

 private:
  SafetensorsFile file_;
  std::map<std::string, std::uint64_t> hashes_;
  std::uint64_t hash_ = 0;
};

/// One checkpoint, shared by its readers; null: none.
using OpenCheckpoint = std::shared_ptr<const CheckpointFile>;

/// Returns a field of the metadata of a checkpoint called `origin`. Throws Error if it is missing.
std::string checkpoint_field(const std::map<std::string, std::string>& metadata,
                             const std::string& origin, const std::string& key);

}  // namespace fp8lab
