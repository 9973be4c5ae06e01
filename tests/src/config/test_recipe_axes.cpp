// Files with axes hold several recipes; recipes are found by name in the folders of the program.
#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "emulation/base/error.hpp"
#include "src/config/config.hpp"
#include "src/config/recipe/recipe_source.hpp"
#include "tests/scratch_directory.hpp"

namespace fp8lab {
namespace {

using Catch::Contains;

constexpr const char* kGrid = R"(base = "bf16"
name = "cut_{bits}_{mode}"
summary = "cut to {bits}, {mode}"
[axis.bits.m3]
slots.default.format = "e8m3"
[axis.bits.m4]
summary = "4 bits"
slots.default.format = "e8m4"
[axis.mode]
zero = { slots.default.rounding = "toward_zero" }
even = { slots.default.rounding = "nearest", gemm.schedule = "promote:64" }
)";

std::string replaced(std::string text, const std::string& old, const std::string& by) {
  const std::size_t at = text.find(old);
  REQUIRE(at != std::string::npos);
  return text.replace(at, old.size(), by);
}

void write(const std::filesystem::path& file, const std::string& text) {
  std::filesystem::create_directories(file.parent_path());
  std::ofstream(file) << text;
}

std::vector<std::string> names_in(const std::filesystem::path& directory) {
  std::vector<std::string> names;
  for (const RecipeSource& source : recipe_sources(directory)) {
    names.push_back(source.folder + ":" + source.name);
  }
  return names;
}

}  // namespace

TEST_CASE("each combination of values is a recipe with the keys of both") {
  std::map<std::string, Recipe> recipes;
  for (Recipe& recipe : parse_recipes(kGrid, "grid.toml")) recipes[recipe.name] = recipe;
  REQUIRE(recipes.size() == 4);
  const std::string head = "base = \"bf16\"\nname = \"plain\"\n[slots.default]\n";
  const auto plain = [&](const std::string& keys) {
    return parse_recipe(head + keys, "plain.toml").hash;
  };
  const std::string zero = "rounding = \"toward_zero\"\n", even = "rounding = \"nearest\"\n";
  const std::string schedule = "[gemm]\nschedule = \"promote:64\"\n";
  CHECK(recipes["cut_m3_zero"].hash == plain("format = \"e8m3\"\n" + zero));
  CHECK(recipes["cut_m4_zero"].hash == plain("format = \"e8m4\"\n" + zero));
  CHECK(recipes["cut_m3_even"].hash == plain("format = \"e8m3\"\n" + even + schedule));
  CHECK(recipes["cut_m4_even"].hash == plain("format = \"e8m4\"\n" + even + schedule));
  CHECK(recipes["cut_m3_even"].summary == "cut to m3, even");
  CHECK(recipes["cut_m4_zero"].summary == "cut to 4 bits, zero");
}

TEST_CASE("the word of an axis is not searched for other axes") {
  const std::string text = replaced(kGrid, "\"4 bits\"", "\"{mode} {bits} {\"");
  for (const Recipe& recipe : parse_recipes(text, "grid.toml")) {
    if (recipe.name == "cut_m4_zero") CHECK(recipe.summary == "cut to {mode} {bits} {, zero");
  }
}

TEST_CASE("the text of one recipe of a grid reads as that recipe") {
  for (const Recipe& recipe : parse_recipes(kGrid, "grid.toml")) {
    INFO(recipe.text);
    const Recipe again = parse_recipe(recipe.text, "recorded");
    CHECK(again.name == recipe.name);
    CHECK(again.summary == recipe.summary);
    CHECK(again.hash == recipe.hash);
  }
}

TEST_CASE("a file without axes is one recipe, with its text as it is") {
  const std::string text = "# a comment\nname = \"one\"\n[slots.default]\nformat = \"bf16\"\n";
  const std::vector<Recipe> recipes = parse_recipes(text, "one.toml");
  REQUIRE(recipes.size() == 1);
  CHECK(recipes[0].text == text);
}

