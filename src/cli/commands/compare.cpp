// fp8lab compare: finds the first differing bit of two runs.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "emulation/base/input_error.hpp"
#include "src/cli/command.hpp"
#include "src/cli/finite_json.hpp"
#include "src/cli/inputs/checkpoint_source.hpp"
#include "src/cli/inputs/located.hpp"
#include "src/cli/inputs/model_source.hpp"
#include "src/cli/options/backend_option.hpp"
#include "src/cli/options/output_path.hpp"
#include "src/cli/options/replay_options.hpp"
#include "src/cli/progress.hpp"
#include "src/io/hash.hpp"
#include "src/io/printable.hpp"
#include "src/io/shell_word.hpp"
#include "src/replay/compare_runs.hpp"
#include "src/replay/run_difference.hpp"

namespace fp8lab::cli {
namespace {

using nlohmann::ordered_json;
using Where = LocatedDifference::Where;

Options compare_options() {
  Options options(
      "fp8lab compare A B\n"
      "A and B are run folders or their run.h5. Compares the files first: configuration, data and\n"
      "start, what follows from their differences (whether the runs are a pair), the last training "
      "and\n"
      "held-out losses that both have, and the first step whose loss, gradient norm or weight hash "
      "differs. Then executes both\n"
      "runs again up to that step, from the latest checkpoint before it that both have, else from "
      "the\n"
      "beginning, and names the first operation that writes other bits. Status 3: losses, weights "
      "or\n"
      "a setting differ. Status 0: the same bits in all that both have, and no setting differs "
      "that "
      "can\n"
      "change them: name, device, [logging], [memory] and the paths of data may differ");
  options.add("runs", value<std::vector<std::string>>(), "A B");
  options.add("backend-a", one_of(all_backends()),
              "backend that executes A again (default: as recorded)");
  options.add("backend-b", one_of(all_backends()),
              "backend that executes B again (default: as recorded)");
  options.add("files-only",
              "compare the files only, execute nothing; also for run files of fp8lab.torch");
  add_replay_options(options);
  return options;
}

ordered_json to_json(const StepRecord& record) {
  return {{"loss", record.loss},
          {"grad_norm", record.grad_norm},
          {"weights", hex16(record.weight_hash)}};
}

/// The same loss of both runs.
struct LossPair {
  std::string name;  ///< "held-out cpt"
  std::int64_t step = 0;
  double a = 0, b = 0;
  std::int64_t documents = 0;  ///< held out; 0: unknown
};

/// Fewer held-out documents have no interval (fp8lab_analysis.judge.text_noise).
constexpr std::int64_t kLeastDocuments = 5;

/// Returns the number of held-out documents of an evaluation; 0 if the file does not tell.
std::int64_t documents_of(const RunData& run, const EvalRecord& evaluation) {
  for (const DocumentRecord& row : run.documents) {
    const bool is_here = row.step == evaluation.step && row.stage == evaluation.stage;
    if (is_here && !row.in_bf16) return row.count;
  }
  return 0;
}

/// Returns the name of a loss, with the caveat of too few documents: "held-out cpt, 2 documents".
std::string described(const LossPair& pair) {
  if (pair.documents == 0 || pair.documents >= kLeastDocuments) return printable(pair.name);
  return fmt::format("{}, {} document{} only", printable(pair.name), pair.documents,
                     pair.documents == 1 ? "" : "s");
}

/// Returns the losses of the last steps that both runs have: of training, then held out, for each
/// stage of A that B has by the same name.
std::vector<LossPair> last_losses(const RunData& a, const RunData& b) {
  std::vector<LossPair> pairs;
  for (auto row = a.metrics.rbegin(); row != a.metrics.rend() && pairs.empty(); ++row) {
    const StepRecord* const other = find_step(b.metrics, row->step);
    if (other != nullptr) pairs.push_back({"training", row->step, row->loss, other->loss, 0});
  }
  const auto stage_of = [](const RunData& run, const EvalRecord& record) {
    return run.meta.stage_names[static_cast<std::size_t>(record.stage)];
  };
  for (const std::string& stage : a.meta.stage_names) {
    std::optional<LossPair> last;
    for (const EvalRecord& x : a.eval) {
      for (const EvalRecord& y : b.eval) {
        const bool is_pair = x.step == y.step && stage_of(a, x) == stage && stage_of(b, y) == stage;
        if (is_pair) last = {"held-out " + stage, x.step, x.loss, y.loss, documents_of(a, x)};
      }
    }
    if (last) pairs.push_back(*last);
  }
  return pairs;
}

/// The results so far, printed immediately and collected for --json.
class CompareReport {
 public:
  CompareReport(const RecordedRun& a, const RecordedRun& b) : a_(a), b_(b) {
    json_ = {{"what", "compare"}, {"a", a.file.string()}, {"b", b.file.string()}};
  }

