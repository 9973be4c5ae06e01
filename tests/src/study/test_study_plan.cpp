// The arms of a study: which are baselines, and which is compared with which.
#include <catch2/catch.hpp>
#include <fstream>
#include <map>
#include <string>

#include "src/study/study.hpp"
#include "tests/scratch_directory.hpp"

namespace fp8lab {
namespace {

const std::string kBase =
    "name = \"base\"\n"
    "recipe = \"bf16\"\n"
    "model = \"tiny\"\n"
    "[[stages]]\n"
    "name = \"cpt\"\n"
    "steps = 30\n"
    "[[stages]]\n"
    "base = \"sft\"\n"
    "name = \"sft\"\n";

std::string arm(const std::string& name, const std::string& settings) {
  return "[[arm]]\nname = \"" + name + "\"\n[arm.set]\n" + settings;
}

/// Of each arm the arm that it is compared with; "itself" for a baseline, empty for none.
std::map<std::string, std::string> pairs_of(const std::string& arms, const std::string& head = "") {
  const ScratchDirectory folder;
  std::ofstream(folder / "base.toml") << kBase;
  std::ofstream(folder / "s.toml") << "base = \"base.toml\"\n" + head + arms;
  std::map<std::string, std::string> pairs;
  for (const PlannedArm& planned : plan_study(load_study_config(folder / "s.toml")).arms) {
    CHECK((!planned.is_baseline || planned.baseline_arm.empty()));
    pairs[planned.name] = planned.is_baseline ? "itself" : planned.baseline_arm;
  }
  return pairs;
}

TEST_CASE("an arm is compared with the baseline of its seed and settings") {
  const auto pairs = pairs_of(
      "[[axis]]\nkey = \"recipe\"\nvalues = [\"bf16\", \"infir2\"]\n"
      "[[axis]]\nkey = \"seed\"\nvalues = [1, 2]\n" +
      arm("lr", "recipe = \"infir2\"\nstages.sft.learning_rate.peak = 0.003\n") +
      arm("stressed", "recipe = \"infir2\"\nstages.cpt.stress = [{ kind = \"spike\" }]\n"));
  CHECK(pairs == std::map<std::string, std::string>{{"bf16-seed1", "itself"},
                                                    {"bf16-seed2", "itself"},
                                                    {"infir2-seed1", "bf16-seed1"},
                                                    {"infir2-seed2", "bf16-seed2"},
                                                    {"lr", ""},
                                                    {"stressed", ""}});
}

TEST_CASE("what changes no bit of a run parts no pair, the truth path does") {
  const auto pairs = pairs_of(arm("bf16", "recipe = \"bf16\"\n") +
                              arm("again", "recipe = \"bf16\"\nlogging.every_steps = 3\n") +
                              arm("logged", "recipe = \"infir2\"\nlogging.every_steps = 2\n") +
                              arm("cuda", "recipe = \"infir2\"\nbackend = \"cuda\"\n") +
                              arm("narrow",
                                  "recipe = \"infir2\"\nmemory.recompute = \"layer\"\n"
                                  "memory.weight_codes = \"remake\"\n") +
                              arm("warned", "recipe = \"infir2\"\nwarnings.kurtosis = 9.0\n") +
                              arm("chunks", "recipe = \"infir2\"\nmemory.loss_chunk = 64\n") +
                              arm("truth", "recipe = \"infir2\"\nbackend = \"truth\"\n"));
  CHECK(pairs == std::map<std::string, std::string>{{"bf16", "itself"},
                                                    {"again", "itself"},
                                                    {"logged", "bf16"},
                                                    {"cuda", "bf16"},
                                                    {"narrow", "bf16"},
                                                    {"warned", "bf16"},
                                                    {"chunks", ""},
                                                    {"truth", ""}});
}

TEST_CASE("an arm that runs one stage in another recipe is no baseline") {
  const std::string axes =
      "[[axis]]\nkey = \"stages.cpt.recipe\"\nvalues = [\"bf16\", \"infir2\"]\n"
      "[[axis]]\nkey = \"stages.sft.recipe\"\nvalues = [\"\", \"mxfp8\"]\n";
  std::map<std::string, int> compared;
  for (const auto& [name, baseline] : pairs_of(axes)) {
    INFO(name << " -> " << baseline);
    const bool plain =
        name.find("infir2") == std::string::npos && name.find("mxfp8") == std::string::npos;
    CHECK((baseline == "itself") == plain);
    ++compared[baseline];
  }
  CHECK(compared.size() == 2);
  CHECK(compared["itself"] == 1);
}

TEST_CASE("settings of baselines part no pair") {
  const std::string axes =
      "[[axis]]\nkey = \"optimizer.second_moment\"\nvalues = [\"fp32\", \"e5m2/tensor\"]\n"
      "[[axis]]\nkey = \"seed\"\nvalues = [1, 2]\n";
  const std::string whole = "[baseline]\nset = { optimizer.second_moment = \"fp32\" }\n";
  CHECK(pairs_of(axes, whole) ==
        std::map<std::string, std::string>{{"fp32-seed1", "itself"},
                                           {"fp32-seed2", "itself"},
                                           {"e5m2_tensor-seed1", "fp32-seed1"},
                                           {"e5m2_tensor-seed2", "fp32-seed2"}});
  const std::string one = "[[axis]]\nkey = \"recipe\"\nvalues = [\"bf16\", \"infir2\"]\n" + axes;
  const auto pairs = pairs_of(one, whole);
  CHECK(pairs.at("bf16-fp32-seed2") == "itself");
  CHECK(pairs.at("infir2-fp32-seed2") == "bf16-fp32-seed2");
  CHECK(pairs.at("infir2-e5m2_tensor-seed1") == "bf16-fp32-seed1");
  // Other settings part pairs as ever.
  const auto parted = pairs_of(axes + arm("far", "optimizer.beta2 = 0.5\n"), whole);
  CHECK(parted.at("far") == "itself");
  const auto lonely = pairs_of(
      axes + arm("far", "optimizer.beta2 = 0.5\noptimizer.second_moment = \"fp16/tensor\"\n"),
      whole);
  CHECK(lonely.at("far").empty());
}

TEST_CASE("a baseline has the settings of baselines in shared studies too") {
  const std::string head =
      "shared_stages = [\"cpt\"]\n"
      "[baseline]\nset = { stages.sft.learning_rate.peak = 0.002 }\n";
  const auto pairs = pairs_of(arm("base", "stages.sft.learning_rate.peak = 0.002\n") +
                                  arm("slow", "stages.sft.learning_rate.peak = 0.001\n"),
                              head);
  CHECK(pairs == std::map<std::string, std::string>{{"base", "itself"}, {"slow", "base"}});
}

TEST_CASE("arms from other shared runs are no pair, but for their recipes") {
  const std::string arms =
      "[[axis]]\nkey = \"recipe\"\nvalues = [\"bf16\", \"infir2\"]\n"
      "[[axis]]\nkey = \"stages.cpt.steps\"\nvalues = [30, 60]\n";
  CHECK(pairs_of(arms, "shared_stages = [\"cpt\"]\n[shared]\naxes = [\"stages.cpt.steps\"]\n") ==
        std::map<std::string, std::string>{{"bf16-steps30", "itself"},
                                           {"bf16-steps60", "itself"},
                                           {"infir2-steps30", "bf16-steps30"},
                                           {"infir2-steps60", "bf16-steps60"}});
  CHECK(pairs_of("[[axis]]\nkey = \"recipe\"\nvalues = [\"bf16\", \"infir2\"]\n",
                 "shared_stages = [\"cpt\"]\n[shared]\naxes = [\"recipe\"]\n") ==
        std::map<std::string, std::string>{{"bf16", "itself"}, {"infir2", "bf16"}});
}

TEST_CASE("an arm alone is compared with a baseline of any start") {
  const auto pairs =
      pairs_of(arm("base", "recipe = \"bf16\"\n") +
                   "[[arm]]\nname = \"alone\"\nshared = false\nset = { recipe = \"infir2\" }\n",
               "shared_stages = [\"cpt\"]\n");
  CHECK(pairs == std::map<std::string, std::string>{{"alone", "base"}, {"base", "itself"}});
}

TEST_CASE("shared runs of one name are refused") {
  const std::string head =
      "shared_stages = [\"cpt\"]\n[shared]\naxes = [\"stages.cpt.data.path\"]\n"
      "set = { stages.cpt.data.kind = \"text\" }\n";
  const auto from = [](const std::string& name, const std::string& path) {
    return arm(name, "recipe = \"bf16\"\nstages.cpt.data.path = \"" + path + "\"\n");
  };
  CHECK_THROWS_WITH(pairs_of(from("a", "web/train.txt") + from("b", "code/train.txt"), head),
                    Catch::Contains("would both be called shared-train"));
}

TEST_CASE("a setting of the command line that reaches no arm is refused") {
  const ScratchDirectory folder;
  std::ofstream(folder / "base.toml") << kBase;
  const auto load = [&](const std::string& head, const Assignment& assignment) {
    std::ofstream(folder / "s.toml")
        << "base = \"base.toml\"\n" + head +
               "[[axis]]\nkey = \"recipe\"\nvalues = [\"bf16\", \"infir2\"]\n"
               "[[axis]]\nkey = \"stages.sft.steps\"\nvalues = [100, 200]\n";
    return plan_study(load_study_config(folder / "s.toml", {assignment}));
  };
  for (const Assignment& assignment :
       {Assignment{"recipe", "mxfp8"}, Assignment{"stages.sft.steps", "300"}}) {
    CHECK_THROWS_WITH(load("", assignment), Catch::Contains("has no effect"));
  }
  CHECK(load("", {"seed", "4"}).arms.front().config.seed == 4);
  // The shared run has it.
  const StudyPlan plan = load("shared_stages = [\"cpt\"]\n", {"recipe", "infir2"});
  CHECK(plan.shared.front().recipe == "infir2");
}

TEST_CASE("an arm alone has the stages of the others, and its own initial weights") {
  const ScratchDirectory folder;
  std::ofstream(folder / "base.toml") << "init_from = \"own\"\n" << kBase;
  std::ofstream(folder / "s.toml")
      << "base = \"base.toml\"\nshared_stages = [\"cpt\"]\n" + arm("base", "seed = 1\n") +
             "[[arm]]\nname = \"alone\"\nshared = false\nset = { recipe = \"infir2\" }\n";
  const StudyPlan plan = plan_study(load_study_config(folder / "s.toml"));
  REQUIRE(plan.shared.size() == 1);
  REQUIRE(plan.arms.size() == 2);
  const PlannedArm &base = plan.arms[0], &alone = plan.arms[1];
  CHECK(base.shared_run == "shared");
  CHECK(base.config.init_from.empty());
  CHECK(alone.shared_run.empty());
  CHECK(alone.config.init_from == "own");
  REQUIRE(alone.config.stages.size() == 1);
  CHECK(alone.config.stages[0].name == base.config.stages[0].name);
  CHECK(alone.baseline_arm.empty());  // it starts from other weights
}

TEST_CASE("a stage recipe that all arms have, or a shared stage's, makes no difference") {
  const std::string axis = "[[axis]]\nkey = \"recipe\"\nvalues = [\"bf16\", \"mxfp8\"]\n";
  const std::map<std::string, std::string> expected = {{"bf16", "itself"}, {"mxfp8", "bf16"}};
  CHECK(pairs_of(axis, "[set]\nstages.cpt.recipe = \"infir2\"\n") == expected);
  CHECK(pairs_of(axis, "shared_stages = [\"cpt\"]\n[shared]\nset = { recipe = \"infir2\" }\n") ==
        expected);
}

}  // namespace
}  // namespace fp8lab
