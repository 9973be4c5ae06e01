#include "src/io/study_log.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <type_traits>

#include "emulation/base/error.hpp"
#include "src/io/atomic_file.hpp"
#include "src/io/hdf5.hpp"
#include "src/io/run_schema.hpp"

namespace fp8lab {
namespace {

constexpr char kStudySchema[] = "fp8lab-study-1";

template <class T>
constexpr ElementType element_type_of() {
  if constexpr (std::is_same_v<T, double>) return ElementType::f64;
  if constexpr (std::is_same_v<T, std::int64_t>) return ElementType::i64;
  if constexpr (std::is_same_v<T, std::uint64_t>) return ElementType::u64;
  if constexpr (std::is_same_v<T, bool>) return ElementType::u8;
}

void check(const StudyTable& table) {
  std::set<std::string> names;
  for (const ArmResult& arm : table.arms) {
    if (arm.name.empty() || arm.name == "." || arm.name == ".." ||
        arm.name.find('/') != std::string::npos) {
      throw Error(
          fmt::format("study arm name '{}': one folder name without '/' is accepted", arm.name));
    }
    if (!names.insert(arm.name).second) {
      throw Error(fmt::format("study arm '{}' is listed twice", arm.name));
    }
    if (arm.run_file.empty()) {
      throw Error(fmt::format("study arm '{}' has no run file", arm.name));
    }
    if (arm.stages.size() != table.stage_names.size()) {
      throw Error(fmt::format("study arm '{}': {} stage results for {} stages", arm.name,
                              arm.stages.size(), table.stage_names.size()));
    }
  }
}

void write_texts(Hdf5File& file, DatasetSpec spec, const std::vector<std::string>& values) {
  spec.type = ElementType::text;
  spec.text_size = 1;
  for (const std::string& value : values) spec.text_size = std::max(spec.text_size, value.size());
  std::string bytes;
  for (const std::string& value : values) bytes += fixed_text(value, spec.text_size);
  const auto rows = static_cast<std::int64_t>(values.size());
  file.create_fixed(spec, rows).write(bytes.data(), 0, rows);
}

/// Writes columns of /arms: one value of every arm.
class ArmColumns {
 public:
  ArmColumns(Hdf5File& file, const std::vector<ArmResult>& arms) : file_(file), arms_(arms) {}

  template <class T>
  void numbers(const char* path, T ArmResult::*member, const char* units, const char* description) {
    using Stored = std::conditional_t<std::is_same_v<T, bool>, std::uint8_t, T>;
    std::vector<Stored> values;
    for (const ArmResult& arm : arms_) values.push_back(arm.*member);
    const auto rows = static_cast<std::int64_t>(values.size());
    const DatasetSpec spec{
        .path = path, .type = element_type_of<T>(), .units = units, .description = description};
    file_.create_fixed(spec, rows).write(values.data(), 0, rows);
  }

  void texts(const char* path, std::string ArmResult::*member, const char* description) {
    std::vector<std::string> values;
    for (const ArmResult& arm : arms_) values.push_back(arm.*member);
    write_texts(file_, {.path = path, .units = "name", .description = description}, values);
  }

