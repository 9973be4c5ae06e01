// Where commands write, looked at before they compute; and what --json writes.
#pragma once

#include <filesystem>
#include <initializer_list>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "src/cli/options.hpp"

namespace fp8lab::cli {

/// Throws Error unless a file can be put at `path`: its folder must be there and writable, and what
/// has the name already must be a regular file. `what` names the path in messages, "gemm: --out".
std::filesystem::path output_file(const std::string& path, const std::string& what);

/// Throws Error unless files can be put into the folder `path`, which need not be there yet.
std::filesystem::path output_folder(const std::string& path, const std::string& what);

/// output_file of every one of `options` that was given.
void check_output_files(const Values& values, const std::string& command,
                        std::initializer_list<const char*> options);

/// Throws Error where one of `outputs` names the file of another, or of one of `inputs`, all of
/// them options: it would be lost.
void check_files_apart(const Values& values, const std::string& command,
                       std::initializer_list<const char*> outputs,
                       std::initializer_list<const char*> inputs);

/// The text of --json, without the end of the line. Bytes of names that are no UTF-8 are replaced.
std::string json_text(const nlohmann::ordered_json& json);

/// Writes the file that --json names.
void write_json(const std::string& path, const nlohmann::ordered_json& json);

}  // namespace fp8lab::cli
