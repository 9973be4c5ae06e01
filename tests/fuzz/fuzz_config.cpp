// Run configurations in TOML. What is accepted must read back unchanged from the text that a run
// stores, and so must the table of its model, which a checkpoint stores.
#include "src/config/config.hpp"
#include "src/config/tables/model_table.hpp"
#include "tests/fuzz/fuzz_target.hpp"

using namespace fp8lab;  // NOLINT: the subject of every line below

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string text = fuzz::text_of(data, size);
  fuzz::accept_error([&] {
    const RunConfig config = parse_run_config(text, "run.toml", {});
    RunConfig reread, shorter;
    std::string model;
    try {
      reread = parse_run_config(config.text, "stored", {});
      shorter = parse_run_config(canonical_text(config), "canonical", {});
      model = model_table_text(parse_model_table(model_table_text(config.model), "stored"));
    } catch (const Error& error) {
      fuzz::require(false, std::string("a stored configuration is refused: ") + error.what());
    }
    fuzz::require(reread.text == config.text, "a stored configuration reads back changed");
    fuzz::require(reread.hash == config.hash, "a stored configuration has another hash");
    fuzz::require(shorter.text == config.text, "a text without defaults means something else");
    fuzz::require(shorter.hash == config.hash, "a text without defaults has another hash");
    fuzz::require(model == model_table_text(config.model), "a stored model reads back changed");
  });
  return 0;
}
