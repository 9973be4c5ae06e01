// fp8lab report: figures, tables and one HTML page from run files, by the Python package.
#include <fmt/core.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <boost/program_options.hpp>
#include <cstdlib>
#include <filesystem>

#include "emulation/api/error.hpp"
#include "src/cli/command.hpp"
#include "src/cli/output_path.hpp"
#include "src/config/experiments.hpp"

namespace fp8lab::cli {
namespace {

namespace po = boost::program_options;

po::options_description report_options() {
  po::options_description options("fp8lab report DIR | RUN.h5 ...");
  auto add = options.add_options();
  add("input", po::value<std::vector<std::string>>(), "study directory or run files");
  add("out", po::value<std::string>(), "report directory (default: DIR/report)");
  add("title", po::value<std::string>(), "title of the page");
  add("python", po::value<std::string>()->default_value("/usr/bin/python3"),
      "interpreter that has numpy, h5py, matplotlib and jinja2");
  return options;
}

/// The package lies beside the experiments, installed as in the source tree.
std::filesystem::path analysis_directory() {
  const auto directory = experiments_directory().parent_path() / "analysis";
  if (!std::filesystem::is_directory(directory / "fp8lab_analysis")) {
    throw Error(fmt::format("{}: the analysis package is missing", directory.string()));
  }
  return directory;
}

}  // namespace

int report(const std::vector<std::string>& arguments) {
  po::positional_options_description positional;
  positional.add("input", -1);
  const po::variables_map values =
      parse_arguments("report", report_options(), arguments, positional);
  if (values.count("help") != 0) return 0;
  if (values.count("input") == 0) throw Error("report: give a study directory or run files");
  const auto inputs = values["input"].as<std::vector<std::string>>();
  for (const std::string& input : inputs) {
    if (!std::filesystem::exists(input)) throw Error(fmt::format("{}: no such file", input));
  }
  std::filesystem::path out = inputs[0];
  if (values.count("out") != 0) {
    out = output_folder(values["out"].as<std::string>(), "report: --out");
  } else {
    out = (std::filesystem::is_directory(out) ? out : out.parent_path()) / "report";
  }
  std::vector<std::string> words = {values["python"].as<std::string>(), "-m",
                                    "fp8lab_analysis.report"};
  words.insert(words.end(), inputs.begin(), inputs.end());
  words.insert(words.end(), {"--out", out.string()});
  if (values.count("title") != 0) {
    words.insert(words.end(), {"--title", values["title"].as<std::string>()});
  }
  std::vector<char*> pointers;
  for (std::string& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  setenv("PYTHONPATH", analysis_directory().c_str(), 1);
  pid_t child = 0;
  if (posix_spawn(&child, words[0].c_str(), nullptr, nullptr, pointers.data(), environ) != 0) {
    throw Error(fmt::format("{}: cannot start the interpreter; see --python", words[0]));
  }
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}

}  // namespace fp8lab::cli
