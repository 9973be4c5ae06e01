// The files that this process has opened to read: none of them may be the place of a result.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

namespace fp8lab {

/// Notes that what the system knows as `file` of `device` is read under the name `path`. Every
/// function of src/io that opens a file for reading calls it. Thread-safe.
void note_file_read(const std::filesystem::path& path, std::uint64_t device, std::uint64_t file);
/// That of what has the name `path` now; a name of nothing is not noted.
void note_file_read(const std::filesystem::path& path);

/// The name under which this process has read what lies at `path`, by whatever links; nothing for
/// what it has not read, and where nothing lies. Thread-safe.
std::optional<std::string> name_of_read_file(const std::filesystem::path& path);

}  // namespace fp8lab
