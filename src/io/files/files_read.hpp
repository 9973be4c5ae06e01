// Records the files that this process has opened for reading, so that no
// result overwrites one of them.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

namespace fp8lab {

/// Records that inode `file` of `device` was opened for reading under the name `path`. Every
/// function of src/io that opens a file for reading calls it. Thread-safe.
void note_file_read(const std::filesystem::path& path, std::uint64_t device, std::uint64_t file);
/// Like the above for the file that `path` names now; does nothing if there is none.
void note_file_read(const std::filesystem::path& path);

/// Returns the name under which this process has read the file at `path`, through any links;
/// nothing if it has not read the file or if there is none. Thread-safe.
std::optional<std::string> name_of_read_file(const std::filesystem::path& path);

}  // namespace fp8lab
