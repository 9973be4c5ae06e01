// Recipes in TOML.
#include "src/config/config.hpp"
#include "tests/fuzz/fuzz_target.hpp"

using namespace fp8lab;  // NOLINT: the subject of every line below

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string text = fuzz::text_of(data, size);
  fuzz::accept_error([&] {
    for (const Recipe& recipe : parse_recipes(text, "recipe.toml")) {
      fuzz::require(!recipe.name.empty() && recipe.hash.size() == 16,
                    "a recipe without an identity");
      fuzz::require(!describe(recipe).empty(), "a recipe that cannot be shown");
    }
  });
  return 0;
}
