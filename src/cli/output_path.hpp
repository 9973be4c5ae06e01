// Where commands write, looked at before they compute; and what --json writes.
#pragma once

#include <cstdint>
#include <filesystem>
#include <initializer_list>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "src/cli/options.hpp"

namespace fp8lab::cli {

// No result replaces what a command reads, nor what it cannot make itself. Before it computes, a
// command asks check_output_files or output_file: a file that is there already must be one of the
// kind that is written. Where inputs and outputs are of one kind it asks check_files_apart as well.
// Once all inputs are open it asks require_unread, which knows every file that this process has
// opened, whichever option, run or configuration named it; write_json asks it last.

/// What a result replaces: JSON of --json, a .npy file, or nothing but an empty file.
enum class Replaces : std::uint8_t { json, npy, nothing };

/// Throws Error unless a file can be put at `path`: its folder must be there and writable, and what
/// has the name already must be a regular file, empty or of what the result `replaces`; JSON of
/// models, tokenizers and token shards is no such. `what` names the path in messages, "gemm:
/// --out".
std::filesystem::path output_file(const std::string& path, const std::string& what,
                                  Replaces replaces);

/// Throws Error unless files can be put into the folder `path`, which need not be there yet.
std::filesystem::path output_folder(const std::string& path, const std::string& what);

/// A file of a command: `what` is "--out", or "the scales of --out", which that option implies.
struct NamedFile {
  std::string what;
  std::filesystem::path path;
};

/// The files that those of `options` name that were given.
std::vector<NamedFile> named_files(const Values& values,
                                   std::initializer_list<const char*> options);

/// output_file of every one of `options` that was given.
void check_output_files(const Values& values, const std::string& command,
                        std::initializer_list<const char*> options,
                        Replaces replaces = Replaces::json);

/// Throws Error where one of `outputs` is the file of another, or of one of `inputs`: it would be
/// lost.
void check_files_apart(const std::string& command, const std::vector<NamedFile>& outputs,
                       const std::vector<NamedFile>& inputs);

/// Throws Error where this process has read what lies at `path`. `what` is "whatif: --json".
void require_unread(const std::filesystem::path& path, const std::string& what);
/// That of every one of `options` that was given.
void require_unread(const Values& values, const std::string& command,
                    std::initializer_list<const char*> options);

/// The text of --json, without the end of the line. Bytes of names that are no UTF-8 are replaced.
std::string json_text(const nlohmann::ordered_json& json);

/// Writes the file that --json names, unless this process has read what lies there: Error.
void write_json(const std::string& path, const nlohmann::ordered_json& json);

}  // namespace fp8lab::cli
