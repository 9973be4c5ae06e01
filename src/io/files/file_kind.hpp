// The kind of file at a path. A name that cannot be looked up (too long, below a file, in a folder
// that may not be read) counts as missing; the caller then reports what it has not found.
#pragma once

#include <filesystem>
#include <system_error>

namespace fp8lab {

inline bool is_file(const std::filesystem::path& path) noexcept {
  std::error_code ignored;
  return std::filesystem::is_regular_file(path, ignored);
}

inline bool is_folder(const std::filesystem::path& path) noexcept {
  std::error_code ignored;
  return std::filesystem::is_directory(path, ignored);
}

inline bool is_present(const std::filesystem::path& path) noexcept {
  std::error_code ignored;
  return std::filesystem::exists(path, ignored);
}

}  // namespace fp8lab
