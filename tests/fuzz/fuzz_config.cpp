// Recipes, run configurations and studies in TOML. A configuration that is accepted must read back
// unchanged from the text that a run stores.
#include "src/config/config.hpp"
#include "tests/fuzz/fuzz_target.hpp"

using namespace fp8lab;  // NOLINT: the subject of every line below

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static fuzz::MemoryFile file;
  const std::string text = fuzz::text_of(data, size);
  fuzz::accept_error([&] { parse_recipe(text, "recipe.toml"); });
  fuzz::accept_error([&] {
    const RunConfig config = parse_run_config(text, "run.toml", {});
    RunConfig reread;
    try {
      reread = parse_run_config(config.text, "stored", {});
    } catch (const Error& error) {
      fuzz::require(false, std::string("a stored configuration is refused: ") + error.what());
    }
    fuzz::require(reread.text == config.text, "a stored configuration reads back changed");
  });
  file.assign(data, size);
  fuzz::accept_error([&] { load_study_config(file.path()); });
  return 0;
}
