#include "src/io/hdf5/study_log.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <type_traits>

#include "emulation/base/error.hpp"
#include "emulation/base/input_error.hpp"
#include "src/io/files/atomic_file.hpp"
#include "src/io/files/file_kind.hpp"
#include "src/io/hdf5/hdf5.hpp"
#include "src/io/hdf5/run_schema.hpp"

namespace fp8lab {
namespace {

constexpr char kStudySchema[] = "fp8lab-study-2";
constexpr char kFirstStudySchema[] = "fp8lab-study-1";  // contains statistics, which no reader uses

template <class T>
constexpr ElementType element_type_of() {
  if constexpr (std::is_same_v<T, std::int64_t>) return ElementType::i64;
  if constexpr (std::is_same_v<T, std::uint64_t>) return ElementType::u64;
  if constexpr (std::is_same_v<T, bool>) return ElementType::u8;
}

void check(const StudyTable& table) {
  std::set<std::string> names, baselines;
  for (const ArmRecord& arm : table.arms) {
    if (arm.name.empty() || arm.name == "." || arm.name == ".." ||
        arm.name.find('/') != std::string::npos) {
      throw InputError({.where = fmt::format("study arm name '{}'", arm.name),
                        .reason = "one folder name without '/' is accepted"});
    }
    if (!names.insert(arm.name).second) {
      throw Error(fmt::format("study arm '{}' is listed twice", arm.name));
    }
    if (arm.run_file.empty()) {
      throw Error(fmt::format("study arm '{}' has no run file", arm.name));
    }
    if (arm.is_baseline) baselines.insert(arm.name);
  }
  for (const ArmRecord& arm : table.arms) {
    if (arm.baseline_arm.empty()) continue;
    if (arm.is_baseline || baselines.count(arm.baseline_arm) == 0) {
      throw InputError(
          {.reason = fmt::format("study arm '{}' is paired with '{}'", arm.name, arm.baseline_arm),
           .accepted = "an arm that is no baseline with one that is"});
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

/// Writes columns of /arms: one value per arm.
class ArmColumns {
 public:
  ArmColumns(Hdf5File& file, const std::vector<ArmRecord>& arms) : file_(file), arms_(arms) {}

  template <class T>
  void numbers(const char* path, T ArmRecord::*member, const char* units, const char* description) {
    using Stored = std::conditional_t<std::is_same_v<T, bool>, std::uint8_t, T>;
    std::vector<Stored> values;
    for (const ArmRecord& arm : arms_) values.push_back(arm.*member);
    const auto rows = static_cast<std::int64_t>(values.size());
    const DatasetSpec spec{
        .path = path, .type = element_type_of<T>(), .units = units, .description = description};
    file_.create_fixed(spec, rows).write(values.data(), 0, rows);
  }

  void texts(const char* path, std::string ArmRecord::*member, const char* description) {
    std::vector<std::string> values;
    for (const ArmRecord& arm : arms_) values.push_back(arm.*member);
    write_texts(file_, {.path = path, .units = "name", .description = description}, values);
  }

 private:
  Hdf5File& file_;
  const std::vector<ArmRecord>& arms_;
};

void write_arms(Hdf5File& file, const std::vector<ArmRecord>& arms) {
  file.create_group("/arms");
  std::vector<std::string> run_files;
  for (const ArmRecord& arm : arms) run_files.push_back(arm.run_file.generic_string());
  write_texts(file, {.path = "/arms/run_file", .units = "path", .description = "run file"},
              run_files);
  ArmColumns columns(file, arms);
  columns.texts("/arms/name", &ArmRecord::name, "folder of the arm");
  columns.texts("/arms/recipe", &ArmRecord::recipe, "recipe");
  columns.texts("/arms/config_hash", &ArmRecord::config_hash, "hash of the configuration");
  columns.texts("/arms/baseline_arm", &ArmRecord::baseline_arm,
                "arm that this one is compared with");
  columns.numbers("/arms/seed", &ArmRecord::seed, "1", "seed");
  columns.numbers("/arms/is_baseline", &ArmRecord::is_baseline, "flag",
                  "every stage runs the baseline recipe");
  columns.numbers("/arms/complete", &ArmRecord::complete, "flag", "the run is done");
  columns.numbers("/arms/last_step", &ArmRecord::last_step, "step", "last step done");
  columns.numbers("/arms/final_weight_hash", &ArmRecord::final_weight_hash, "hash",
                  "XXH3-64 of the final weights, 0: not complete");
}

void write_axes(Hdf5File& file, const std::vector<ArmRecord>& arms) {
  std::set<std::string> keys;
  for (const ArmRecord& arm : arms) {
    for (const auto& [key, value] : arm.axes) keys.insert(key);
  }
  const std::vector<std::string> ordered(keys.begin(), keys.end());
  file.set_attribute("/meta", "axis_keys", ordered);
  file.create_group("/axes");
  for (std::size_t i = 0; i < ordered.size(); ++i) {
    std::vector<std::string> values;
    for (const ArmRecord& arm : arms) {
      const auto found = arm.axes.find(ordered[i]);
      values.push_back(found == arm.axes.end() ? "" : found->second);
    }
    const std::string path = fmt::format("/axes/{}", i);
    write_texts(file, {.path = path, .units = "TOML", .description = "value of one axis"}, values);
    file.set_attribute(path, "key", ordered[i]);
  }
}

void write_design(Hdf5File& file, const StatedDesign& stated) {
  const StudyDesign& design = stated.design;
  file.create_group("/design");
  file.set_attribute("/design", "margin", design.margin);
  file.set_attribute("/design", "alpha", design.alpha);
  file.set_attribute("/design", "power", design.power);
  file.set_attribute("/design", "looks", design.looks);
  file.set_attribute("/design", "stated", stated.stated);
  file.set_attribute("/design", "arms_begun", stated.arms_begun);
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
  file.create_group("/runs");
  for (const ArmRecord& arm : table.arms) {
    file.link_external("/runs/" + arm.name, arm.run_file.generic_string(), "/");
  }
  write_arms(file, table.arms);
  write_axes(file, table.arms);
  if (table.design) write_design(file, *table.design);
  file.seal_attributes("/meta");
  file.close();
  replace_file(temporary, study_h5);
}

std::optional<StatedDesign> read_stated_design(const std::filesystem::path& study_h5) {
  if (!is_present(study_h5)) return std::nullopt;
  const Hdf5File file = Hdf5File::open(study_h5);
  if (!file.has("/design")) return std::nullopt;
  StatedDesign stated;
  stated.design.margin = file.number_attribute("/design", "margin");
  stated.design.alpha = file.number_attribute("/design", "alpha");
  stated.design.power = file.number_attribute("/design", "power");
  stated.design.looks = file.integer_attribute("/design", "looks");
  stated.stated = file.text_attribute("/design", "stated");
  stated.arms_begun = file.integer_attribute("/design", "arms_begun");
  return stated;
}

std::vector<std::filesystem::path> read_study_links(const std::filesystem::path& study_h5) {
  const Hdf5File file = Hdf5File::open(study_h5);
  const std::string schema =
      file.has_attribute("/meta", "schema") ? file.text_attribute("/meta", "schema") : "";
  if (schema != kStudySchema && schema != kFirstStudySchema) {
    throw InputError({.where = study_h5.string(),
                      .reason = fmt::format("not a study file: schema '{}', accepted '{}' to 2",
                                            schema, kFirstStudySchema)});
  }
  if (file.has_attribute("/meta", "checksum")) file.check_attributes("/meta");
  const std::vector<std::string> arms = file.link_names("/runs");
  const std::vector<std::string> files =
      read_all_texts(file, {.path = "/arms/run_file", .type = ElementType::text});
  if (arms.size() != files.size()) {
    throw InputError(
        {.where = study_h5.string(),
         .reason = fmt::format("damaged: {} links for {} arms", arms.size(), files.size())});
  }
  for (const std::string& run : files) {
    const std::filesystem::path path = run;
    if (path.is_relative() && std::find(path.begin(), path.end(), "..") == path.end()) continue;
    throw InputError({.where = study_h5.string(),
                      .reason = fmt::format("names the run file '{}'", run),
                      .accepted = "one in the folder of the study"});
  }
  file.read_everything();
  return {files.begin(), files.end()};
}

}  // namespace fp8lab
