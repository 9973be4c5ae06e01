#include "src/config/reading/document_kind.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <string>
#include <string_view>

#include "emulation/base/input_error.hpp"
#include "src/io/files/atomic_file.hpp"
#include "src/io/files/file_kind.hpp"
#include "src/io/shell_word.hpp"
#include "src/io/tensors/safetensors.hpp"

namespace fp8lab {
namespace {

struct KindRow {
  DocumentKind kind;
  std::string_view name;
  std::string_view command;                ///< before the path of the file, and a blank or "="
  std::array<std::string_view, 4> keys{};  ///< that only files of this kind have
  std::ptrdiff_t needed = 1;               ///< keys that tell the kind
};
constexpr std::array<KindRow, 4> kKinds = {{
    {DocumentKind::run, "a run file", "fp8lab train --config", {"stages", "logging", "model"}},
    {DocumentKind::recipe,
     "a recipe",
     "fp8lab train --preset NAME --recipe",
     {"slots", "gemm", "keep_high_precision", "override"}},
    {DocumentKind::study,
     "a study",
     "fp8lab ablate --study",
     {"arm", "baseline", "shared_stages", "design"}},
    // A run file may have one of these keys outside [model] by mistake.
    {DocumentKind::model,
     "a model file",
     "fp8lab train --preset NAME --set model.base=",
     {"vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads"},
     2},
}};

/// Files of more bytes are no documents.
constexpr std::uintmax_t kMostBytes = std::uintmax_t{1} << 22;

bool has_keys(const toml::table& document, const KindRow& row) {
  // The axes of a study are a list, those of a recipe a table.
  if (row.kind == DocumentKind::study && document["axis"].is_array()) return true;
  const auto found = std::count_if(row.keys.begin(), row.keys.end(), [&](std::string_view key) {
    return !key.empty() && document.contains(key);
  });
  return found >= row.needed;
}

/// The command that reads a file of this kind. A model with a base is the table of a run file.
std::string remedy_for(const KindRow& row, const toml::table& document, const std::string& file) {
  if (row.kind == DocumentKind::model && document.contains("base")) {
    return "its keys belong into [model] of a run file";
  }
  return fmt::format("{}{}{}", row.command, row.command.ends_with('=') ? "" : " ",
                     shell_path(file));
}

/// A file that is no text, with the command that reads it.
struct BinaryKind {
  std::string name;  ///< with its article; empty: none that is known
  std::string remedy;
  bool is_run_or_model = false;
};

BinaryKind safetensors_kind(const std::filesystem::path& path) {
  const std::string file = shell_path(path.string());
  try {
    const SafetensorsFile tensors(path);
    const auto found = tensors.metadata().find("fp8lab");
    const std::string schema = found == tensors.metadata().end() ? "" : found->second;
    if (schema.starts_with("gemm-")) return {kRecordKind, "fp8lab replay " + file, false};
    if (schema.starts_with("device-")) return {kPackKind, "fp8lab validate device " + file, false};
    return {"a safetensors file of weights", "fp8lab eval " + file, true};
  } catch (const Error&) {
    return {};  // the command says what is wrong with it
  }
}

BinaryKind binary_kind(const std::filesystem::path& path) {
  constexpr std::string_view kHdf5 = "\x89HDF\r\n\x1a\n", kNpy = "\x93NUMPY";
  const std::string file = shell_path(path.string());
  std::string begin(kHdf5.size(), '\0');
  std::ifstream(path, std::ios::binary)
      .read(begin.data(), static_cast<std::streamsize>(begin.size()));
  if (begin.starts_with(kNpy)) {
    return {kMatrixKind, "fp8lab quantize " + file + " --spec e4m3fn/1x128", false};
  }
  if (begin == kHdf5) {
    return {"an HDF5 file, the record of a run or study", "fp8lab report " + file, true};
  }
  return path.extension() == ".safetensors" ? safetensors_kind(path) : BinaryKind{};
}

void refuse_binary(const std::filesystem::path& path, const std::string& wanted,
                   bool takes_run_or_model) {
  const BinaryKind kind = binary_kind(path);
  if (kind.name.empty() || kind.name == wanted) return;
  if (kind.is_run_or_model && takes_run_or_model) return;
  throw InputError({.where = path.string(),
                    .reason = fmt::format("is {}, not {}", kind.name, wanted),
                    .remedy = kind.remedy});
}

/// Refuses TOML documents.
void refuse_text(const std::filesystem::path& path, const std::string& wanted) {
  std::error_code ignored;
  if (std::filesystem::file_size(path, ignored) > kMostBytes) return;
  const bool is_toml = path.extension() == ".toml";
  toml::table document;
  try {
    document = parse_toml(read_file(path), path.string());
  } catch (const Error&) {
    if (!is_toml) return;
  }
  for (const KindRow& row : kKinds) {
    if (!has_keys(document, row)) continue;
    throw InputError({.where = path.string(),
                      .reason = fmt::format("is {}, not {}", row.name, wanted),
                      .remedy = remedy_for(row, document, path.string())});
  }
  if (is_toml) {
    throw InputError(
        {.where = path.string(), .reason = fmt::format("is a TOML file, not {}", wanted)});
  }
}

}  // namespace

void require_kind(const toml::table& document, DocumentKind wanted, const std::string& origin) {
  const KindRow& own = kKinds[static_cast<std::size_t>(wanted)];
  if (has_keys(document, own)) return;
  for (const KindRow& other : kKinds) {
    if (other.kind == wanted || !has_keys(document, other)) continue;
    throw InputError({.where = origin,
                      .reason = fmt::format("is {}, not {}", other.name, own.name),
                      .remedy = remedy_for(other, document, origin)});
  }
}

void refuse_document(const std::filesystem::path& path, const std::string& wanted) {
  if (!is_file(path)) return;
  refuse_binary(path, wanted, true);
  refuse_text(path, wanted);
}

void refuse_other_kind(const std::filesystem::path& path, const std::string& wanted) {
  if (!is_file(path)) return;
  refuse_binary(path, wanted, false);
  refuse_text(path, wanted);
}

}  // namespace fp8lab
