// Documents, the generator, packing, masks and the order of batches.
#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <set>

#include "emulation/base/error.hpp"
#include "src/data/arithmetic.hpp"
#include "src/data/dataset.hpp"
#include "src/data/tokenizer.hpp"
#include "src/data/vocabulary.hpp"

using namespace fp8lab;

namespace {

class TemporaryFile {
 public:
  explicit TemporaryFile(const std::string& text)
      : path_(std::filesystem::temp_directory_path() /
              ("fp8lab_data_" + std::to_string(counter_++) + ".jsonl")) {
    std::ofstream(path_) << text;
  }
  ~TemporaryFile() { std::filesystem::remove(path_); }
  const std::filesystem::path& path() const { return path_; }

 private:
  static inline int counter_ = 0;
  std::filesystem::path path_;
};

std::vector<Document> json_lines(const std::filesystem::path& path, DataForm form) {
  SourceConfig source;
  source.kind = DataKind::jsonl;
  source.paths = {path};
  return load_documents(source, form);
}

Document document(std::int64_t length, std::int32_t value, std::int64_t prompt = 1) {
  Document result;
  result.tokens.assign(static_cast<std::size_t>(length), value);
  result.tokens.front() = ByteTokenizer::kBegin;
  result.tokens.back() = ByteTokenizer::kEnd;
  result.prompt_length = prompt;
  return result;
}

}  // namespace

TEST_CASE("generated problems state a solution that ends with their answer") {
  for (const WordProblem& problem : generate_arithmetic(3, 500, {}, false)) {
    INFO(problem.question << " | " << problem.solution);
    CHECK(final_answer(problem.solution) == std::to_string(problem.answer));
    CHECK(problem.answer > 0);
  }
}

TEST_CASE("held-out problems never appear in a training corpus, whatever the seed") {
  std::set<std::string> training;
  for (std::uint64_t seed = 1; seed < 6; ++seed) {
    for (const WordProblem& problem : generate_arithmetic(seed, 4000, {}, false)) {
      training.insert(problem.question);
    }
  }
  for (const WordProblem& problem : generate_arithmetic(9, 2000, {}, true)) {
    CHECK(training.count(problem.question) == 0);
  }
}

TEST_CASE("the corpus depends on its seed and families alone") {
  const auto first = generate_arithmetic(5, 50, {"shop", "share"}, false);
  const auto again = generate_arithmetic(5, 50, {"shop", "share"}, false);
  const auto other = generate_arithmetic(6, 50, {"shop", "share"}, false);
  for (std::size_t i = 0; i < first.size(); ++i) {
    CHECK(first[i].question == again[i].question);
    CHECK((first[i].family == "shop" || first[i].family == "share"));
  }
  CHECK(first[0].question + first[1].question != other[0].question + other[1].question);
  CHECK_THROWS_WITH(generate_arithmetic(1, 1, {"geometry"}, false),
                    Catch::Contains("geometry") && Catch::Contains("shop"));
}

TEST_CASE("final answers are read as GSM8K writes them") {
  CHECK(final_answer("so 3+4=7\n#### 7") == "7");
  CHECK(final_answer("#### 1,234 \nmore") == "1234");
  CHECK(final_answer("no mark") == "");
}

TEST_CASE("JSON lines become documents; prompts are masked only in prompt-response form") {
  const TemporaryFile file(
      "{\"question\": \"2+2?\", \"answer\": \"#### 4\"}\n\n"
      "{\"messages\": [{\"role\": \"user\", \"content\": \"hi\"}, "
      "{\"role\": \"assistant\", \"content\": \"yo\"}]}\n");
  const auto pairs = json_lines(file.path(), DataForm::prompt_response);
  REQUIRE(pairs.size() == 2);
  CHECK(Vocabulary::bytes().decode(pairs[0].tokens) == "Question: 2+2?\nAnswer: #### 4");
  CHECK(pairs[0].prompt_length ==
        static_cast<std::int64_t>(1 + std::string("Question: 2+2?\nAnswer: ").size()));
  CHECK(pairs[0].reference == "#### 4");
  CHECK(Vocabulary::bytes().decode(pairs[1].tokens) == "user: hi\nassistant: yo");
  const auto text = json_lines(file.path(), DataForm::running_text);
  CHECK(text[0].prompt_length == 1);
}

