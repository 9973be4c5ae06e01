// Tells run files, recipes, studies and models apart, so that a file given to the wrong command is
// named.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "src/config/reading/toml_reader.hpp"

namespace fp8lab {

enum class DocumentKind : std::uint8_t { run, recipe, study, model };

/// Throws Error with the command that reads `origin` if the top-level keys of `document` are those
/// of another kind of file than `wanted`. A document with keys of no kind, or of `wanted`, passes.
void require_kind(const toml::table& document, DocumentKind wanted, const std::string& origin);

/// Throws Error with the kind of the file at `path`, and the command that reads it, if it is a
/// document of this header, any other ".toml", a matrix (.npy), a recorded GEMM or a pack of a
/// device, where `wanted` ("a run", "a model") is expected.
void refuse_document(const std::filesystem::path& path, const std::string& wanted);

inline constexpr const char* kMatrixKind = "a matrix (.npy)";
inline constexpr const char* kRecordKind = "a GEMM of fp8lab.recorder";
inline constexpr const char* kPackKind = "a pack of fp8lab validate device";

/// As refuse_document where neither a run nor a model is `wanted`, but one of these kinds or
/// another: refuses also HDF5 files and other safetensors files.
void refuse_other_kind(const std::filesystem::path& path, const std::string& wanted);

}  // namespace fp8lab
