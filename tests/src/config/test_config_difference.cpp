// What a message says about two configurations that are not the same.
#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "emulation/base/error.hpp"
#include "src/config/config.hpp"
#include "src/config/config_difference.hpp"

namespace fp8lab {
namespace {

using Lines = std::vector<std::string>;

const std::string kRun =
    "name = \"r\"\n"
    "model = \"tiny\"\n"
    "[[stages]]\n"
    "base = \"cpt\"\n"
    "name = \"one\"\n"
    "[[stages]]\n"
    "base = \"sft\"\n"
    "name = \"two\"\n";

std::string resolved(const std::vector<Assignment>& assignments) {
  return parse_run_config(kRun, "c.toml", assignments).text;
}

TEST_CASE("equal configurations differ in nothing") {
  CHECK(differences(resolved({}), resolved({})).empty());
  CHECK(differences("a = 0.001\n", "a    = 1e-3 # the same\n").empty());
}

TEST_CASE("each changed key is named with both values, in the order of the file") {
  const Lines lines = differences(resolved({{"stages.two.learning_rate.peak", "0.001"}}),
                                  resolved({{"stages.two.learning_rate.peak", "0.002"},
                                            {"seed", "9"},
                                            {"recipe", "infir2"},
                                            {"logging.hash_every_step", "false"}}));
  CHECK(lines == Lines{"recipe: \"bf16\" -> \"infir2\"", "seed: 1 -> 9",
                       "logging.hash_every_step: true -> false",
                       "stages.two.learning_rate.peak: 0.001 -> 0.002"});
}

TEST_CASE("keys, tables and stages that only one has, and another order") {
  CHECK(differences("a = 1\n[t]\nb = [1, \"x\"]\n", "c = 2.0\n") ==
        Lines{"c: (none) -> 2.0", "a: 1 -> (none)", "t: (table) -> (none)"});
  const std::string one = "[[s]]\nname = \"a\"\nv = 1\n";
  const std::string two = "[[s]]\nname = \"b\"\nv = 1\n";
  CHECK(differences(one, one + two) == Lines{"s.b: (none) -> (table)"});
  CHECK(differences(one + two, two + one) == Lines{"order of s: a, b -> b, a"});
  CHECK(differences("[[s]]\nv = 1\n[[s]]\nv = 2\n", "[[s]]\nv = 1\n[[s]]\nv = 3\n") ==
        Lines{"s.2.v: 2 -> 3"});
  CHECK(differences("a = [1, 2]\n", "a = [1, 3]\n") == Lines{"a: [1, 2] -> [1, 3]"});
  CHECK(differences("", one) == Lines{"s: (none) -> (tables)"});
  CHECK(differences("a = 1\n", "a = 1.0\n") == Lines{"a: 1 -> 1.0"});
  CHECK_THROWS_AS(differences("a = ", "a = 1"), Error);
}

TEST_CASE("long lists are cut with a count") {
  CHECK(join_differences({}) == "");
  CHECK(join_differences({"a", "b"}, 2) == "a; b");
  CHECK(join_differences({"a", "b", "c", "d"}, 2) == "a; b; and 2 more");
}

}  // namespace
}  // namespace fp8lab