 private:
  Hdf5File& file_;
  const std::vector<ArmResult>& arms_;
};

void write_arms(Hdf5File& file, const std::vector<ArmResult>& arms) {
  file.create_group("/arms");
  std::vector<std::string> run_files;
  for (const ArmResult& arm : arms) run_files.push_back(arm.run_file.generic_string());
  write_texts(file, {.path = "/arms/run_file", .units = "path", .description = "run file"},
              run_files);
  ArmColumns columns(file, arms);
  columns.texts("/arms/name", &ArmResult::name, "folder of the arm");
  columns.texts("/arms/recipe", &ArmResult::recipe, "recipe");
  columns.texts("/arms/baseline_arm", &ArmResult::baseline_arm, "arm that gaps are taken against");
  columns.numbers("/arms/seed", &ArmResult::seed, "1", "seed");
  columns.numbers("/arms/complete", &ArmResult::complete, "flag", "the run is done");
  columns.numbers("/arms/diverged", &ArmResult::diverged, "flag", "the run diverged");
  columns.numbers("/arms/last_step", &ArmResult::last_step, "step", "last step done");
  columns.numbers("/arms/spikes", &ArmResult::spikes, "spike", "loss spikes");
  columns.numbers("/arms/first_step_beyond_noise", &ArmResult::first_step_beyond_noise, "step",
                  "first step whose gap leaves the seed noise, -1: none");
  columns.numbers("/arms/final_gap", &ArmResult::final_gap, "nats/token",
                  "smoothed training loss minus the baseline's at the end");
  columns.numbers("/arms/max_gap", &ArmResult::max_gap, "nats/token", "largest smoothed gap");
  columns.numbers("/arms/gap_area", &ArmResult::gap_area, "nats/token*step", "sum of the gaps");
  columns.numbers("/arms/grad_norm_ratio", &ArmResult::grad_norm_ratio, "1",
                  "mean gradient norm over the baseline's");
  columns.numbers("/arms/final_weight_hash", &ArmResult::final_weight_hash, "hash",
                  "XXH3-64 of the final weights, 0: not complete");
}

template <class T>
void write_stage_table(Hdf5File& file, const StudyTable& table, const char* path,
                       T StageResult::*member, const char* units, const char* description) {
  std::vector<T> values;
  for (const ArmResult& arm : table.arms) {
    for (const StageResult& stage : arm.stages) values.push_back(stage.*member);
  }
  const DatasetSpec spec{.path = path,
                         .type = element_type_of<T>(),
                         .row_shape = {static_cast<std::int64_t>(table.stage_names.size())},
                         .units = units,
                         .description = description};
  const auto rows = static_cast<std::int64_t>(table.arms.size());
  file.create_fixed(spec, rows).write(values.data(), 0, rows);
}

void write_stages(Hdf5File& file, const StudyTable& table) {
  file.create_group("/stages");
  write_stage_table(file, table, "/stages/train_loss", &StageResult::train_loss, "nats/token",
                    "smoothed training loss at the end of the stage");
  write_stage_table(file, table, "/stages/eval_loss", &StageResult::eval_loss, "nats/token",
                    "last held-out loss of the stage");
  write_stage_table(file, table, "/stages/exact_match", &StageResult::exact_match, "fraction",
                    "greedy answers that are right");
  write_stage_table(file, table, "/stages/exact_match_count", &StageResult::exact_match_count,
                    "problem", "problems asked");
  write_stage_table(file, table, "/stages/gap", &StageResult::gap, "nats/token",
                    "eval_loss minus the baseline's");
}

void write_axes(Hdf5File& file, const std::vector<ArmResult>& arms) {
  std::set<std::string> keys;
  for (const ArmResult& arm : arms) {
    for (const auto& [key, value] : arm.axes) keys.insert(key);
  }
  const std::vector<std::string> ordered(keys.begin(), keys.end());
  file.set_attribute("/meta", "axis_keys", ordered);
  file.create_group("/axes");
  for (std::size_t i = 0; i < ordered.size(); ++i) {
    std::vector<std::string> values;
    for (const ArmResult& arm : arms) {
      const auto found = arm.axes.find(ordered[i]);
      values.push_back(found == arm.axes.end() ? "" : found->second);
    }
    const std::string path = fmt::format("/axes/{}", i);
    write_texts(file, {.path = path, .units = "TOML", .description = "value of one axis"}, values);
    file.set_attribute(path, "key", ordered[i]);
  }
}

}  // namespace

void write_study(const std::filesystem::path& study_h5, const StudyTable& table) {
  check(table);
  TemporaryFile temporary(temporary_beside(study_h5));
  Hdf5File file = Hdf5File::create(temporary.path(), study_h5);
  file.create_group("/meta");
  file.set_attribute("/meta", "schema", std::string(kStudySchema));
  file.set_attribute("/meta", "name", table.name);
  file.set_attribute("/meta", "title", table.title);
  file.set_attribute("/meta", "config_text", table.config_text);
  file.set_attribute("/meta", "config_hash", table.config_hash);
  file.set_attribute("/meta", "baseline", table.baseline);
  file.set_attribute("/meta", "stage_names", table.stage_names);
  file.create_group("/runs");
  for (const ArmResult& arm : table.arms) {
    file.link_external("/runs/" + arm.name, arm.run_file.generic_string(), "/");
  }
  write_arms(file, table.arms);
  write_stages(file, table);
  write_axes(file, table.arms);
  file.seal_attributes("/meta");
  file.close();
  replace_file(temporary, study_h5);
}

std::vector<std::filesystem::path> read_study_links(const std::filesystem::path& study_h5) {
  const Hdf5File file = Hdf5File::open(study_h5);
  if (!file.has_attribute("/meta", "schema") ||
      file.text_attribute("/meta", "schema") != kStudySchema) {
    throw Error(fmt::format("{}: not a study file: its schema is not '{}'", study_h5.string(),
                            kStudySchema));
  }
  if (file.has_attribute("/meta", "checksum")) file.check_attributes("/meta");
  const std::vector<std::string> arms = file.link_names("/runs");
  const std::vector<std::string> files =
      read_all_texts(file, {.path = "/arms/run_file", .type = ElementType::text});
  if (arms.size() != files.size()) {
    throw Error(fmt::format("{}: damaged: {} links for {} arms", study_h5.string(), arms.size(),
                            files.size()));
  }
  return {files.begin(), files.end()};
}

}  // namespace fp8lab
