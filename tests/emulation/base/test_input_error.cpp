// Errors as fields: the one function that puts them into words.
#include <catch2/catch.hpp>
#include <string>

#include "emulation/base/error_context.hpp"
#include "emulation/base/input_error.hpp"

namespace fp8lab {
namespace {

TEST_CASE("fields become a message in their order") {
  struct Row {
    ErrorFields fields;
    const char* message;
  };
  const Row rows[] = {
      {{}, ""},
      {{.reason = "no token is trained on"}, "no token is trained on"},
      {{.where = "run.toml:7:3", .key = "head_dim", .found = "7", .accepted = "an even number"},
       "run.toml:7:3: 'head_dim' is 7; accepted: an even number"},
      {{.where = "c.json",
        .key = "n",
        .verb = "=",
        .found = "3",
        .reason = "does not divide m = 4"},
       "c.json: 'n' = 3 does not divide m = 4"},
      {{.where = "c.toml", .key = "n", .verb = ":", .found = "3", .reason = "is odd"},
       "c.toml: 'n': 3 is odd"},
      {{.where = "c.toml", .key = "n", .verb = ":", .reason = "is odd"}, "c.toml: 'n': is odd"},
      {{.where = "c.toml", .key = "n", .reason = "is missing", .accepted = "1, 2"},
       "c.toml: 'n' is missing; accepted: 1, 2"},
      {{.where = "c.toml", .key = "n", .verb = ":", .accepted = "1, 2"},
       "c.toml: 'n': accepted: 1, 2"},
      {{.where = "c.toml",
        .noun = "unknown key",
        .key = "sed",
        .nearest = " (did you mean 'seed'?)",
        .accepted = "seed"},
       "c.toml: unknown key 'sed' (did you mean 'seed'?); accepted: seed"},
      {{.where = "c.toml",
        .key = "kind",
        .found = "'spikes'",
        .nearest = " (did you mean 'spike'?)",
        .accepted = "spike"},
       "c.toml: 'kind' is 'spikes' (did you mean 'spike'?); accepted: spike"},
      {{.where = "c.toml", .key = "n", .found = "'7'", .reason = ", which is odd"},
       "c.toml: 'n' is '7', which is odd"},
      {{.where = "train", .key = "--seed", .found = "x", .accepted = "a number"},
       "train: --seed x: accepted: a number"},
      {{.where = "train", .key = "--seed", .reason = "needs --out"}, "train: --seed needs --out"},
      {{.where = "train", .key = "--out", .found = "'a'", .reason = ": is there", .accepted = "b"},
       "train: --out 'a': is there; accepted: b"},
      {{.where = "gemm", .key = "K", .verb = "=", .found = "3", .accepted = "16"},
       "gemm: K = 3; accepted: 16"},
      {{.where = "a.npy", .noun = "tensor", .key = "K", .found = "F64"},
       "a.npy: tensor 'K' is F64"},
      {{.where = "a.npy", .noun = ".npy type", .found = "'<f2'", .reason = "is not accepted"},
       "a.npy: .npy type '<f2' is not accepted"},
      {{.where = "c.toml", .key = "n", .reason = "has no effect", .accepted = "with pow2"},
       "c.toml: 'n' has no effect; accepted with pow2"},
      {{.where = "init",
        .key = "KIND",
        .reason = "is missing",
        .remedy = "usage: fp8lab init KIND"},
       "init: KIND is missing; usage: fp8lab init KIND"},
      {{.where = "--scale 0", .accepted = "a number above 0"},
       "--scale 0: accepted: a number above 0"},
  };
  for (const Row& row : rows) {
    CHECK(render(row.fields) == row.message);
    CHECK(InputError(row.fields).what() == std::string(row.message));
  }
}

TEST_CASE("an error keeps its fields where it is caught as an Error, and gets another place") {
  const ErrorFields fields = {.where = "r.toml:1:1", .key = "tile", .found = "'x'"};
  try {
    throw InputError(fields);
  } catch (const Error& error) {
    CHECK(fields_of(error) == fields);
    CHECK(in_place("arm 'a'", error) ==
          ErrorFields{.where = "arm 'a': r.toml:1:1", .key = "tile", .found = "'x'"});
  }
  const Error sentence("the file has changed");
  CHECK(fields_of(sentence) == ErrorFields{.reason = "the file has changed"});
  CHECK(render(in_place("arm 'a'", sentence)) == "arm 'a': the file has changed");
}

TEST_CASE("an error keeps its fields through contexts, which add places to its where") {
  const ErrorFields fields = {
      .where = "layers.0", .key = "tile", .found = "'x'", .accepted = "1x128"};
  ErrorFields expected = fields;
  expected.where = "stage s, recipe r: layers.0";
  try {
    at_place("stage s, recipe r", [&] { throw InputError(fields); });
    FAIL("accepted");
  } catch (const Error& error) {
    CHECK(fields_of(error) == expected);
    CHECK(error.what() == render(expected));
  }
  expected = {.where = "run 'a': stage s", .reason = "a sentence"};
  try {
    at_place("run 'a'", [] { at_place("stage s", [] { throw Error("a sentence"); }); });
    FAIL("accepted");
  } catch (const Error& error) {
    CHECK(fields_of(error) == expected);
  }
  CHECK(at_place("stage s", [] { return 7; }) == 7);
  CHECK_THROWS_AS(at_place("stage s", [] { throw RuntimeFailure("disk full"); }), RuntimeFailure);
}

}  // namespace
}  // namespace fp8lab
