// Recorded training steps: what is read is what was written, and nothing else is read.
#include "src/validate/steps.hpp"

#include <catch2/catch.hpp>
#include <fstream>

#include "emulation/base/error.hpp"
#include "tests/scratch_directory.hpp"

using namespace fp8lab;  // NOLINT: the subject of every line below

namespace {

GoldenSteps example() {
  StepRecord first, second;
  first.step = 1;
  first.loss = 5.5;
  first.grad_norm = 1.0;
  first.weight_hash = 0xaa;
  second.step = 2;
  second.loss = 5.25;
  second.grad_norm = 0.1;
  second.weight_hash = 0xffffffffffffffff;
  return {"quickstart", "infir2", {"seed=1"}, "a device", "0123456789abcdef", {first, second}};
}

GoldenSteps read(const ScratchDirectory& scratch, const std::string& text) {
  const std::filesystem::path file = scratch / "steps.json";
  std::ofstream(file) << text;
  return read_golden_steps(file);
}

}  // namespace

TEST_CASE("recorded steps read back as they were written") {
  const ScratchDirectory scratch;
  const std::string text = to_json(example());
  const GoldenSteps read_back = read(scratch, text);
  CHECK(to_json(read_back) == text);
  REQUIRE(read_back.steps.size() == 2);
  CHECK(read_back.steps[1].step == 2);
  CHECK(read_back.steps[1].weight_hash == 0xffffffffffffffff);
}

TEST_CASE("a malformed record of steps is one line") {
  const ScratchDirectory scratch;
  const auto changed = [&](const std::string& from, const std::string& to) {
    std::string text = to_json(example());
    text.replace(text.find(from), from.size(), to);
    return read(scratch, text);
  };
  CHECK_THROWS_WITH(changed("00000000000000aa", "-1"),
                    Catch::Contains("'-1' is not 16 hexadecimal"));
  CHECK_THROWS_WITH(changed("00000000000000aa", "00000000000000ag"),
                    Catch::Contains("16 hexadecimal"));
  CHECK_THROWS_WITH(changed("5.25", "5.25, 5.0"), Catch::Contains("differ in length"));
  CHECK_THROWS_WITH(changed("\"preset\"", "\"recipe\": \"bf16\", \"preset\""),
                    Catch::Contains("given twice"));
  CHECK_THROWS_WITH(changed("\"weights\"", "\"weight\""), Catch::Contains("weights"));
  CHECK_THROWS_WITH(changed("{", "[{"), Catch::Contains("malformed JSON"));
  CHECK_THROWS_WITH(changed("{", "[{"), Catch::Contains("steps.json: "));
  CHECK_THROWS_AS(read_golden_steps(scratch / "nothing.json"), Error);
}
