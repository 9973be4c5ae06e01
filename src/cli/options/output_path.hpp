// Checks of output paths before a command computes, and writing of --json.
#pragma once

#include <cstdint>
#include <filesystem>
#include <initializer_list>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "src/cli/options/options.hpp"

namespace fp8lab::cli {

// No result replaces an input of its command, or a file that the command could not have
// written. Before it computes, a command calls check_output_files or output_file: an existing
// file must be of the kind that is written. If inputs and outputs are of one kind, it also
// calls check_files_apart. Once all inputs are open it calls require_unread, which knows every
// file that this process has opened, whichever option, run or configuration named it;
// write_json calls it at the end.

/// The files that a result may replace: JSON of --json, a .npy file, or only an empty file.
enum class Replaces : std::uint8_t { json, npy, nothing };

/// Throws Error unless a file can be written to `path`: its folder must exist and be writable, and
/// an existing file must be a regular file that is empty or of the kind that the result `replaces`.
/// JSON of models, tokenizers and token shards is never replaced. `what` names the path in
/// messages, "gemm: --out".
std::filesystem::path output_file(const std::string& path, const std::string& what,
                                  Replaces replaces);

/// Throws Error unless files can be written into the folder `path`, which need not exist yet.
std::filesystem::path output_folder(const std::string& path, const std::string& what);

/// A file of a command: `what` is "--out", or "the scales of --out" for a file
/// that the option implies.
struct NamedFile {
  std::string what;
  std::filesystem::path path;
};

/// Returns the files of those `options` that were given.
std::vector<NamedFile> named_files(const Values& values,
                                   std::initializer_list<const char*> options);

/// Calls output_file for each of `options` that was given.
void check_output_files(const Values& values, const std::string& command,
                        std::initializer_list<const char*> options,
                        Replaces replaces = Replaces::json);

/// Throws Error if one of `outputs` is the same file as another output or as one of `inputs`,
/// which would be overwritten.
void check_files_apart(const std::string& command, const std::vector<NamedFile>& outputs,
                       const std::vector<NamedFile>& inputs);

/// Throws Error if this process has read the file at `path`. `what` is "whatif: --json".
void require_unread(const std::filesystem::path& path, const std::string& what);
/// Calls require_unread for each of `options` that was given.
void require_unread(const Values& values, const std::string& command,
                    std::initializer_list<const char*> options);

/// Returns the text of --json, without the final line end. Bytes of names that
/// are not UTF-8 are replaced.
std::string json_text(const nlohmann::ordered_json& json);

/// Writes the file of --json. Throws Error if this process has read that file.
void write_json(const std::string& path, const nlohmann::ordered_json& json);

}  // namespace fp8lab::cli