TEST_CASE("malformed JSON lines name file and line") {
  const char* cases[][2] = {
      {"{\"question\": \"a\", \"answer\": \"b\"}\n{oops\n", ":2: malformed JSON"},
      {"{\"question\": \"a\", \"answer\": \"b\", \"answer\": \"c\"}\n",
       ":1: key 'answer' is given twice"},
      {"[1]\n", ":1: expected a JSON object"},
      {"{\"question\": 3, \"answer\": \"b\"}\n", ":1: expected a string in \"question\""},
      {"{\"question\": \"a\"}\n", "\"answer\""},
      {"{\"prompt\": \"a\"}\n", "accepted are"},
      {"{\"messages\": []}\n", "non-empty"},
      {"{\"messages\": [{\"role\": \"user\", \"content\": \"x\"}]}\n", "assistant"},
      {"{\"text\": \"x\"}\n", "prompt_response needs"},
      {"", "no documents"},
  };
  for (const auto& [text, message] : cases) {
    const TemporaryFile file(text);
    INFO(text);
    CHECK_THROWS_WITH(json_lines(file.path(), DataForm::prompt_response), Catch::Contains(message));
  }
  CHECK_THROWS_WITH(json_lines("/nowhere/x.jsonl", DataForm::running_text),
                    Catch::Contains("cannot open"));
}

TEST_CASE("running text is cut at the end of a sequence and goes on in the next one") {
  Dataset dataset(make_corpus({document(11, 'a')}), DataForm::running_text, 1, 0);
  const Batch batch = dataset.next(2, 6);  // 10 inputs a document
  CHECK(batch.trained_tokens == 12);
  CHECK(batch.positions == std::vector<std::int32_t>{0, 1, 2, 3, 4, 5, 0, 1, 2, 3, 0, 1});
  CHECK(batch.document_start == std::vector<std::int32_t>{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 4, 4});
  CHECK(batch.targets[5] == 'a');
  CHECK(batch.targets[9] == ByteTokenizer::kEnd);
  CHECK(batch.tokens[10] == ByteTokenizer::kBegin);
}

TEST_CASE("prompt-response documents stay whole and their prompts are not trained on") {
  Dataset dataset(make_corpus({document(6, 'a', 3)}), DataForm::prompt_response, 1, 0);
  const Batch batch = dataset.next(1, 12);  // two documents of 5 inputs, then padding
  const std::vector<float> one = {0, 0, 1, 1, 1};
  for (std::size_t i = 0; i < 10; ++i) CHECK(batch.weights[i] == one[i % 5]);
  CHECK(batch.tokens[10] == ByteTokenizer::kPadding);
  CHECK(batch.weights[10] == 0.0f);
  CHECK(batch.document_start[10] == 10);
  CHECK(batch.trained_tokens == 6);
}

TEST_CASE("an epoch visits every document once, in an order of its own, and a cursor resumes it") {
  std::vector<Document> documents;
  for (std::int32_t i = 0; i < 40; ++i) documents.push_back(document(5, i));
  Dataset dataset(make_corpus(documents), DataForm::running_text, 11, 2);
  const auto epoch = [&] {
    std::vector<std::int32_t> order;
    for (int i = 0; i < 40; ++i) order.push_back(dataset.next(1, 4).tokens[1]);
    return order;
  };
  const std::vector<std::int32_t> first = epoch(), second = epoch();
  CHECK(std::set<std::int32_t>(first.begin(), first.end()).size() == 40);
  CHECK(first != second);
  dataset.next(3, 7);
  Dataset resumed(make_corpus(documents), DataForm::running_text, 11, 2);
  resumed.seek(dataset.cursor());
  for (int i = 0; i < 30; ++i) {
    const Batch expected = dataset.next(2, 9), actual = resumed.next(2, 9);
    CHECK(actual.tokens == expected.tokens);
    CHECK(actual.document_start == expected.document_start);
  }
  CHECK_THROWS_AS(resumed.seek({0, 40, 0}), Error);
}
