#include "src/config/reading/document_kind.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string_view>

#include "emulation/base/input_error.hpp"
#include "src/io/shell_word.hpp"

namespace fp8lab {
namespace {

struct KindRow {
  DocumentKind kind;
  std::string_view name;
  std::string_view command;                ///< before the path of the file
  std::array<std::string_view, 4> keys{};  ///< that only files of this kind have
};
constexpr std::array<KindRow, 3> kKinds = {{
    {DocumentKind::run, "a run file", "fp8lab train --config", {"stages", "logging", "model"}},
    {DocumentKind::recipe,
     "a recipe",
     "fp8lab train --preset NAME --recipe",
     {"slots", "gemm", "keep_high_precision", "override"}},
    {DocumentKind::study,
     "a study",
     "fp8lab ablate --study",
     {"arm", "baseline", "shared_stages", "design"}},
}};

bool has_keys(const toml::table& document, const KindRow& row) {
  // The axes of a study are a list, those of a recipe a table.
  if (row.kind == DocumentKind::study && document["axis"].is_array()) return true;
  return std::any_of(row.keys.begin(), row.keys.end(),
                     [&](std::string_view key) { return !key.empty() && document.contains(key); });
}

}  // namespace

void require_kind(const toml::table& document, DocumentKind wanted, const std::string& origin) {
  const KindRow& own = kKinds[static_cast<std::size_t>(wanted)];
  if (has_keys(document, own)) return;
  for (const KindRow& other : kKinds) {
    if (other.kind == wanted || !has_keys(document, other)) continue;
    throw InputError({.where = origin,
                      .reason = fmt::format("is {}, not {}", other.name, own.name),
                      .remedy = fmt::format("{} {}", other.command, shell_path(origin))});
  }
}

}  // namespace fp8lab
