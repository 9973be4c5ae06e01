// Documents, the generator, packing, masks and the order of batches.
#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <set>
#include <utility>

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
      {"[1]\n", ":1: expected an object"},
      {"{\"question\": 3, \"answer\": \"b\"}\n", ":1: expected a string in \"question\""},
      {"{\"question\": \"a\"}\n", "\"answer\""},
      {"{\"prompt\": \"a\"}\n", "accepted: {question, answer}"},
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
  // A null byte ends no value, wherever it stands.
  using namespace std::string_literals;
  for (const std::string& null : {"{\"text\": \"x\"}\0"s, "{\"text\": \"x\"}\0{"s, "\0"s,
                                  "{\"text\": \"x\0\"}"s, "{\0\"text\": \"x\"}"s}) {
    const TemporaryFile file("{\"text\": \"a\"}\n" + null + "\n");
    CHECK_THROWS_WITH(json_lines(file.path(), DataForm::running_text),
                      Catch::Contains(":2: malformed JSON"));
  }
  CHECK_THROWS_WITH(json_lines("/nowhere/x.jsonl", DataForm::running_text),
                    Catch::Contains("cannot open"));
}

namespace {

/// The text of a document, and what of it is trained on; its end is a '$'.
std::pair<std::string, std::string> read_back(const Document& document) {
  const auto corpus = make_corpus({document});
  const DocumentView view = corpus->document(0);
  std::string text, trained;
  for (std::int64_t i = 1; i < view.size; ++i) {
    const auto token = view.token(i);
    const std::string piece =
        token == ByteTokenizer::kEnd ? "$" : Vocabulary::bytes().decode({token});
    text += piece;
    if (view.trained(i)) trained += piece;
  }
  return {text, trained};
}

const std::string kUser = R"({"role": "user", "content": "a"})";
const std::string kSecond = R"({"role": "user", "content": "c"})";

std::string answer(const std::string& content, const std::string& more = "") {
  return R"({"role": "assistant", "content": ")" + content + "\"" + more + "}";
}

std::string messages(const std::string& list) { return "{\"messages\": [" + list + "]}\n"; }

}  // namespace

TEST_CASE("every answer of a chat is trained on, but those that say no") {
  const std::string tail = ", " + kSecond + ", " + answer("d");
  const std::string both = "user: a\nassistant: b\nuser: c\nassistant: d$";
  const std::string one = "user: a\nassistant: b$";
  const std::string sharegpt =
      R"({"conversations": [{"from": "system", "value": "s"}, {"from": "human", "value": "a"},)"
      R"( {"from": "gpt", "value": "b"}]})";
  const std::string alpaca = R"({"instruction": "a", "input": "b", "output": "c"})";
  struct Case {
    std::string line, text, trained;
  };
  const Case cases[] = {
      {messages(kUser + ", " + answer("b") + tail), both, "b\nd$"},
      {messages(kUser + ", " + answer("b", ", \"weight\": 0") + tail), both, "d$"},
      {messages(kUser + ", " + answer("b", ", \"train\": false") + tail), both, "d$"},
      {messages(kUser + ", " + answer("b", ", \"weight\": null") + tail), both, "b\nd$"},
      {messages(kUser + ", " + answer("b") + ", " + kSecond + ", " +
                answer("d", ", \"weight\": 0")),
       both, "b\n"},
      {messages(kUser + ", " + answer("b") + ", " + kSecond), "user: a\nassistant: b\nuser: c$",
       "b\n"},
      {messages(kUser + ", " + answer("b", ", \"weight\": 1, \"train\": true")), one, "b$"},
      {sharegpt, "system: s\nuser: a\nassistant: b$", "b$"},
      {alpaca, "user: a\nb\nassistant: c$", "c$"},
      {R"({"instruction": "a", "input": "", "output": "c"})", "user: a\nassistant: c$", "c$"},
      {R"({"prompt": "a", "completion": "b", "text": null})", "ab$", "b$"},
      {R"({"messages": null, "prompt": "a", "completion": "b"})", "ab$", "b$"},
  };
  for (const Case& one_case : cases) {
    INFO(one_case.line);
    const TemporaryFile file(one_case.line);
    const auto document = json_lines(file.path(), DataForm::prompt_response).at(0);
    CHECK(read_back(document) == std::pair(one_case.text, one_case.trained));
    const auto text = json_lines(file.path(), DataForm::running_text).at(0);
    CHECK(read_back(text) == std::pair(one_case.text, one_case.text));
    CHECK(text.loss_mask.empty());
  }
  // Problems ask for the last answer that is trained on.
  const TemporaryFile two(cases[0].line);
  const auto corpus = make_corpus(json_lines(two.path(), DataForm::prompt_response));
  CHECK(corpus->reference(0) == "d");
  CHECK(prompt_length(corpus->document(0)) == 1 + static_cast<std::int64_t>(both.size()) - 2);
  // What is trained on is part of the data's identity.
  const TemporaryFile other(cases[1].line);
  CHECK(make_corpus(json_lines(other.path(), DataForm::prompt_response))->hash() != corpus->hash());
}

