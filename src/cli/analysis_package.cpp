#include "src/cli/analysis_package.hpp"

#include <fmt/format.h>

#include <cstdlib>
#include <filesystem>

#include "emulation/base/error.hpp"
#include "src/config/experiments.hpp"
#include "src/io/file_kind.hpp"

namespace fp8lab::cli {
namespace {

/// The package lies beside the experiments, installed as in the source tree.
std::filesystem::path analysis_directory() {
  const auto directory = experiments_directory().parent_path() / "analysis";
  if (!is_folder(directory / "fp8lab_analysis")) {
    throw Error(fmt::format("{}: the analysis package is missing", directory.string()));
  }
  return directory;
}

}  // namespace

void add_python(Options& options, const std::string& needs) {
  options.add("python", value<std::string>("/usr/bin/python3"), "interpreter that has " + needs);
}

void set_python_path() {
  std::string path = analysis_directory();
  const char* before = std::getenv("PYTHONPATH");
  if (before != nullptr && *before != '\0') path += std::string(":") + before;
  setenv("PYTHONPATH", path.c_str(), 1);
}

}  // namespace fp8lab::cli
