#include "src/cli/analysis_package.hpp"

#include <fmt/format.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <utility>

#include "emulation/base/error.hpp"
#include "emulation/base/input_error.hpp"
#include "src/config/reading/experiments.hpp"
#include "src/config/reading/python_package.hpp"
#include "src/io/files/file_descriptor.hpp"
#include "src/io/files/file_kind.hpp"
#include "src/io/python_interpreter.hpp"

namespace fp8lab::cli {
namespace {

/// Returns the package's folder, beside the experiments in both the installation and the source
/// tree. Empty for a program in Python's package: the interpreter that has that one has both.
std::filesystem::path analysis_directory() {
  const auto beside = experiments_directory().parent_path();
  const auto directory = beside / "analysis";
  if (is_folder(directory / "fp8lab_analysis")) return directory;
  if (is_folder(beside.parent_path() / "fp8lab_analysis")) return {};
  throw InputError({.where = directory.string(), .reason = "the analysis package is missing"});
}

/// Runs `words` to completion and returns the status of waitpid.
int run_interpreter(std::vector<std::string> words, Interrupt interrupt) {
  std::vector<char*> pointers;
  for (std::string& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  pid_t child = 0;
  const int error =
      posix_spawnp(&child, words[0].c_str(), nullptr, nullptr, pointers.data(), environ);
  if (error != 0) {
    throw InputError({.where = words[0],
                      .reason = fmt::format(
                          "cannot be started as an interpreter ({}); accepted by --python and "
                          "FP8LAB_PYTHON: a Python with numpy, h5py, matplotlib, scipy and jinja2",
                          error_text(error))});
  }
  if (interrupt == Interrupt::child) std::signal(SIGINT, SIG_IGN);
  int status = 0;
  while (waitpid(child, &status, 0) < 0) {
    if (errno != EINTR) throw RuntimeFailure("waitpid: " + error_text(errno));
  }
  return status;
}

}  // namespace

int run_analysis(const std::string& interpreter, const std::string& module,
                 std::vector<std::string> words, const std::string& what, Interrupt interrupt) {
  words.insert(words.begin(), {interpreter, "-m", "fp8lab_analysis." + module});
  set_python_path();
  const int status = run_interpreter(std::move(words), interrupt);
  if (WIFSIGNALED(status)) {
    throw RuntimeFailure(fmt::format("{}: ended by signal {}; {} is not complete", interpreter,
                                     WTERMSIG(status), what));
  }
  const int code = WEXITSTATUS(status);
  if (code > 2) {
    throw RuntimeFailure(
        fmt::format("{}: ended with status {}; {} is not complete", interpreter, code, what));
  }
  return code;
}

void add_python(Options& options, const std::string& needs) {
  options.add(
      "python",
      value<std::string>(python_interpreter(), fmt::format("${}, else python3", kPythonVariable)),
      "interpreter that has " + needs);
}

void set_python_path() {
  std::string path = analysis_directory();
  if (path.empty()) return;
  path += ":" + python_package_folder().string();
  const char* before = std::getenv("PYTHONPATH");
  if (before != nullptr && *before != '\0') path += std::string(":") + before;
  setenv("PYTHONPATH", path.c_str(), 1);
}

}  // namespace fp8lab::cli
