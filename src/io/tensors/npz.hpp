// Strict reader of NumPy's .npz archives: ZIP files of .npy arrays, stored or deflated.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "src/io/tensors/npy.hpp"

namespace fp8lab {

/// The arrays of an archive by name, without ".npy", in the order of its directory.
class NpzArchive {
 public:
  explicit NpzArchive(std::vector<std::pair<std::string, NpyArray>> arrays)
      : arrays_(std::move(arrays)) {}

  const std::vector<std::pair<std::string, NpyArray>>& arrays() const { return arrays_; }
  /// Returns null if there is no array of this name.
  const NpyArray* find(std::string_view name) const;

 private:
  std::vector<std::pair<std::string, NpyArray>> arrays_;
};

/// Decodes the bytes of an archive with libzip; messages name `origin` as the file. Throws Error
/// for a truncated or inconsistent archive, wrong sizes or CRC-32, encryption, duplicate names, and
/// members that parse_npy refuses.
NpzArchive parse_npz(std::string_view bytes, const std::string& origin);

NpzArchive read_npz(const std::filesystem::path& path);

}  // namespace fp8lab
