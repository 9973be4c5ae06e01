// fp8lab report: creates figures, tables and one HTML page from run files,
// through the Python package.
#include <fmt/core.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "emulation/base/error.hpp"
#include "emulation/base/input_error.hpp"
#include "src/cli/analysis_package.hpp"
#include "src/cli/command.hpp"
#include "src/cli/options/output_path.hpp"
#include "src/config/config.hpp"
#include "src/config/reading/document_kind.hpp"
#include "src/io/files/file_descriptor.hpp"
#include "src/io/files/file_kind.hpp"
#include "src/io/files/missing_file.hpp"
#include "src/io/hdf5/study_log.hpp"
#include "src/study/study.hpp"
#include "src/study/study_folder.hpp"

namespace fp8lab::cli {
namespace {

Options report_options() {
  Options options("fp8lab report DIR | RUN.h5 ...\nfp8lab report --plan STUDY.toml [--from DIR]");
  options.add("input", value<std::vector<std::string>>(), "study directory or run files");
  options.add("out", value<std::string>(),
              "report directory (default: DIR/report; required for several inputs)");
  options.add("title", value<std::string>(), "title of the page");
  options.add("beside", value<std::string>(), "another study, compared with this one arm by arm");
  options.add(
      "follow", value<double>(),
      "interval in seconds: rewrite the page from growing run files until all are complete");
  options.add("export", one_of({"tensorboard", "trackio"}),
              "write files of this program to --out instead of a page");
  options.add("plan", value<std::string>(),
              "study file: print the number of seeds that its margin needs, from the noise of "
              "earlier runs");
  options.add("from", value<std::string>(),
              "earlier runs for --plan, a study directory (default: runs/NAME of the study)");
  add_python(options, "numpy, scipy, h5py, matplotlib and jinja2");
  return options;
}

/// Returns the folder of the page: beside the first input unless --out is given.
std::filesystem::path out_directory(const Values& values, const std::string& first) {
  const std::filesystem::path input = first;
  if (values.count("out") == 0) {
    const bool directory = is_folder(input);
    return (directory ? input : input.parent_path()) / "report";
  }
  return output_folder(values["out"].as<std::string>(), "report: --out");
}

/// A temporary folder, removed with its contents.
class TemporaryFolder {
 public:
  TemporaryFolder() : path_((std::filesystem::temp_directory_path() / "fp8lab-XXXXXX").string()) {
    if (::mkdtemp(path_.data()) == nullptr) {
      throw RuntimeFailure(fmt::format("{}: cannot be made: {}", path_, error_text(errno)));
    }
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  std::filesystem::path path() const { return path_; }

 private:
  std::string path_;
};

/// Writes the plan of the study file as study.h5, which the package reads.
int print_plan(const Values& values) {
  refuse_given(values, "report --plan", {"out", "title", "beside", "follow", "export"},
               "is for a report");
  refuse_given(values, "report --plan", {"input"}, "of earlier runs are given by --from");
  const auto file = values["plan"].as<std::string>();
  const StudyConfig study = load_study_config(file);
  const TemporaryFolder folder;
  const std::filesystem::path table = folder.path() / "study.h5";
  write_study(table, describe_study(study, plan_study(study), folder.path()));
  std::vector<std::string> words = {"--plan=" + table.string(), "--study=" + file};
  const std::filesystem::path usual = std::filesystem::path("runs") / study.name;
  if (values.count("from") != 0) {
    words.push_back("--from=" + values["from"].as<std::string>());
  } else if (is_present(usual / "study.h5")) {
    words.push_back("--from=" + usual.string());
  }
  return run_analysis(values["python"].as<std::string>(), "report", std::move(words), "the plan");
}

/// Returns true if the page was written after `start`.
bool was_written(const std::filesystem::path& page, std::filesystem::file_time_type start) {
  std::error_code missing;
  const auto written = std::filesystem::last_write_time(page, missing);
  return !missing && written >= start - std::chrono::seconds(2);  // file systems have coarse clocks
}

}  // namespace

int report(const std::vector<std::string>& arguments) {
  const Values values = parse_arguments("report", report_options(), arguments, {{"input", -1}});
  if (values.count("help") != 0) return ExitCode::kSuccess;
  if (values.count("plan") != 0) return print_plan(values);
  refuse_given(values, "report", {"from"}, "is for --plan");
  if (values.count("input") == 0)
    throw InputError({.where = "report", .reason = "give a study directory or run files"});
  const auto inputs = values["input"].as<std::vector<std::string>>();
  for (const std::string& input : inputs) {
    std::error_code error;
    if (std::filesystem::exists(input, error)) {
      refuse_document(input, "a run or a study");
      continue;
    }
    const bool missing = !error || error == std::errc::no_such_file_or_directory;
    throw InputError({.where = input,
                      .reason = missing ? "no such file" + where_looked(input) : error.message()});
  }
  if (values.count("export") != 0 && values.count("out") == 0) {
    throw InputError({.where = "report", .key = "--export", .reason = "needs --out"});
  }
  const std::filesystem::path out = out_directory(values, inputs[0]);
  if (values.count("out") == 0 && inputs.size() > 1) {
    throw InputError(
        {.where = "report",
         .reason = fmt::format(
             "{} inputs need --out FOLDER, as {} is the place of a page of the first alone",
             inputs.size(), out.string())});
  }
  const auto interpreter = values["python"].as<std::string>();
  std::vector<std::string> words = {"--out=" + out.string()};
  for (const char* name : {"title", "beside", "export"}) {
    if (values.count(name) == 0) continue;
    words.push_back(fmt::format("--{}={}", name, values[name].as<std::string>()));
  }
  if (values.count("follow") != 0) {
    words.push_back(fmt::format("--follow={}", values["follow"].as<double>()));
  }
  words.push_back("--");
  words.insert(words.end(), inputs.begin(), inputs.end());
  const auto start = std::filesystem::file_time_type::clock::now();
  const int code = run_analysis(interpreter, "report", std::move(words), "the report",
                                values.count("follow") != 0 ? Interrupt::child : Interrupt::both);
  if (code == 0 && values.count("export") == 0 && !was_written(out / "index.html", start)) {
    throw InputError(
        {.where = interpreter,
         .reason =
             "made no report; accepted by --python and FP8LAB_PYTHON: an interpreter of Python"});
  }
  return code;
}

}  // namespace fp8lab::cli
