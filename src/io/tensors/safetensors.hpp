// The safetensors container: a JSON header and raw little-endian tensors. The same reader and
// writer serve checkpoints and models.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "src/io/files/input_file.hpp"
#include "src/io/tensors/safetensors_header.hpp"

namespace fp8lab {

/// A tensor of an open file.
struct StoredTensor : TensorHeader {
  const InputFile* file = nullptr;  ///< valid as long as the SafetensorsFile
  std::uint64_t offset = 0;         ///< offset of its first byte in the file
};

/// An open file. The constructor reads only the header.
class SafetensorsFile {
 public:
  /// Checks header length, names, types, shapes and offsets before anything is built from them
  /// (parse_safetensors_header). Throws Error that names the file and the tensor.
  explicit SafetensorsFile(const std::filesystem::path& path);

  const std::string& path() const { return file_->path(); }
  const std::map<std::string, std::string>& metadata() const { return metadata_; }
  const std::vector<StoredTensor>& tensors() const { return tensors_; }  ///< in file order
  const StoredTensor* find(const std::string& name) const;               ///< null if there is none
  /// Throws Error that names the file and `name` if there is no such tensor.
  const StoredTensor& at(const std::string& name) const;

 private:
  std::unique_ptr<const InputFile> file_;  ///< keeps its address when this object moves
  std::map<std::string, std::string> metadata_;
  std::vector<StoredTensor> tensors_;
  std::unordered_map<std::string, std::size_t> index_;
};

/// Calls visit(offset, bytes) for pieces of a tensor's data from byte `first` to byte `last`, in
/// order; pieces begin at multiples of 8 bytes from `first`. Throws RuntimeFailure under the
/// conditions of InputFile::read.
void visit_data(const StoredTensor& tensor, std::uint64_t first, std::uint64_t last,
                const std::function<void(std::size_t, std::span<const std::byte>)>& visit);

/// Reads the FP32 values of the elements of `tensor` from index `first` on; exact. Uses visit_data.
/// Throws Error for types that have no such values.
void read_elements(const StoredTensor& tensor, std::int64_t first, std::span<float> destination);

/// The bytes of one tensor, in its own type.
using TensorBytes = std::vector<std::byte>;

/// Returns all bytes of a tensor. Throws RuntimeFailure under the conditions of InputFile::read.
TensorBytes read_bytes(const StoredTensor& tensor);

/// Returns the order of tensors in a file: by descending element size, otherwise as given,
/// so that all are aligned.
std::vector<std::size_t> safetensors_order(const std::vector<TensorHeader>& tensors);

/// Returns the bytes of a file before its tensors, which follow in the order given.
std::string safetensors_front(const std::map<std::string, std::string>& metadata,
                              const std::vector<TensorHeader>& placed);

/// Writes atomically: the old file stays until the new one is complete on disk. `produce(i)`
/// returns the bytes of tensors[i]; it is called once for each, in safetensors_order(), so that
/// only one tensor is in memory at a time.
void write_safetensors(const std::filesystem::path& path,
                       const std::map<std::string, std::string>& metadata,
                       const std::vector<TensorHeader>& tensors,
                       const std::function<TensorBytes(std::size_t)>& produce);

}  // namespace fp8lab
