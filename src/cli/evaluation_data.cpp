#include "src/cli/evaluation_data.hpp"

#include <fmt/format.h>

#include <filesystem>

#include "src/config/toml_text.hpp"

namespace fp8lab::cli {

std::string data_table_of(const std::vector<std::string>& paths) {
  const std::filesystem::path first = paths.front();
  const std::string kind = first.extension() == ".jsonl" ? "jsonl"
                           : first.extension() == ".txt" ? "text"
                                                         : "tokens";
  std::vector<std::string> quoted;
  for (const std::string& path : paths) quoted.push_back(toml_quoted(path));
  const char* form = kind == "text" ? ", form = \"running_text\"" : "";
  return fmt::format("{{kind = \"{}\", path = [{}]{}}}", kind, fmt::join(quoted, ", "), form);
}

}  // namespace fp8lab::cli
