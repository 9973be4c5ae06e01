// Plain text and JSON lines. The first byte chooses the form.
#include "src/data/documents.hpp"
#include "tests/fuzz/fuzz_target.hpp"

using namespace fp8lab;  // NOLINT: the subject of every line below

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  static fuzz::MemoryFile file;
  file.assign(data + 1, size - 1);
  SourceConfig source;
  source.paths = {file.path()};
  source.kind = data[0] % 4 == 0 ? DataKind::text : DataKind::jsonl;
  const DataForm form = data[0] % 2 == 0 ? DataForm::running_text : DataForm::prompt_response;
  fuzz::accept_error([&] {
    for (const Document& document : load_documents(source, form)) {
      const auto length = static_cast<std::int64_t>(document.tokens.size());
      fuzz::require(document.prompt_length >= 1 && document.prompt_length <= length,
                    "a prompt is longer than its document");
      final_answer(document.reference);
    }
  });
  return 0;
}