TEST_CASE("axes that do not name recipes are refused") {
  const auto refuses = [](const std::string& text, const std::string& says) {
    CHECK_THROWS_WITH(parse_recipes(text, "grid.toml"), Contains("grid.toml:") && Contains(says));
  };
  refuses(replaced(kGrid, "_{mode}", ""), "'cut_{bits}', which lacks {mode}");
  refuses(replaced(kGrid, "{bits}_{mode}", "{bits}_{mode}_{other}"),
          "{other}' for one combination");
  refuses(replaced(kGrid, "zero =", "\"a b\" ="), "a b' for one combination");
  refuses(replaced(replaced(replaced(kGrid, "{bits}_{mode}", "{bits}{mode}"), "zero =", "4zero ="),
                   "axis.bits.m4", "axis.bits.m34") +
              "zero = { gemm.output = \"bf16\" }\n",
          "cut_m34zero' for two combinations");
  refuses(replaced(kGrid, "zero = { slots.default.rounding", "zero = { slots.default.format"),
          "sets 'slots.default.format', as axis 'bits' does");
  refuses(replaced(kGrid, "even = {", "even = { name = \"mine\","), "a value sets 'name'");
  refuses(replaced(kGrid, "even = {", "even = { name.of = \"mine\","), "a value sets 'name'");
  refuses(replaced(kGrid, "summary = \"4 bits\"", "summary = 4"), "'axis.bits.m4.summary'");
  refuses(replaced(kGrid, "summary = \"4 bits\"", "summary = [\"4\"]"), "'axis.bits.m4.summary'");
  refuses(replaced(kGrid, "cut to {bits}", "cut"), "'cut, {mode}', which lacks {bits}");
  refuses(replaced(kGrid, "zero =", "\"{bits}\" ="), "'cut_m3_{bits}' for one combination");
  refuses("name = \"a{b}\"\n[axis.b]\n", "an axis without values");
  refuses("name = \"a\"\n[axis]\n", "without axes");
  refuses("name = \"a{b}\"\n[axis.b]\nc = 3\n", "'axis.b.c'");
  refuses("name = \"a{b}\"\naxis = 3\n", "'axis'");
  std::string many = "base = \"bf16\"\nname = \"a{b}{c}\"\n";
  for (int i = 0; i < 13; ++i) many += "[axis.b." + std::to_string(i) + "]\n";
  for (const char c : {'a', 'b', 'c', 'd', 'e'}) many += "[axis.c." + std::string(1, c) + "]\n";
  refuses(many, "at least 65 combinations");
  // A key of a value that no recipe has is refused where it is written.
  CHECK_THROWS_WITH(parse_recipes(replaced(kGrid, "slots.default.format = \"e8m4\"",
                                           "slots.default.fromat = \"e8m4\""),
                                  "grid.toml"),
                    Contains("grid.toml:8:") && Contains("fromat"));
}

TEST_CASE("a path does not say which recipe of a grid is meant") {
  const ScratchDirectory folder;
  write(folder / "grid.toml", kGrid);
  write(folder / "mine.toml", "base = \"./grid.toml\"\nname = \"mine\"\n");
  for (const std::string file : {"grid.toml", "mine.toml"}) {
    CHECK_THROWS_WITH(load_recipe((folder / file).string()),
                      Contains("of 4 recipes") && Contains("cut_m3_even, cut_m3_zero"));
  }
  CHECK_THROWS_WITH(parse_recipe(kGrid, "grid.toml"), Contains("of 4 recipes"));
}

TEST_CASE("recipes of all folders are found, and each name once") {
  const ScratchDirectory folder;
  const std::string one = "name = \"one\"\n[slots.default]\nformat = \"bf16\"\n";
  write(folder / "first/one.toml", one);
  write(folder / "second/deep/grid.toml", kGrid);
  write(folder / "two.toml", "# without axis\n" + replaced(one, "one", "two"));
  write(folder / "README.md", "no recipe");
  CHECK(names_in(folder.path()) ==
        std::vector<std::string>{"second/deep:cut_m3_even", "second/deep:cut_m3_zero",
                                 "second/deep:cut_m4_even", "second/deep:cut_m4_zero", "first:one",
                                 ":two"});
  const auto refuses = [&](const std::string& name) {
    CHECK_THROWS_WITH(recipe_sources(folder.path()),
                      Contains("recipe '" + name + "' is in") && Contains("second/"));
  };
  write(folder / "second/one.toml", one);
  refuses("one");
  std::filesystem::remove(folder / "second/one.toml");
  write(folder / "first/cut_m4_zero.toml", one);
  refuses("cut_m4_zero");
  std::filesystem::remove(folder / "first/cut_m4_zero.toml");
  CHECK(names_in(folder.path()).size() == 6);
  CHECK_THROWS_AS(recipe_sources(folder / "missing"), Error);
}

TEST_CASE("the program's recipes have one folder for each system, and their own names") {
  std::map<std::string, std::set<std::string>> systems, folders;
  for (const RecipeSource& source : builtin_recipes()) {
    INFO(source.file.string());
    const Recipe recipe = load_recipe(source);
    CHECK(recipe.name == source.name);
    CHECK(load_recipe(source.name).hash == recipe.hash);
    CHECK_FALSE(source.folder.empty());
    systems[source.folder].insert(recipe.system);
    folders[recipe.system].insert(source.folder);
  }
  for (const auto& [folder, own] : systems) CHECK(own.size() == 1);
  for (const auto& [system, own] : folders) CHECK(own.size() == 1);
  CHECK(systems.size() > 15);
}

}  // namespace fp8lab
