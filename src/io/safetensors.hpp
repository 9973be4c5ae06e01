// The safetensors container: a JSON header and raw little-endian tensors. One reader, one writer,
// for checkpoints and for models.
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

#include "src/io/input_file.hpp"
#include "src/io/safetensors_header.hpp"

namespace fp8lab {

/// A tensor of an open file.
struct StoredTensor : TensorHeader {
  const InputFile* file = nullptr;  ///< as long as the SafetensorsFile lives
  std::uint64_t offset = 0;         ///< of its first byte in the file
};

/// An open file: opening reads the header only.
class SafetensorsFile {
 public:
  /// Checks header length, names, types, shapes and places before anything is built from them
  /// (parse_safetensors_header). Throws Error naming the file and the tensor.
  explicit SafetensorsFile(const std::filesystem::path& path);

  const std::string& path() const { return file_->path(); }
  const std::map<std::string, std::string>& metadata() const { return metadata_; }
  const std::vector<StoredTensor>& tensors() const { return tensors_; }  ///< in file order
  const StoredTensor* find(const std::string& name) const;  ///< null when there is none
  /// Throws Error naming the file and `name` when there is no such tensor.
  const StoredTensor& at(const std::string& name) const;

 private:
  std::unique_ptr<const InputFile> file_;  ///< its place stays when this object moves
  std::map<std::string, std::string> metadata_;
  std::vector<StoredTensor> tensors_;
  std::unordered_map<std::string, std::size_t> index_;
};

/// Calls visit(place, bytes) for pieces of a tensor's data from byte `first` to byte `last`, in
/// order; pieces begin at multiples of 8 bytes from `first`. Throws RuntimeFailure as
/// InputFile::read does.
void visit_data(const StoredTensor& tensor, std::uint64_t first, std::uint64_t last,
                const std::function<void(std::size_t, std::span<const std::byte>)>& visit);

/// FP32 values of the elements of `tensor` from number `first` on; exact. Reads by
/// visit_data. Throws Error for types without such values.
void read_elements(const StoredTensor& tensor, std::int64_t first, std::span<float> destination);

/// The bytes of one tensor, in its own type.
using TensorBytes = std::vector<std::byte>;

/// All bytes of a tensor. Throws RuntimeFailure as InputFile::read does.
TensorBytes read_bytes(const StoredTensor& tensor);

/// The order in which a file holds tensors: that of falling element size, otherwise as given, so
/// that all are aligned.
std::vector<std::size_t> safetensors_order(const std::vector<TensorHeader>& tensors);

/// What stands in a file before the tensors, which lie in the order given.
std::string safetensors_front(const std::map<std::string, std::string>& metadata,
                              const std::vector<TensorHeader>& placed);

/// Writes atomically: the old file stays until the new one is complete on disk. `produce(i)`
/// returns the bytes of tensors[i]; it is asked once for each, in safetensors_order(), so that one
/// tensor is in memory at a time.
void write_safetensors(const std::filesystem::path& path,
                       const std::map<std::string, std::string>& metadata,
                       const std::vector<TensorHeader>& tensors,
                       const std::function<TensorBytes(std::size_t)>& produce);

}  // namespace fp8lab
