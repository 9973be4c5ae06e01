// The safetensors container, as checkpoints use it: a JSON header and raw little-endian tensors.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "emulation/api/tensor_view.hpp"

namespace fp8lab {

struct StoredTensor {
  std::string name;
  DType dtype = DType::f32;
  std::int64_t rows = 0, cols = 0;
  std::vector<std::byte> bytes;
};

struct SafetensorsFile {
  std::map<std::string, std::string> metadata;
  std::vector<StoredTensor> tensors;

  /// Throws Error naming `name` when there is no such tensor.
  const StoredTensor& at(const std::string& name) const;
};

/// Writes atomically: the old file stays until the new one is complete on disk.
void write_safetensors(const std::filesystem::path& path, const SafetensorsFile& file);

/// Reads a file whose tensors are 2-D of our dtypes. Header length, offsets, overlaps and sizes are
/// checked before anything is copied; Error names the file and the tensor.
SafetensorsFile read_safetensors(const std::filesystem::path& path);

}  // namespace fp8lab