  void add(const FileComparison& files);
  void add_losses();
  void add(const StartPoint& start, const ExecutedAgain& again, const FileComparison& files);
  const ordered_json& json() const { return json_; }
  /// True if bits differ, or a setting that can change them.
  bool differs() const { return differs_; }

 private:
  /// Reports the repeated execution of one side; returns false if its bits differ from the file.
  bool add_side(const char* name, const RecordedRun& run, const std::vector<StepRecord>& executed);

  const RecordedRun &a_, &b_;
  ordered_json json_;
  bool differs_ = false;
};

void CompareReport::add(const FileComparison& files) {
  const RunDifference difference = sort_differences(files.made_of);
  differs_ = files.differs() || !difference.names().empty();
  const bool says_equal = files.tells_data || !difference.names().empty();
  fmt::print("{}\n", says_equal ? printable(explain(difference))
                                : "A and B differ in nothing that their files name");
  if (!files.tells_data) {
    fmt::print("of data, start and settings these files say nothing: another program wrote one\n");
  }
  add_losses();
  for (const std::string& line : files.made_of) fmt::print("differs in {}\n", printable(line));
  json_["differs_in"] = difference.names();
  json_["pair"] = difference.is_pair();
  json_["made_of"] = files.made_of;
  json_["steps"] = files.steps;
  json_["good"] = !differs_;
  if (files.first.step < 0) {
    fmt::print("{} steps that both have: {} (A ends after step {}, B after {})\n", files.steps,
               files.tells_data ? "same bits" : "same losses and gradient norms", a_.last_step(),
               b_.last_step());
    if (files.held_out.step < 0) return;
    fmt::print("files: {} differs first at step {}\n", files.held_out.what, files.held_out.step);
    json_["first_step"] = files.held_out.step;
    json_["difference"] = files.held_out.what;
    return;
  }
  fmt::print("files: {} differs first at step {}", files.first.what, files.first.step);
  json_["first_step"] = files.first.step;
  json_["difference"] = files.first.what;
  const StepRecord* const x = find_step(a_.data.metrics, files.first.step);
  const StepRecord* const y = find_step(b_.data.metrics, files.first.step);
  if (x != nullptr && y != nullptr) {
    fmt::print(": loss {} and {}", x->loss, y->loss);
    if (x->weight_hash != 0 && y->weight_hash != 0) {
      fmt::print(", weights {} and {}", hex16(x->weight_hash), hex16(y->weight_hash));
    }
    json_["record_a"] = to_json(*x);
    json_["record_b"] = to_json(*y);
  }
  fmt::print("\n");
}

void CompareReport::add_losses() {
  json_["losses"] = ordered_json::array();
  const std::vector<LossPair> pairs = last_losses(a_.data, b_.data);
  if (pairs.empty()) {
    fmt::print("losses: no step that both have\n");
    return;
  }
  std::size_t width = 20;
  for (const LossPair& pair : pairs) width = std::max(width, described(pair).size());
  fmt::print("{:<{}} {:>9} {:>12} {:>12} {:>12}\n", "loss in nats", width, "step", "A", "B",
             "B - A");
  for (const LossPair& pair : pairs) {
    fmt::print("{:<{}} {:>9} {:>12.6g} {:>12.6g} {:>+12.4g}\n", described(pair), width, pair.step,
               pair.a, pair.b, pair.b - pair.a);
    json_["losses"].push_back({{"name", pair.name},
                               {"step", pair.step},
                               {"a", finite_json(pair.a)},
                               {"b", finite_json(pair.b)},
                               {"documents", pair.documents},
                               {"difference", finite_json(pair.b - pair.a)}});
  }
}

bool CompareReport::add_side(const char* name, const RecordedRun& run,
                             const std::vector<StepRecord>& executed) {
  const Reproduction found = compare_with_file(run, executed);
  const bool good = found.difference.step < 0;
  fmt::print("{} {}: {}\n", name, run.file.string(),
             good ? fmt::format("executed again, {} steps, same bits as its file", found.steps)
                  : fmt::format("not reproducible here: its file has another {} at step {}",
                                found.difference.what, found.difference.step));
  ordered_json& json = json_[fmt::format("reproduced_{}", name[0] == 'A' ? "a" : "b")];
  json = {{"good", good}, {"steps", found.steps}};
  if (!good) {
    json["first_step"] = found.difference.step;
    json["difference"] = found.difference.what;
  }
  return good;
}

void CompareReport::add(const StartPoint& start, const ExecutedAgain& again,
                        const FileComparison& files) {
  fmt::print("executed again from {}\n",
             start.checkpoint == nullptr
                 ? "the beginning"
                 : fmt::format("{}, step {}", start.checkpoint->path(), start.position.step));
  json_["start_step"] = start.position.step;
  json_["located"] = cli::to_json(again.difference);
  fmt::print("{}", describe(again.difference, "A", "B"));
  const bool a = add_side("A", a_, again.a), b = add_side("B", b_, again.b);
  const bool transient = again.difference.where == Where::nowhere;
  json_["transient"] = transient;
  if (!transient) return;
  const char* const whose = a == b ? "one of the two, or both," : a ? "B" : "A";
  fmt::print(
      "transient: both agree when they are executed again; {} had a fault at step {}, the "
      "first whose loss or weights show it\n",
      whose, files.first.step);
}

}  // namespace

int compare(const std::vector<std::string>& arguments) {
  const Values values = parse_arguments("compare", compare_options(), arguments, {{"runs", -1}});
  if (values.count("help") != 0) return ExitCode::kSuccess;
  const std::vector<std::string> paths = words_of(values, "runs");
  if (paths.size() != 2) {
    throw InputError({.where = "compare",
                      .reason = fmt::format("{} runs given", paths.size()),
                      .accepted = "two"});
  }
  if (values.count("files-only") != 0) {
    refuse_given(values, "compare",
                 {"backend-a", "backend-b", "init-from", "look-in", "threads", "no-graphs"},
                 "is for what is executed again, not with --files-only");
  }
  check_output_files(values, "compare", {"json"});
  const std::vector<std::filesystem::path> look_in = folders_to_look_in(values, "compare");
  const bool executes = values.count("files-only") == 0;
  const auto open = [&](const std::string& path) {
    return executes ? open_recorded_run(path, look_in) : open_run_to_compare(path);
  };
  const RecordedRun a = open(paths[0]), b = open(paths[1]);
  require_unread(values, "compare", {"json"});
  const FileComparison files = compare_files(a, b);
  CompareReport report(a, b);
  report.add(files);
  if (files.first.step >= 0 && executes) {
    const StartPoint start = common_start(a, b, files.first.step);
    PhaseLine phase;
    const ExecutedAgain again =
        locate_difference(chosen_source(a, values, "backend-a", "compare"),
                          chosen_source(b, values, "backend-b", "compare"), start, files.first.step,
                          [&](const std::string& what) { phase.begin(what); });
    phase.begin("");
    report.add(start, again, files);
  }
  fmt::print("loss curves and differences of configuration: fp8lab report {} {} --out report\n",
             shell_path(a.file.string()), shell_path(b.file.string()));
  if (values.count("json") != 0) {
    write_json(values["json"].as<std::string>(), report.json());
  }
  return report.differs() ? ExitCode::kMismatch : ExitCode::kSuccess;
}

}  // namespace fp8lab::cli
