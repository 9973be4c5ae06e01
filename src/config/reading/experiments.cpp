#include "src/config/reading/experiments.hpp"

#include <dlfcn.h>
#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <sstream>
#include <system_error>

#include "emulation/base/error.hpp"
#include "emulation/base/input_error.hpp"
#include "src/config/reading/nearest_name.hpp"
#include "src/io/files/atomic_file.hpp"
#include "src/io/files/file_kind.hpp"

#if !defined(FP8LAB_SOURCE_EXPERIMENTS)
#error "FP8LAB_SOURCE_EXPERIMENTS must name the experiments folder of the source tree"
#endif

namespace fp8lab {
namespace {

namespace fs = std::filesystem;

// "recipes" -> "recipe": the word for one file of a folder in messages.
std::string singular(const std::string& folder) {
  return folder == "studies" ? "study" : folder.substr(0, folder.size() - 1);
}

// Returns the full path of the shared object that contains this code; for a program,
// the name it was called by.
fs::path containing_file() {
  Dl_info info{};
  const bool found = ::dladdr(reinterpret_cast<const void*>(&singular), &info) != 0;
  return found && info.dli_fname != nullptr ? fs::path(info.dli_fname) : fs::path();
}

/// Returns the experiments folder of the source tree above `file`, or an empty path.
fs::path experiments_above(const fs::path& file) {
  for (fs::path folder = file.parent_path(); folder.has_relative_path();
       folder = folder.parent_path()) {
    const bool is_source =
        is_file(folder / "CMakePresets.json") && is_folder(folder / "experiments/recipes");
    if (is_source) return folder / "experiments";
  }
  return {};
}

}  // namespace

fs::path experiments_directory() {
  std::error_code error;
  const fs::path package = containing_file();
  // The library of a wheel, fp8lab/libfp8lab.so, and of an installation,
  // share/fp8lab/python/fp8lab/libfp8lab.so.
  const fs::path folder = package.parent_path();
  for (const fs::path& beside : {folder, folder.parent_path().parent_path()}) {
    if (package.is_absolute() && is_folder(beside / "experiments/recipes")) {
      return beside / "experiments";
    }
  }
  const fs::path program = fs::read_symlink("/proc/self/exe", error);
  if (!error) {
    const fs::path above = program.parent_path().parent_path();
    // An installation, and Python's package, which has the program in fp8lab/bin.
    for (const fs::path& found : {above / "share/fp8lab/experiments", above / "experiments"}) {
      if (is_folder(found / "recipes")) return found;
    }
  }
  // A source tree moved after the build still contains the program: build/PRESET/src/fp8lab.
  for (const fs::path& file : {program, package}) {
    if (const fs::path moved = experiments_above(file); !moved.empty()) return moved;
  }
  const fs::path source = FP8LAB_SOURCE_EXPERIMENTS;
  if (is_folder(source)) return source;
  throw InputError(
      {.reason = fmt::format(
           "the experiments folder is missing: neither ../share/fp8lab/experiments beside the "
           "program nor {} exists, and no folder above it is the source tree",
           source.string())});
}

std::vector<std::string> experiment_names(const std::string& folder) {
  std::vector<std::string> names;
  const fs::path directory = experiments_directory() / folder;
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(directory, error)) {
    if (entry.path().extension() == ".toml") names.push_back(entry.path().stem().string());
  }
  if (error) throw InputError({.where = directory.string(), .reason = error.message()});
  std::sort(names.begin(), names.end());
  return names;
}

std::string experiment_summary(const fs::path& file) {
  std::istringstream lines(read_file(file.string()));
  std::string text;
  for (std::string line; std::getline(lines, line) && line.starts_with("# ");) {
    text += (text.empty() ? "" : " ") + line.substr(2);
  }
  for (std::size_t end = text.find(". "); end != std::string::npos;
       end = text.find(". ", end + 1)) {
    // The period of "et al. 2021" does not end a sentence.
    if (end + 2 < text.size() && std::isupper(static_cast<unsigned char>(text[end + 2])) != 0) {
      return text.substr(0, end);
    }
  }
  if (text.ends_with('.') || text.ends_with(':')) text.pop_back();
  return text;
}

bool is_experiment_path(const std::string& name_or_path) {
  return name_or_path.find('/') != std::string::npos ||
         (name_or_path.size() > 5 && name_or_path.ends_with(".toml"));
}

fs::path existing_experiment(const std::string& folder, const fs::path& path,
                             const std::string& where) {
  if (is_file(path)) return path;
  throw InputError(
      {.where = where,
       .noun = fmt::format("{} file", singular(folder)),
       .key = path.string(),
       .reason = fmt::format(
           "does not exist{}",
           path.is_absolute() ? "" : fmt::format(" in {}", fs::current_path().string()))});
}

void refuse_experiment(const std::string& folder, const std::string& name,
                       const std::vector<std::string>& names, const std::string& where) {
  // Longer lists of names are not printed in messages.
  constexpr std::size_t kMostNames = 20;
  const std::string accepted = names.size() <= kMostNames
                                   ? fmt::format("{}", fmt::join(names, ", "))
                                   : fmt::format("the {} names that fp8lab {} lists", names.size(),
                                                 folder == "recipes" ? "recipes list" : folder);
  throw InputError({.where = where,
                    .noun = fmt::format("unknown {}", singular(folder)),
                    .key = name,
                    .nearest = did_you_mean(name, names),
                    .accepted = fmt::format("{}, or a path to a .toml file", accepted)});
}

fs::path find_experiment(const std::string& folder, const std::string& name_or_path,
                         const std::string& where) {
  if (is_experiment_path(name_or_path)) return existing_experiment(folder, name_or_path, where);
  const fs::path file = experiments_directory() / folder / (name_or_path + ".toml");
  if (!name_or_path.empty() && is_file(file)) return file;
  refuse_experiment(folder, name_or_path, experiment_names(folder), where);
}

}  // namespace fp8lab
