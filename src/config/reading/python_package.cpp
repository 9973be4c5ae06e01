#include "src/config/reading/python_package.hpp"

#include "emulation/base/input_error.hpp"
#include "src/config/reading/experiments.hpp"
#include "src/io/files/file_kind.hpp"

namespace fp8lab {

std::filesystem::path python_package_folder() {
  const std::filesystem::path beside = experiments_directory().parent_path();
  for (const std::filesystem::path& folder : {beside / "python", beside / "src/python"}) {
    if (is_file(folder / "fp8lab/tokens/__main__.py")) return folder;
  }
  if (is_file(beside / "tokens/__main__.py")) return {};
  throw InputError({.where = beside.string(), .reason = "the Python package fp8lab is missing"});
}

}  // namespace fp8lab