TEST_CASE("chats that say nothing, or what has no words here, are refused") {
  const std::pair<std::string, const char*> cases[] = {
      {messages(kUser + ", " + answer("b", ", \"weight\": 0")), "no message that is trained on"},
      {messages(kUser + ", " + answer("b", ", \"weight\": 0.5")),
       "message 1: \"weight\"; accepted: 0"},
      {messages(kUser + ", " + answer("b", ", \"weight\": true")),
       "message 1: \"weight\"; accepted: 0"},
      {messages(kUser + ", " + answer("b", ", \"train\": 0")),
       "message 1: \"train\"; accepted: false"},
      {messages(answer("b", ", \"weight\": 1, \"train\": false")), "say different things"},
      {messages(R"({"role": "user", "content": "a", "weight": 1}, )" + answer("b")),
       "message 0: only messages of the assistant"},
      {messages(kUser + R"(, {"role": "assistant", "content": null})"),
       "message 1: expected a string in \"content\""},
      {messages(kUser + ", " + answer("b", R"(, "tool_calls": [{}])")), "message 1: calls tools"},
      {R"({"tools": [{}], "messages": [)" + kUser + ", " + answer("b") + "]}", "has tools"},
      {R"({"conversations": [{"from": "bot", "value": "a"}]})", "from 'bot'; accepted: human, gpt"},
      {messages(kUser + ", " + answer("b") + R"(, {"role": "asistant", "content": "c"})"),
       "message 2: role 'asistant'; accepted: system, developer, user, assistant"},
      {messages(R"({"role": "Assistant", "content": "c", "train": null}, )" + answer("b")),
       "message 0: role 'Assistant'"},
      {R"({"conversations": [{"role": "gpt", "content": "a"}]})", "message 0: role 'gpt'"},
      {R"({"instruction": "a", "output": "b", "history": [["c", "d"]]})",
       "\"history\" is not read"},
      {messages(kUser + ", " + answer("b", ", \"loss\": false")),
       "message 1: \"loss\" is not read"},
      {messages(kUser + ", " + answer("b", ", \"train_on_turn\": true")),
       "message 1: \"train_on_turn\" is not read"},
      {R"({"text": "a", "weight": 0})", "\"weight\" of a whole record; accepted: 1"},
      {R"({"question": "a", "answer": "b", "weight": 0.5})", "\"weight\" of a whole record"},
      {R"({"prompt": "a", "completion": "b", "weight": true})", "\"weight\" of a whole record"},
      {R"({"train": false, "messages": [)" + kUser + ", " + answer("b") + "]}",
       "\"train\" of a whole record; accepted: true"},
      {R"({"prompt": [1], "completion": "b"})", "expected a string in \"prompt\""},
  };
  for (const auto& [line, message] : cases) {
    INFO(line);
    const TemporaryFile file(line);
    CHECK_THROWS_WITH(json_lines(file.path(), DataForm::prompt_response),
                      Catch::Contains(":1: ") && Catch::Contains(message));
  }
}

TEST_CASE("a byte order mark is no text") {
  const TemporaryFile lines(
      "\xEF\xBB\xBF{\"text\": \"a\"}\n\xEF\xBB\xBF \r\n\xEF\xBB\xBF{\"text\": \"b\"}");
  const auto documents = json_lines(lines.path(), DataForm::running_text);
  REQUIRE(documents.size() == 2);
  CHECK(read_back(documents[1]).first == "b$");
  SourceConfig source;
  source.kind = DataKind::text;
  const TemporaryFile text(
      "\xEF\xBB\xBF"
      "a\nb\n");
  source.paths = {text.path()};
  CHECK(read_back(load_documents(source, DataForm::running_text).at(0)).first == "a\nb$");
}

TEST_CASE("running text is cut at the end of a sequence and goes on in the next one") {
  Dataset dataset(make_corpus({document(11, 'a')}), DataForm::running_text, 1, 0);
  const Batch batch = dataset.next(2, 6);  // 10 inputs a document
  CHECK(batch.trained_tokens == 12);
  CHECK(batch[kPositions] == std::vector<std::int32_t>{0, 1, 2, 3, 4, 5, 0, 1, 2, 3, 0, 1});
  CHECK(batch[kDocumentStarts] == std::vector<std::int32_t>{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 4, 4});
  CHECK(batch[kTargets][5] == 'a');
  CHECK(batch[kTargets][9] == ByteTokenizer::kEnd);
  CHECK(batch[kTokens][10] == ByteTokenizer::kBegin);
}

TEST_CASE("prompt-response documents stay whole and their prompts are not trained on") {
  Dataset dataset(make_corpus({document(6, 'a', 3)}), DataForm::prompt_response, 1, 0);
  const Batch batch = dataset.next(1, 12);  // two documents of 5 inputs, then padding
  const std::vector<float> one = {0, 0, 1, 1, 1};
  for (std::size_t i = 0; i < 10; ++i) CHECK(batch[kTargetWeights][i] == one[i % 5]);
  CHECK(batch[kTokens][10] == ByteTokenizer::kPadding);
  CHECK(batch[kTargetWeights][10] == 0.0f);
  CHECK(batch[kDocumentStarts][10] == 10);
  CHECK(batch.trained_tokens == 6);
}

TEST_CASE("an epoch visits every document once, in an order of its own, and a cursor resumes it") {
  std::vector<Document> documents;
  for (std::int32_t i = 0; i < 40; ++i) documents.push_back(document(5, i));
  Dataset dataset(make_corpus(documents), DataForm::running_text, 11, 2);
  const auto epoch = [&] {
    std::vector<std::int32_t> order;
    for (int i = 0; i < 40; ++i) order.push_back(dataset.next(1, 4)[kTokens][1]);
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
    CHECK(actual[kTokens] == expected[kTokens]);
    CHECK(actual[kDocumentStarts] == expected[kDocumentStarts]);
  }
  CHECK_THROWS_AS(resumed.seek({0, 40, 0}), Error);
}
