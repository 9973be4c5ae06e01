#include "src/io/files/files_read.hpp"

#include <sys/stat.h>

#include <map>
#include <mutex>
#include <utility>

namespace fp8lab {
namespace {

using FileId = std::pair<std::uint64_t, std::uint64_t>;  // device and inode

std::optional<FileId> id_of(const std::filesystem::path& path) {
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0) return std::nullopt;
  return FileId{status.st_dev, status.st_ino};
}

struct Noted {
  std::mutex change;
  std::map<FileId, std::string> names;
};

Noted& noted() {
  static Noted files;
  return files;
}

}  // namespace

void note_file_read(const std::filesystem::path& path, std::uint64_t device, std::uint64_t file) {
  Noted& files = noted();
  const std::lock_guard<std::mutex> lock(files.change);
  files.names.insert_or_assign({device, file}, path.string());
}

void note_file_read(const std::filesystem::path& path) {
  if (const auto id = id_of(path)) note_file_read(path, id->first, id->second);
}

std::optional<std::string> name_of_read_file(const std::filesystem::path& path) {
  const auto id = id_of(path);
  if (!id) return std::nullopt;
  Noted& files = noted();
  const std::lock_guard<std::mutex> lock(files.change);
  const auto found = files.names.find(*id);
  if (found == files.names.end()) return std::nullopt;
  return found->second;
}

}  // namespace fp8lab
