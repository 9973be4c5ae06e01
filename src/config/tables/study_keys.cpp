// Help texts for the keys of study files, which study_file.cpp reads.
#include "src/config/key_help.hpp"
#include "src/config/run_name.hpp"
#include "src/config/tables/study_tables.hpp"
#include "src/config/tables/table.hpp"

namespace fp8lab {
namespace {

constexpr const char* kSettings =
    "keys of run files with their values (fp8lab help config), as [set] tables or dotted keys: "
    "stages.cpt.steps = 50";

}  // namespace

std::vector<KeyHelp> study_keys() {
  const std::string name(kRunNameRule);
  std::vector<KeyHelp> keys = {
      {"name", name, "default the file's name", "", "of the study; its folder is runs/NAME"},
      {"title", "a text", "default name", "", "one line for the report"},
      {"base", "a preset's name (fp8lab presets), or a path relative to this file", "required", "",
       "run configuration that every run starts from"},
      {"baseline", "a recipe's name or file, or the table below", "default \"bf16\"", "",
       "recipe that the others are compared with; at least one arm runs it"},
      {"shared_stages", "a list of names of stages", "default none", "",
       "leading stages of the base that are trained once, by shared runs; arms start from those"},
  };
  const Fields<StudyConfig> fields = {scale_field()};
  list_fields(fields, "", keys);
  list_heading("set", "settings of every run, arms and shared ones", false, keys);
  keys.push_back({"set.KEY", kSettings, "", "", "a setting"});
  list_heading("design", "what the verdicts have to hold, stated before the first run", false,
               keys);
  list_table(design_table(), "design", keys);
  list_heading("baseline", "in place of baseline = \"RECIPE\"", false, keys);
  keys.push_back({"baseline.recipe", "a recipe's name or file", "default \"bf16\"", "",
                  "as baseline = \"RECIPE\""});
  keys.push_back({"baseline.set", kSettings, "", "",
                  "settings that baselines have besides, such as another rate; no recipes"});
  list_heading("axis",
               "a key and its values; all combinations of all axes are arms, the last "
               "axis varies fastest",
               true, keys);
  keys.push_back({"axis.key", "a key of run files: recipe, seed, stages.cpt.learning_rate.peak",
                  "required", "", "what the axis varies"});
  keys.push_back({"axis.values", "a list of at least one value", "required", "",
                  "values of the key; arms are named after them"});
  list_heading("arm", "an arm besides those of the axes", true, keys);
  keys.push_back({"arm.name", name, "required", "", "of the arm and of its folder"});
  keys.push_back({"arm.set", kSettings, "", "", "settings of this arm"});
  keys.push_back({"arm.shared", "true or false", "default true", "shared_stages",
                  "false: the arm trains the shared stages itself"});
  list_heading("shared", "the runs of shared_stages", false, keys);
  keys.push_back({"shared.axes", "a list of keys that every arm sets", "default none",
                  "shared_stages", "a shared run for each combination of their values"});
  keys.push_back(
      {"shared.set", kSettings, "", "shared_stages", "settings of the shared runs: a recipe"});
  return keys;
}

}  // namespace fp8lab
