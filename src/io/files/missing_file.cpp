#include "src/io/files/missing_file.hpp"

#include <fmt/format.h>

#include <cerrno>
#include <system_error>

#include "src/io/files/file_descriptor.hpp"

namespace fp8lab {
namespace {

namespace fs = std::filesystem;

/// Returns the first folder on the way to `path`, an absolute path, that is missing; empty if all
/// are there.
fs::path missing_folder(const fs::path& path) {
  fs::path folder;
  for (const fs::path& part : path.parent_path()) {
    folder /= part;
    std::error_code error;
    if (!fs::exists(folder, error) && !error) return folder;
  }
  return {};
}

}  // namespace

std::string where_looked(const fs::path& path) {
  std::error_code error;
  const fs::path absolute = fs::absolute(path, error).lexically_normal();
  if (error || path.empty() || fs::exists(absolute, error)) return {};
  if (const fs::path folder = missing_folder(absolute); !folder.empty()) {
    return fmt::format(", there is no folder {}", folder.string());
  }
  if (path.is_absolute()) return {};
  return fmt::format(", looked for in {}", absolute.parent_path().string());
}

std::string why_not_opened(const fs::path& path, int error) {
  return fmt::format("cannot open: {}{}", error_text(error),
                     error == ENOENT ? where_looked(path) : "");
}

}  // namespace fp8lab
