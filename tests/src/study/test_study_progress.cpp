// How far a study is, and how long the rest takes, from what its children have told.
#include <catch2/catch.hpp>
#include <cmath>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "src/study/study_progress.hpp"

namespace fp8lab {
namespace {

/// Steps of 100 tokens in a first stage, of 400 in a second.
RunConfig run_of(const std::string& name, const std::string& recipe, std::int64_t first,
                 std::int64_t second) {
  RunConfig config;
  config.name = name;
  config.recipe = recipe;
  config.stages.resize(2);
  config.stages[0].steps = first;
  config.stages[1].steps = second;
  for (StageConfig& stage : config.stages) stage.batch_sequences = 4;
  config.stages[0].sequence_length = 25;
  config.stages[1].sequence_length = 100;
  return config;
}

struct Child {
  explicit Child(const std::string& name) {
    task.name = name;
    task.step = std::make_shared<StepSlot>();
  }
  void tell(const RunStep& step) const { REQUIRE(write_step(task.step->descriptor(), step)); }

  ChildTask task;
};

ChildResult ended(const std::string& name, double seconds, int exit_code = 0) {
  ChildResult result;
  result.name = name;
  result.seconds = seconds;
  result.exit_code = exit_code;
  return result;
}

TEST_CASE("a step comes out of its slot as it went in") {
  const StepSlot slot;
  CHECK_FALSE(slot.read());
  for (const double loss : {5.25, 1e-7, 7488.5, std::numeric_limits<double>::infinity()}) {
    REQUIRE(write_step(slot.descriptor(), {123456789012, 223456789012, 7, loss, "cpt"}));
    const std::optional<RunStep> step = slot.read();
    REQUIRE(step);
    CHECK(step->step == 123456789012);
    CHECK(step->total == 223456789012);
    CHECK(step->first == 7);
    CHECK(step->stage == "cpt");
    CHECK((step->loss == loss || std::abs(step->loss - loss) < 1e-4 * loss));
  }
  REQUIRE(write_step(slot.descriptor(), {2, 3, 1, std::nan(""), std::string(300, 'x')}));
  const std::optional<RunStep> step = slot.read();
  REQUIRE(step);
  CHECK(std::isnan(step->loss));
  CHECK(step->stage == std::string(100, 'x'));
  CHECK_FALSE(write_step(-1, {}));
}

TEST_CASE("the rest of a study takes what its tokens take under their recipe") {
  const RunConfig shared = run_of("shared", "bf16", 10, 0);     // 1000 tokens
  const RunConfig bf16 = run_of("bf16", "bf16", 10, 10);        // 5000
  const RunConfig infir2 = run_of("infir2", "infir2", 10, 10);  // 5000
  StudyProgress progress({&shared}, {&bf16, &infir2}, 1, {});
  Child child("shared");
  const auto line = [&](double seconds) { return progress.line({{&child.task, seconds}}); };
  CHECK(line(0.5) == "shared begins; 0 of 3 runs done, time left not known yet");
  child.tell({1, 10, 1, 5.5, "cpt"});
  // From its first step on: 100 tokens in 1 s; 900 of it and 10000 of arms are left.
  CHECK(line(1) == "shared step 1/10 cpt loss 5.5000; 0 of 3 runs done, about 109 s left");
  progress.finished(ended("shared", 20));  // with its evaluations 0.02 s a token

  child = Child("bf16");
  child.tell({10, 20, 1, 5, "cpt"});  // 1000 of 5000 tokens
  CHECK(line(5) == "bf16 step 10/20 cpt loss 5.0000; 1 of 3 runs done, about 2 min left");
  child.tell({20, 20, 1, 5, "sft"});
  CHECK(line(99) == "bf16 step 20/20 sft loss 5.0000; 1 of 3 runs done, about 99 s left");
  progress.finished(ended("bf16", 100));

  child = Child("infir2");  // another recipe: its own pace counts
  child.tell({1, 20, 1, 5, "cpt"});
  CHECK(line(7) == "infir2 step 1/20 cpt loss 5.0000; 2 of 3 runs done, about 6 min left");
  progress.finished(ended("infir2", 8, 1));
  CHECK(progress.line({}) == "; 3 of 3 runs done, about 0 s left");
}

TEST_CASE("a run that goes on is timed from where it went on") {
  const RunConfig run = run_of("bf16", "bf16", 1000, 0);
  StudyProgress progress({}, {&run}, 1, {});
  const Child child("bf16");
  child.tell({901, 1000, 901, 2, "cpt"});
  CHECK(progress.line({{&child.task, 1}}) ==
        "bf16 step 901/1000 cpt loss 2.0000; 0 of 1 runs done, about 99 s left");
}

TEST_CASE("runs at once share the time, and none is faster than alone") {
  const RunConfig one = run_of("one", "bf16", 10, 0), two = run_of("two", "bf16", 90, 0);
  StudyProgress progress({}, {&one, &two}, 2, {});
  const Child first("one"), second("two");
  first.tell({5, 10, 1, 2, "cpt"});
  second.tell({5, 90, 1, 3, "cpt"});
  CHECK(
      progress.line({{&first.task, 5}, {&second.task, 5}}) ==
      "one step 5/10 cpt loss 2.0000, two step 5/90 cpt loss 3.0000; 0 of 2 runs done, about 85 s "
      "left");
}

}  // namespace
}  // namespace fp8lab
