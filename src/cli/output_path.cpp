#include "src/cli/output_path.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <map>
#include <nlohmann/json.hpp>
#include <system_error>

#include "emulation/base/error.hpp"
#include "src/io/atomic_file.hpp"
#include "src/io/file_kind.hpp"

namespace fp8lab::cli {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void refuse(const std::string& what, const std::string& path, const std::string& why) {
  throw Error(fmt::format("{} '{}': {}", what, path, why));
}

fs::path folder_of(const fs::path& path) {
  return path.has_parent_path() ? path.parent_path() : fs::path(".");
}

void require_writable(const fs::path& folder, const std::string& path, const std::string& what) {
  if (::access(folder.c_str(), W_OK | X_OK) == 0) return;
  refuse(what, path, fmt::format("{} may not be written", folder.string()));
}

/// Makes folders as those from `there` on to `path` in a folder of its own beside them, which is
/// removed again: not every file system that may be written takes them. Why that failed; or empty.
std::string why_not_made(const fs::path& path, const fs::path& there) {
  std::string trial = (there / ".fp8lab-XXXXXX").string();
  if (::mkdtemp(trial.data()) == nullptr) {
    return fmt::format("{}: {}", there.string(), std::generic_category().message(errno));
  }
  std::error_code failed, ignored;
  const fs::path missing = path == there ? fs::path() : path.lexically_relative(there);
  const bool leads_out = std::find(missing.begin(), missing.end(), "..") != missing.end();
  fs::create_directories(trial / (leads_out ? path.filename() : missing), failed);
  fs::remove_all(trial, ignored);
  return failed ? failed.message() : std::string();
}

}  // namespace

fs::path output_file(const std::string& path, const std::string& what) {
  if (path.empty()) refuse(what, path, "accepted: the name of a file");
  if (is_folder(path)) refuse(what, path, "is a folder; accepted: a file");
  if (is_present(path) && !is_file(path)) {
    refuse(what, path, "is no regular file, which a result would replace");
  }
  const fs::path folder = folder_of(path);
  if (!is_folder(folder)) {
    refuse(what, path, fmt::format("there is no folder {}", folder.string()));
  }
  require_writable(folder, path, what);
  return path;
}

fs::path output_folder(const std::string& path, const std::string& what) {
  if (path.empty()) refuse(what, path, "accepted: the name of a folder");
  // The deepest part of the path that there is.
  fs::path there = path;
  while (!is_present(there) && there != folder_of(there)) there = folder_of(there);
  if (!is_folder(there)) {
    const bool itself = there == fs::path(path);
    refuse(what, path,
           itself ? "is a file; accepted: a folder, there or to be made"
                  : fmt::format("{} is a file; accepted: folders on the way", there.string()));
  }
  require_writable(there, path, what);
  if (const std::string why = why_not_made(path, there); !why.empty()) refuse(what, path, why);
  return path;
}

void check_output_files(const Values& values, const std::string& command,
                        std::initializer_list<const char*> options) {
  for (const char* option : options) {
    if (values.count(option) == 0) continue;
    output_file(values[option].as<std::string>(), fmt::format("{}: --{}", command, option));
  }
}

void check_files_apart(const Values& values, const std::string& command,
                       std::initializer_list<const char*> outputs,
                       std::initializer_list<const char*> inputs) {
  std::map<fs::path, std::string> taken;  // by which option
  const auto path_of = [&](const char* option) {
    return fs::weakly_canonical(fs::absolute(values[option].as<std::string>()));
  };
  for (const char* option : inputs) {
    if (values.count(option) != 0) taken.emplace(path_of(option), option);
  }
  for (const char* option : outputs) {
    if (values.count(option) == 0) continue;
    const auto [known, is_new] = taken.emplace(path_of(option), option);
    if (is_new) continue;
    refuse(fmt::format("{}: --{}", command, option), values[option].as<std::string>(),
           fmt::format("is the file of --{} too; accepted: another one", known->second));
  }
}

std::string json_text(const nlohmann::ordered_json& json) {
  return json.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

void write_json(const std::string& path, const nlohmann::ordered_json& json) {
  write_file_atomically(path, json_text(json) + "\n");
}

}  // namespace fp8lab::cli
