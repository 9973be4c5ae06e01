// --set KEY=VALUE, one a line, over a configuration with every kind of table. What comes out must
// read back unchanged from the text that a run stores.
#include <algorithm>
#include <vector>

#include "src/config/config.hpp"
#include "tests/fuzz/fuzz_target.hpp"

using namespace fp8lab;  // NOLINT: the subject of every line below

namespace {

constexpr const char* kBase =
    "recipe = \"bf16\"\n"
    "[[stages]]\nname = \"cpt\"\nkind = \"cpt\"\nsteps = 2\n"
    "[stages.data]\nkind = \"tokens\"\npath = \"a\"\n"
    "[[stages]]\nname = \"sft\"\nkind = \"sft\"\nsteps = 2\n"
    "[stages.eval]\nexact_match = 2\n";

std::vector<Assignment> assignments_of(const std::string& text) {
  constexpr std::size_t kMost = 16;
  std::vector<Assignment> assignments;
  for (std::size_t begin = 0; begin < text.size() && assignments.size() < kMost;) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    const std::string line = text.substr(begin, end - begin);
    const std::size_t equals = line.find('=');
    if (equals != std::string::npos) {
      assignments.push_back({line.substr(0, equals), line.substr(equals + 1)});
    }
    begin = end + 1;
  }
  return assignments;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::vector<Assignment> assignments = assignments_of(fuzz::text_of(data, size));
  fuzz::accept_error([&] {
    const RunConfig config = parse_run_config(kBase, "run.toml", assignments);
    std::string again;
    try {
      again = parse_run_config(config.text, "stored", {}).text;
    } catch (const Error& error) {
      fuzz::require(false, std::string("a stored configuration is refused: ") + error.what());
    }
    fuzz::require(again == config.text, "a stored configuration reads back changed");
  });
  return 0;
}
