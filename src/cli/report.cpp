// fp8lab report: figures, tables and one HTML page from run files, by the Python package.
#include <fmt/core.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <system_error>

#include "emulation/base/error.hpp"
#include "src/cli/command.hpp"
#include "src/cli/output_path.hpp"
#include "src/config/experiments.hpp"
#include "src/io/file_kind.hpp"

namespace fp8lab::cli {
namespace {

Options report_options() {
  Options options("fp8lab report DIR | RUN.h5 ...");
  options.add("input", value<std::vector<std::string>>(), "study directory or run files");
  options.add("out", value<std::string>(), "report directory (default: DIR/report)");
  options.add("title", value<std::string>(), "title of the page");
  options.add("beside", value<std::string>(), "another study, laid beside this one arm by arm");
  options.add("follow", value<double>(),
              "seconds: read growing run files and write the page anew until all are complete");
  options.add("export", value<std::string>(),
              "tensorboard or trackio: write their files to --out instead of a page");
  options.add("python", value<std::string>("/usr/bin/python3"),
              "interpreter that has numpy, h5py, matplotlib and jinja2");
  return options;
}

/// The package lies beside the experiments, installed as in the source tree.
std::filesystem::path analysis_directory() {
  const auto directory = experiments_directory().parent_path() / "analysis";
  if (!is_folder(directory / "fp8lab_analysis")) {
    throw Error(fmt::format("{}: the analysis package is missing", directory.string()));
  }
  return directory;
}

std::string text_of(int error) { return std::error_code(error, std::generic_category()).message(); }

/// Where the page goes: beside the first input unless --out says otherwise.
std::filesystem::path out_directory(const Values& values, const std::string& first) {
  const std::filesystem::path input = first;
  if (values.count("out") == 0) {
    const bool directory = is_folder(input);
    return (directory ? input : input.parent_path()) / "report";
  }
  return output_folder(values["out"].as<std::string>(), "report: --out");
}

/// The analysis package comes before whatever else the user's interpreter should find.
void set_python_path() {
  std::string path = analysis_directory();
  const char* before = std::getenv("PYTHONPATH");
  if (before != nullptr && *before != '\0') path += std::string(":") + before;
  setenv("PYTHONPATH", path.c_str(), 1);
}

/// Status that waitpid reports of `words`, run to its end; with `until_interrupted`, Ctrl-C is for
/// the interpreter, which writes a last page.
int run_interpreter(std::vector<std::string> words, bool until_interrupted) {
  std::vector<char*> pointers;
  for (std::string& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  pid_t child = 0;
  const int error =
      posix_spawnp(&child, words[0].c_str(), nullptr, nullptr, pointers.data(), environ);
  if (error != 0) {
    throw Error(
        fmt::format("{}: cannot be started as an interpreter ({}); accepted by --python: a "
                    "Python with numpy, h5py, matplotlib, scipy and jinja2",
                    words[0], text_of(error)));
  }
  if (until_interrupted) std::signal(SIGINT, SIG_IGN);
  int status = 0;
  while (waitpid(child, &status, 0) < 0) {
    if (errno != EINTR) throw RuntimeFailure("report: waitpid: " + text_of(errno));
  }
  return status;
}

/// True for a page that was not there before `start`.
bool was_written(const std::filesystem::path& page, std::filesystem::file_time_type start) {
  std::error_code missing;
  const auto written = std::filesystem::last_write_time(page, missing);
  return !missing &&
         written >= start - std::chrono::seconds(2);  // clocks of file systems are coarse
}

}  // namespace

int report(const std::vector<std::string>& arguments) {
  const Values values = parse_arguments("report", report_options(), arguments, {{"input", -1}});
  if (values.count("help") != 0) return 0;
  if (values.count("input") == 0) throw Error("report: give a study directory or run files");
  const auto inputs = values["input"].as<std::vector<std::string>>();
  for (const std::string& input : inputs) {
    std::error_code error;
    if (std::filesystem::exists(input, error)) continue;
    const bool missing = !error || error == std::errc::no_such_file_or_directory;
    throw Error(fmt::format("{}: {}", input, missing ? "no such file" : error.message()));
  }
  if (values.count("export") != 0 && values.count("out") == 0) {
    throw Error("report: --export needs --out");
  }
  const std::filesystem::path out = out_directory(values, inputs[0]);
  const auto interpreter = values["python"].as<std::string>();
  std::vector<std::string> words = {interpreter, "-m", "fp8lab_analysis.report",
                                    "--out=" + out.string()};
  for (const char* name : {"title", "beside", "export"}) {
    if (values.count(name) == 0) continue;
    words.push_back(fmt::format("--{}={}", name, values[name].as<std::string>()));
  }
  if (values.count("follow") != 0) {
    words.push_back(fmt::format("--follow={}", values["follow"].as<double>()));
  }
  words.push_back("--");
  words.insert(words.end(), inputs.begin(), inputs.end());
  set_python_path();
  const auto start = std::filesystem::file_time_type::clock::now();
  const int status = run_interpreter(words, values.count("follow") != 0);
  if (WIFSIGNALED(status)) {
    throw RuntimeFailure(fmt::format("{}: ended by signal {}; the report is not complete",
                                     interpreter, WTERMSIG(status)));
  }
  const int code = WEXITSTATUS(status);
  if (code > 2) {
    throw RuntimeFailure(
        fmt::format("{}: ended with status {}; the report is not complete", interpreter, code));
  }
  if (code == 0 && values.count("export") == 0 && !was_written(out / "index.html", start)) {
    throw Error(fmt::format("{}: made no report; accepted by --python: an interpreter of Python",
                            interpreter));
  }
  return code;
}

}  // namespace fp8lab::cli
