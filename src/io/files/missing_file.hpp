// Where a missing file was looked for, for messages.
#pragma once

#include <filesystem>
#include <string>

namespace fp8lab {

/// Returns ", looked for in /home/me/data" for a relative path that does not exist, ", there is no
/// folder /home/me/data" if a folder of the path is missing, and an empty text otherwise.
std::string where_looked(const std::filesystem::path& path);

/// Returns "cannot open: ERROR" for `error`, the errno of opening `path`, and where_looked for a
/// missing file.
std::string why_not_opened(const std::filesystem::path& path, int error);

}  // namespace fp8lab
