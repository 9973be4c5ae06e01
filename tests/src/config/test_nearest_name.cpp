// Which accepted name a mistyped one is taken for.
#include <catch2/catch.hpp>

#include "src/config/reading/nearest_name.hpp"

using namespace fp8lab;

TEST_CASE("the nearest name is the one with the fewest letters changed") {
  const std::vector<std::string> names = {"bf16", "infir2", "infir2_fp32scale", "te_current",
                                          "te_delayed"};
  CHECK(nearest_name("infir3", names) == "infir2");
  CHECK(nearest_name("ifnir2", names) == "infir2");  // neighbours swapped: one change
  CHECK(nearest_name("INFIR2", names) == "infir2");  // capitals
  CHECK(nearest_name("te-delayed", names) == "te_delayed");
  CHECK(nearest_name("te_delay", names) == "te_delayed");
  CHECK(nearest_name("bf17", names) == "bf16");
  CHECK(nearest_name("infir2_fp32", names) == "infir2_fp32scale");  // its beginning
}

TEST_CASE("what is near nothing stays without a suggestion") {
  const std::vector<std::string> names = {"a", "on", "bf16", "te_current"};
  CHECK(nearest_name("b", names).empty());  // one of one letters is all of them
  CHECK(nearest_name("", names).empty());
  CHECK(nearest_name("gradient", names).empty());
  CHECK(nearest_name("te", names).empty());  // two letters begin too much
  CHECK(nearest_name(std::string(1 << 20, 'a'), names).empty());
  CHECK(nearest_name("word", {}).empty());
}

TEST_CASE("a short word with another letter is another word") {
  const std::vector<std::string> names = {"cpu", "truth", "cuda"};
  CHECK(did_you_mean("gpu", names).empty());
  CHECK(did_you_mean("cup", names) == " (did you mean 'cpu'?)");
  CHECK(did_you_mean("cuba", names) == " (did you mean 'cuda'?)");
}

TEST_CASE("a long beginning, and what other programs call a key") {
  const std::vector<std::string> names = {"match", "batch_sequences", "learning_rate", "small",
                                          "smollm2-135m"};
  CHECK(nearest_name("batch", names) == "batch_sequences");
  CHECK(nearest_name("smollm", names) == "smollm2-135m");
  CHECK(nearest_name("lr", names) == "learning_rate");
  CHECK(nearest_name("batch-size", names) == "batch_sequences");
  CHECK(nearest_name("max_steps", names).empty());  // none of these names
}

TEST_CASE("equally near names: the first") {
  CHECK(nearest_name("bf18", {"bf16", "bf19"}) == "bf16");
  CHECK(nearest_name("rowl", {"rows", "row"}) == "rows");
  CHECK(nearest_name("e4m3", {"e3m4", "e5m2", "e4m3fn"}) == "e4m3fn");  // but its beginning
}

TEST_CASE("messages name it, and lists of a message are split") {
  CHECK(did_you_mean("trian", std::vector<std::string>{"train", "eval"}) ==
        " (did you mean 'train'?)");
  CHECK(did_you_mean("bf18", std::vector<std::string>{"bf16", "fp8", "bf19", "bf16"}) ==
        " (did you mean 'bf16' or 'bf19'?)");
  CHECK(did_you_mean("key0",
                     std::vector<std::string>{"key1", "key2", "key3", "key4", "key5", "key6"}) ==
        " (did you mean 'key1' or 'key2' or 'key3' or 'key4' or 'key5'?)");
  CHECK(did_you_mean("paint", std::vector<std::string>{"train", "eval"}).empty());
  CHECK(did_you_mean("epiloge", "fast, epilogue, promote:G") == " (did you mean 'epilogue'?)");
  CHECK(did_you_mean("or a path", "bf16, or a path to a .toml file").empty());
  CHECK(did_you_mean("bf16x", "bf16") == " (did you mean 'bf16'?)");
}
