// fp8lab init: writes a complete file to start from.
#include <fmt/format.h>

#include <filesystem>
#include <string>
#include <vector>

#include "emulation/base/input_error.hpp"
#include "src/cli/command.hpp"
#include "src/cli/options/output_path.hpp"
#include "src/config/reading/examples.hpp"
#include "src/io/files/atomic_file.hpp"
#include "src/io/files/file_kind.hpp"
#include "src/io/shell_word.hpp"

namespace fp8lab::cli {
namespace {

struct Template {
  std::string name;
  std::string (*text)();
  const char* next;  ///< command that reads the file, with {} for its name
};

const std::vector<Template>& templates() {
  static const std::vector<Template> all = {
      {"run", run_template, "fp8lab train --config {} --dry-run"},
      {"recipe", recipe_template, "fp8lab recipes check {}"},
      {"study", study_template, "fp8lab ablate --study {} --dry-run"},
  };
  return all;
}

const Template& template_named(const std::string& name) {
  std::vector<std::string> names;
  for (const Template& kind : templates()) {
    if (kind.name == name) return kind;
    names.push_back(kind.name);
  }
  throw unknown_word("init", "kind", name, names);
}

}  // namespace

int init(const std::vector<std::string>& arguments) {
  Options options(
      "fp8lab init run|recipe|study [FILE]\n"
      "Writes a file that works as it is, with every key and its meaning as comments");
  options.add("kind", value<std::string>(), "run, recipe or study");
  options.add("file", value<std::string>(), "default: run.toml, recipe.toml or study.toml");
  const Values values = parse_arguments("init", options, arguments, {{"kind", 1}, {"file", 1}});
  if (values.count("help") != 0) return ExitCode::kSuccess;
  const std::string name = required(values, "kind", "init", "run, recipe or study");
  const Template& kind = template_named(name);
  const std::filesystem::path file =
      output_file(text_of(values, "file", kind.name + ".toml"), "init: FILE", Replaces::nothing);
  if (is_present(file)) {
    throw InputError({.where = "init",
                      .reason = fmt::format("{} is there", file.string()),
                      .accepted = "the name of a new file"});
  }
  write_file_atomically(file, kind.text());
  fmt::print("{}: a complete {} file; next: {}\n", file.string(), kind.name,
             fmt::format(fmt::runtime(kind.next), shell_path(file.string())));
  return ExitCode::kSuccess;
}

}  // namespace fp8lab::cli
