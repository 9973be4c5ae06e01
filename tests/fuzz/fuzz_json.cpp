// Files in JSON. The first byte chooses: the config.json of a Hugging Face model, the bytes of
// tokens, questions with choices (of texts or of ids), recorded training steps.
#include "src/config/reading/hugging_face.hpp"

#include <nlohmann/json.hpp>

#include "src/config/tables/model_table.hpp"
#include "src/data/vocabulary.hpp"
#include "src/evaluation/multiple_choice.hpp"
#include "src/validate/steps.hpp"
#include "tests/fuzz/fuzz_target.hpp"

using namespace fp8lab;  // NOLINT: the subject of every line below

namespace {

/// An accepted model is written and read again as the same.
void fuzz_model(const std::string& text) {
  const ModelConfig model = parse_hugging_face_config(text, "config.json");
  const std::string table = model_table_text(model);
  fuzz::require(model_table_text(parse_model_table(table, "stored")) == table,
                "a model reads back changed");
  const std::string written = hugging_face_config(model, "bfloat16").dump();
  fuzz::require(model_table_text(parse_hugging_face_config(written, "written")) == table,
                "a model is written as another one");
}

void fuzz_vocabulary(const std::string& path) {
  const Vocabulary vocabulary = Vocabulary::read(path);
  const std::int64_t size = vocabulary.size();
  for (const std::int32_t id : {vocabulary.begin(), vocabulary.end(), vocabulary.padding()}) {
    fuzz::require(id >= -1 && id < size, "a special token is beyond the vocabulary");
  }
  fuzz::require(vocabulary.has_text() && vocabulary.tokenizer().size() == 16, "half a vocabulary");
  vocabulary.decode({-1, 0, static_cast<std::int32_t>(size)});
}

void fuzz_questions(const std::string& path, bool text) {
  constexpr std::int64_t kIds = 300;
  const Vocabulary vocabulary =
      text ? Vocabulary::bytes() : Vocabulary::opaque(kIds, 0, 1, "0123456789abcdef");
  for (const Question& question : read_questions(path, vocabulary, kIds).questions) {
    fuzz::require(question.answer < question.choices.size(), "the answer is no choice");
    for (const Choice& choice : question.choices) {
      for (const std::int32_t id : choice.tokens) {
        fuzz::require(id >= 0 && id < kIds, "a token is beyond the vocabulary");
      }
    }
  }
}

/// Accepted records hold the steps in order, and are written as they are read.
void fuzz_steps(const std::string& path, fuzz::MemoryFile& again) {
  const GoldenSteps golden = read_golden_steps(path);
  for (std::size_t i = 0; i < golden.steps.size(); ++i) {
    fuzz::require(golden.steps[i].step == static_cast<std::int64_t>(i) + 1, "a step is missing");
  }
  const std::string written = to_json(golden);
  again.assign(written.data(), written.size());
  fuzz::require(to_json(read_golden_steps(again.path())) == written, "steps read back changed");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  static fuzz::MemoryFile file, again;
  const std::string text = fuzz::text_of(data + 1, size - 1);
  file.assign(text.data(), text.size());
  fuzz::accept_error([&] {
    switch (data[0]) {
      case 'V': return fuzz_vocabulary(file.path());
      case 'Q': return fuzz_questions(file.path(), true);
      case 'I': return fuzz_questions(file.path(), false);
      case 'S': return fuzz_steps(file.path(), again);
      default: return fuzz_model(text);
    }
  });
  return 0;
}
