// Token files of four formats: what they hold, and that everything malformed is one line.
#include <catch2/catch.hpp>
#include <cstring>
#include <filesystem>
#include <functional>

#include "emulation/base/error.hpp"
#include "src/data/corpus.hpp"
#include "src/data/token_shard.hpp"
#include "tests/scratch_directory.hpp"
#include "tests/src/data/token_files.hpp"

using namespace fp8lab;
using namespace fp8lab::test;

namespace {

using Ids = std::vector<std::int64_t>;

TokenShard parse(const std::string& bytes, const DocumentDelimiter& delimiter = {}) {
  return TokenShard(as_bytes(bytes), {}, "shard", delimiter);
}

TokenShard parse_megatron(const std::string& ids, const std::string& index) {
  return TokenShard(as_bytes(ids), as_bytes(index), "shard", {});
}

Ids ids_of(const DocumentView& document) {
  Ids ids;
  for (std::int64_t i = 0; i < document.size; ++i) ids.push_back(document.token(i));
  return ids;
}

std::vector<Ids> documents_of(const TokenShard& shard) {
  std::vector<Ids> documents;
  for (std::int64_t i = 0; i < shard.documents(); ++i) {
    documents.push_back(ids_of(shard.document(i)));
  }
  return documents;
}

std::string mask_of(const DocumentView& document) {
  std::string digits;
  for (std::int64_t i = 0; i < document.size; ++i) digits += document.trained(i) ? '1' : '0';
  return digits;
}

const ShardText kTwo = {{0, 7, 8, 1, 0, 9, 10, 11, 1}, {4, 9}, "001100111"};

/// The message of the Error; the test fails when there is none, or when it is not one line.
std::string refused(const std::function<void()>& read) {
  try {
    read();
  } catch (const Error& error) {
    const std::string message = error.what();
    CHECK(message.find("shard") == 0);
    CHECK(message.find('\n') == std::string::npos);
    return message;
  }
  FAIL("accepted");
  return "";
}

SourceConfig tokens_at(const std::vector<std::filesystem::path>& paths) {
  SourceConfig source;
  source.kind = DataKind::tokens;
  source.paths = paths;
  return source;
}

}  // namespace

TEST_CASE("a shard of ours holds ids of both widths, documents and a mask") {
  for (const std::uint32_t bits : {16u, 32u}) {
    ShardText text = kTwo;
    text.bits = bits;
    const std::string bytes = our_shard(text);
    const TokenShard shard = parse(bytes);
    CHECK(documents_of(shard) == std::vector<Ids>{{0, 7, 8, 1}, {0, 9, 10, 11, 1}});
    CHECK(mask_of(shard.document(0)) == "0011");
    CHECK(mask_of(shard.document(1)) == "00111");
    CHECK(shard.trained_tokens() == 5);
    CHECK(shard.vocabulary() == 50);
    CHECK(shard.layout().end == 1);
    CHECK(shard.layout().tokenizer_hash == 0x1234);
    CHECK(shard.hash() == xxh3(bytes.data() + 128, bytes.size() - 128));
    CHECK(shard.document(0).tokens == shard.layout().tokens.data());  // where they lie
  }
}

TEST_CASE("without a mask all but the first token of a document are trained on") {
  ShardText text = kTwo;
  text.mask.clear();
  const std::string bytes = our_shard(text);
  const TokenShard shard = parse(bytes);
  CHECK(mask_of(shard.document(1)) == "01111");
  CHECK(shard.trained_tokens() == 7);
}

TEST_CASE("boundaries that are written over later lead to no other memory") {
  std::string bytes = our_shard(kTwo);
  const TokenShard shard = parse(bytes);
  const auto place = static_cast<std::size_t>(
      reinterpret_cast<const char*>(shard.layout().document_ends.data()) - bytes.data());
  const auto write = [&](std::size_t index, std::uint64_t end) {
    std::memcpy(bytes.data() + place + 8 * index, &end, sizeof end);
  };
  for (const std::uint64_t end : {std::uint64_t{10}, ~std::uint64_t{0}, std::uint64_t{1} << 62}) {
    write(0, end);
    CHECK_THROWS_AS(shard.document(0), RuntimeFailure);
    CHECK_THROWS_AS(shard.document(1), RuntimeFailure);
  }
  write(0, 4);
  CHECK(ids_of(shard.document(1)) == Ids{0, 9, 10, 11, 1});
  write(1, 3);
  CHECK_THROWS_AS(shard.document(1), RuntimeFailure);
}

TEST_CASE("ids above 2^15 and 2^16 are not taken for negative ones") {
  ShardText text = kTwo;
  text.vocabulary = 65536;
  text.tokens[1] = 65535;
  const std::string narrow = our_shard(text);
  CHECK(parse(narrow).document(0).token(1) == 65535);
  text.bits = 32;
  text.vocabulary = 0x7fffffff;
  text.tokens[1] = 0x7ffffffe;
  const std::string wide = our_shard(text);
  CHECK(parse(wide).document(0).token(1) == 0x7ffffffe);
}

TEST_CASE("files of llm.c are cut where the delimiter says") {
  const Ids ids = {50256, 5, 6, 50256, 7, 50256, 8, 9};
  const std::string gpt2 = llm_c_file(ids, false);
  CHECK(documents_of(parse(gpt2)) == std::vector<Ids>{ids});
  CHECK(documents_of(parse(gpt2, {50256, -1})) ==
        std::vector<Ids>{{50256, 5, 6}, {50256, 7}, {50256, 8, 9}});
  CHECK(documents_of(parse(gpt2, {-1, 50256})) ==
        std::vector<Ids>{{50256}, {5, 6, 50256}, {7, 50256}, {8, 9}});
  CHECK(parse(gpt2).vocabulary() == 50257);
  const std::string llama = llm_c_file({128000, 70000, 3}, true);
  CHECK(documents_of(parse(llama)) == std::vector<Ids>{{128000, 70000, 3}});
}

TEST_CASE("files of llmq come with and without a mask") {
  const std::string plain = llmq_file({4, 5, 1, 6, 7, 8, 1}, "");
  CHECK(documents_of(parse(plain, {-1, 1})) == std::vector<Ids>{{4, 5, 1}, {6, 7, 8, 1}});
  CHECK(parse(plain).vocabulary() == 50);
  const std::string masked = llmq_file({4, 5, 1, 6, 7, 8, 9, 9, 1}, "011001001");
  const TokenShard shard = parse(masked, {-1, 1});
  CHECK(mask_of(shard.document(0)) == "011");
  CHECK(mask_of(shard.document(1)) == "001001");
  std::string first = plain;
  overwrite<std::int32_t>(first, 8, 1);  // version 1 stated no vocabulary
  overwrite<std::int32_t>(first, 20, 0);
  CHECK(parse(first).vocabulary() == 9);
}

TEST_CASE("Megatron's documents are runs of sequences") {
  for (const bool wide : {false, true}) {
    const std::string ids = megatron_ids({3, 4, 5, 6, 7, 8, 9}, wide);
    const std::string index = megatron_index({2, 1, 0, 4}, {0, 2, 2, 3, 4}, wide);
    const TokenShard shard = parse_megatron(ids, index);
    CHECK(documents_of(shard) == std::vector<Ids>{{3, 4, 5}, {6, 7, 8, 9}});
    CHECK(shard.vocabulary() == 10);
    CHECK(shard.layout().format == ShardFormat::megatron);
    // Other documents of the same ids are other contents.
    const std::string other = megatron_index({2, 1, 0, 4}, {0, 1, 2, 3, 4}, wide);
    CHECK(parse_megatron(ids, other).hash() != shard.hash());
  }
}

TEST_CASE("a malformed shard of ours is one line") {
  struct Case {
    std::function<void(std::string&)> damage;
    bool resign;
    const char* message;
  };
  const auto put32 = [](std::size_t offset, std::uint32_t value) {
    return [=](std::string& bytes) { overwrite(bytes, offset, value); };
  };
  const auto put64 = [](std::size_t offset, std::uint64_t value) {
    return [=](std::string& bytes) { overwrite(bytes, offset, value); };
  };
  const auto put8 = [](std::size_t offset, std::uint8_t value) {
    return [=](std::string& bytes) { overwrite(bytes, offset, value); };
  };
  const Case cases[] = {
      {[](std::string& b) { b.clear(); }, false, "not a token file"},
      {[](std::string& b) { b.resize(127); }, false, "127 bytes are too few"},
      {[](std::string& b) { b[3] = 'x'; }, false, "not a token file"},
      {put32(8, 2), false, "its version is 2; accepted: 1"},
      {put32(12, 8), false, "bits a token is 8; accepted: 16 or 32"},
      {put64(16, 10), false, "document 1 ends at token 9 and begins at 4, of 10 tokens"},
      {put64(16, 0), false, "0 tokens in 2 documents"},
      {put64(16, std::uint64_t{1} << 63), false, "its tokens do not fit into the file"},
      {put64(16, ~std::uint64_t{0}), false, "do not fit into the file"},
      {put64(24, 0), false, "9 tokens in 0 documents"},
      {put64(24, 5), false, "9 tokens in 5 documents"},
      {put64(24, std::uint64_t{1} << 61), false, "documents; accepted"},
      {put32(32, 0), false, "a vocabulary of 0"},
      {put32(32, 65537), false, "a vocabulary of 65537; accepted: 1 to 65536 with 16-bit ids"},
      {put32(32, 0x80000000u), false, "a vocabulary of 2147483648"},
      {put32(36, 50), false, "begin or end is token 50"},
      {put32(40, 0xfffffffeu), false, "begin or end is token -2"},
      {put32(44, 3), false, "flags or fields of a later version"},
      {put8(100, 1), false, "flags or fields of a later version"},
      {put32(44, 0), false, "8 bytes more than its header says"},
      {[](std::string& b) { b.pop_back(); }, true, "mask bits do not fit into the file"},
      {[](std::string& b) { b.resize(150); }, true, "tokens do not fit into the file"},
      {[](std::string& b) { b.resize(140); }, true, "document ends do not fit into the file"},
      {[](std::string& b) { b += "x"; }, true, "1 bytes more than its header says"},
      {put64(128, 1), true, "document 0 ends at token 1"},
      {put64(128, 8), true, "document 1 ends at token 9 and begins at 8"},
      {put64(128, 10), true, "document 0 ends at token 10"},
      {put64(128, ~std::uint64_t{0}), true, "document 0 ends at token 18446744073709551615"},
      {put64(136, 8), true, "document 1 ends at token 8"},
      {put8(128 + 16 + 18, 1), true, "the bytes after its tokens are not zero"},
      {put8(128 + 16 + 24 + 1, 3), true, "bits after the last token"},
      {put8(128 + 16 + 24 + 2, 1), true, "the bytes after its mask bits are not zero"},
      {[](std::string& b) { overwrite<std::uint16_t>(b, 128 + 16 + 24, 0); }, true, "on no token"},
      {put8(128 + 16 + 2, 50), true, "holds the token 50 beyond its vocabulary of 50"},
      {put8(128 + 16 + 2, 8), false, "damaged: its contents have the hash"},
      {put64(56, 5), false, "its header says 0000000000000005"},
  };
  for (const Case& one : cases) {
    std::string bytes = our_shard(kTwo);
    one.damage(bytes);
    if (one.resign) sign(bytes);
    INFO(one.message);
    CHECK_THAT(refused([&] { parse(bytes); }), Catch::Contains(one.message));
  }
}

TEST_CASE("malformed files of others are one line") {
  const auto check = [](std::string bytes, std::size_t offset, std::int32_t value,
                        const char* message) {
    overwrite(bytes, offset, value);
    INFO(message);
    CHECK_THAT(refused([&] { parse(bytes); }), Catch::Contains(message));
  };
  const std::string gpt2 = llm_c_file({1, 2, 3}, false);
  check(gpt2, 0, 20240522, "not a token file");
  check(gpt2, 4, 2, "its version is 2; accepted: 1");
  check(gpt2, 8, 0, "0 tokens");
  check(gpt2, 8, -1, "-1 tokens");
  check(gpt2, 8, 4, "its tokens do not fit");
  check(gpt2, 8, 2, "2 bytes more");
  check(llm_c_file({1, 2, 3}, true), 4, 1, "its version is 1; accepted: 7");
  check(llm_c_file({1, 2, 3}, true), 1024, -5, "beyond its vocabulary");
  const std::string llmq = llmq_file({1, 2, 3}, "011");
  check(llmq, 8, 3, "its version is 3; accepted: 1 or 2");
  check(llmq, 12, 2, "bytes a token is 2; accepted: 4");
  check(llmq, 16, 1 << 30, "its tokens do not fit");
  check(llmq, 20, 3, "the token 3 beyond its vocabulary of 3");
  check(llmq, 20, -1, "a vocabulary of -1");
  check(llmq, 24, 2, "its mask flag is 2");
  check(llmq, 24, 0, "1 bytes more");
  CHECK_THAT(refused([&] { parse(gpt2.substr(0, 1023)); }), Catch::Contains("too few"));
  CHECK_THAT(refused([&] { parse(llmq.substr(0, 1023)); }), Catch::Contains("too few"));
  CHECK_THAT(refused([&] { parse(our_shard(kTwo), {1, -1}); }), Catch::Contains("its document"));
}

TEST_CASE("a malformed Megatron index is one line") {
  const std::string ids = megatron_ids({3, 4, 5, 6}, false);
  const std::string index = megatron_index({2, 2}, {0, 1, 2}, false);
  const auto check = [&](const std::string& bad_ids, const std::string& bad_index,
                         const char* message) {
    INFO(message);
    CHECK_THAT(refused([&] { parse_megatron(bad_ids, bad_index); }), Catch::Contains(message));
  };
  const auto with = [&](std::size_t offset, auto value) {
    std::string bytes = index;
    overwrite(bytes, offset, value);
    return bytes;
  };
  check(ids, index.substr(0, 33), "too few");
  check(ids, with(0, 'X'), "not an index of Megatron");
  check(ids, with(9, std::uint64_t{2}), "its version is 2");
  check(ids, with(17, std::uint8_t{7}), "dtype code 7");
  check(ids, with(18, std::uint64_t{0}), "0 sequences");
  check(ids, with(18, ~std::uint64_t{0}), "sequence lengths do not fit");
  check(ids, with(26, std::uint64_t{1}), "1 document indices");
  check(ids, with(26, std::uint64_t{4}), "document indices do not fit");
  check(ids, index + std::string(2, '\0'), "2 bytes more");  // modes of multimodal data
  check(ids, with(34, std::int32_t{-2}), "sequence 0 has -2 tokens");
  check(ids, with(34, std::int32_t{1}), "sequence 1 has 2 tokens at byte 4");
  check(ids, with(38, std::int32_t{9}), "sequence 1 has 9 tokens");
  check(ids, with(42, std::int64_t{2}), "sequence 0 has 2 tokens at byte 2");
  check(ids, with(58, std::int64_t{1}), "document index 0 is 1");
  check(ids, with(66, std::int64_t{3}), "document index 1 is 3");
  check(ids, with(66, std::int64_t{-1}), "document index 1 is -1");
  check(ids, with(74, std::int64_t{1}), "hold 1 of 2 sequences");
  check(ids + "xx", index, "4 of 5 tokens");
  check(ids.substr(0, 7), index, "no whole number");
  check("", index, "no whole number");
}

TEST_CASE("every truncation and every changed byte of a shard is refused or harmless") {
  const std::string good = our_shard(kTwo);
  for (std::size_t size = 0; size < good.size(); ++size) {
    CHECK_THROWS_AS(parse(good.substr(0, size)), Error);
  }
  for (std::size_t i = 0; i < good.size(); ++i) {
    std::string bytes = good;
    bytes[i] = static_cast<char>(bytes[i] ^ 1);
    const bool header_of_others = i >= 32 && i < 56;  // vocabulary, begin, end, flags, tokenizer
    if (header_of_others) continue;
    CHECK_THROWS_AS(parse(bytes), Error);
  }
}

TEST_CASE("a source is one file, several, or a folder, and may be a range") {
  const ScratchDirectory scratch;
  ShardText more = kTwo;
  more.tokens = {0, 20, 1, 0, 21, 1};
  more.ends = {3, 6};
  more.mask = "001011";
  write_file(scratch / "a.tokens", our_shard(kTwo));
  write_file(scratch / "b.tokens", our_shard(more));
  write_file(scratch / "notes.txt", "no shard");
  const auto folder = open_corpus(tokens_at({scratch.path()}), DataForm::prompt_response);
  const auto listed = open_corpus(tokens_at({scratch / "a.tokens", scratch / "b.tokens"}),
                                  DataForm::prompt_response);
  CHECK(folder->size() == 4);
  CHECK(folder->hash() == listed->hash());
  CHECK(ids_of(folder->document(2)) == Ids{0, 20, 1});
  CHECK(mask_of(folder->document(3)) == "011");
  CHECK(prompt_length(folder->document(3)) == 1);
  CHECK(prompt_length(folder->document(1)) == 2);
  REQUIRE(folder->records().size() == 2);
  CHECK(folder->records()[1].tokens == 6);
  SourceConfig half = tokens_at({scratch.path()});
  half.range_begin = 0.25;
  half.range_end = 0.75;
  const auto middle = open_corpus(half, DataForm::running_text);
  CHECK(middle->size() == 2);
  CHECK(ids_of(middle->document(0)) == Ids{0, 9, 10, 11, 1});
  CHECK(mask_of(middle->document(0)) == "01111");  // running text trains on everything
  half.range_end = 0.3;
  CHECK_THROWS_WITH(open_corpus(half, DataForm::running_text), Catch::Contains("no documents"));
  const auto swapped =
      open_corpus(tokens_at({scratch / "b.tokens", scratch / "a.tokens"}), DataForm::running_text);
  CHECK(swapped->hash() != folder->hash());
}

TEST_CASE("shards that cannot be used say why") {
  const ScratchDirectory scratch;
  ShardText other = kTwo;
  other.tokenizer = 0x9999;
  ShardText plain = kTwo;
  plain.mask.clear();
  write_file(scratch / "a.tokens", our_shard(kTwo));
  write_file(scratch / "other.tokens", our_shard(other));
  write_file(scratch / "plain.tokens", our_shard(plain));
  write_file(scratch / "single.bin", llm_c_file({7, 7, 7}, false));
  const auto open = [](const SourceConfig& source, DataForm form = DataForm::running_text) {
    return open_corpus(source, form);
  };
  CHECK_THROWS_WITH(open(tokens_at({scratch / "a.tokens", scratch / "other.tokens"})),
                    Catch::Contains("another tokenizer"));
  CHECK_THROWS_WITH(open(tokens_at({scratch / "plain.tokens"}), DataForm::prompt_response),
                    Catch::Contains("no loss mask"));
  CHECK_THROWS_WITH(open(tokens_at({scratch / "none"})), Catch::Contains("cannot open"));
  SourceConfig single = tokens_at({scratch / "single.bin"});
  single.delimiter.end = 7;
  CHECK_THROWS_WITH(open(single), Catch::Contains("no documents of two tokens"));
  std::filesystem::create_directory(scratch / "empty");
  CHECK_THROWS_WITH(open(tokens_at({scratch / "empty"})), Catch::Contains("no .tokens"));
  CHECK_THROWS_WITH(open(tokens_at({scratch / "a.tokens"}))->reference(0),
                    Catch::Contains("no token_bytes.json"));
}

TEST_CASE("what the Python tool writes is read, with its text") {
  const std::filesystem::path folder = std::filesystem::path(FP8LAB_TEST_DATA) / "golden/tokens";
  const auto corpus = open_corpus(tokens_at({folder}), DataForm::prompt_response);
  CHECK(corpus->size() == 40);
  CHECK(corpus->vocabulary().size() == 284);
  CHECK(corpus->vocabulary().end() == 1);
  CHECK(corpus->reference(3) == "3 + 9 = 12\n#### 12");
  std::vector<std::int32_t> tokens;
  const DocumentView document = corpus->document(39);
  for (std::int64_t i = 0; i < document.size; ++i) tokens.push_back(document.token(i));
  CHECK(corpus->vocabulary().decode(tokens) ==
        "Question: What is 39 plus 117?\nAnswer: 39 + 117 = 156\n#### 156");
}

TEST_CASE("a malformed table of token bytes is one line") {
  const ScratchDirectory scratch;
  const std::string good =
      R"({"schema":"fp8lab-token-bytes-1","tokenizer_hash":"0000000000001234","begin":0,"end":1,)"
      R"("tokens":["","","41","e282ac"]})";
  const auto read = [&](const std::string& from, const std::string& to) {
    std::string text = good;
    text.replace(text.find(from), from.size(), to);
    write_file(scratch / "shard.json", text);
    return Vocabulary::read(scratch / "shard.json");
  };
  CHECK(read("41", "42").decode({0, 2, 3, 9, -1}) == "B\xe2\x82\xac");
  const std::string named = "\"begin\":0,\"special\":{\"0\":\"<s>\"}";
  CHECK(read("\"begin\":0", named).decode({0, 2, 1}) == "A");
  CHECK(read("\"begin\":0", named).spell({0, 2, 1, 9, -1}) == "<s>A<id 1><id 9><id -1>");
  CHECK(read("41", "42").spell({0, 2}) == "<id 0>B");
  for (const char* wrong : {"[\"<s>\"]", "{\"4\":\"<s>\"}", "{\"x\":\"<s>\"}", "{\"0\":1}"}) {
    CHECK_THROWS_WITH(read("\"begin\":0", "\"begin\":0,\"special\":" + std::string(wrong)),
                      Catch::Contains("\"special\""));
  }
  CHECK_THROWS_WITH(read("{", "["), Catch::Contains("malformed JSON"));
  CHECK_THROWS_WITH(read("\"begin\":0", "\"begin\":0,\"begin\":2"), Catch::Contains("given twice"));
  CHECK_THROWS_WITH(read("\"end\":1", "\"end\":18446744073709551615"), Catch::Contains("\"end\""));
  CHECK_THROWS_WITH(read("bytes-1", "bytes-2"), Catch::Contains("not a table"));
  CHECK_THROWS_WITH(read("41", "4"), Catch::Contains("'4' is not hexadecimal"));
  CHECK_THROWS_WITH(read("41", "4g"), Catch::Contains("'4g' is not hexadecimal"));
  CHECK_THROWS_WITH(read("\"41\"", "41"), Catch::Contains("must be strings"));
  CHECK_THROWS_WITH(read("\"end\":1", "\"end\":4"), Catch::Contains("\"end\" is not a token of 4"));
  CHECK_THROWS_WITH(read("\"end\":1", "\"end\":1.5"), Catch::Contains("\"end\""));
  CHECK_THROWS_WITH(read("\"begin\":0,", ""), Catch::Contains("\"begin\""));
  CHECK_THROWS_WITH(read("0000000000001234", "1234"), Catch::Contains("tokenizer_hash"));
  CHECK_THROWS_WITH(read("\"tokens\"", "\"words\""), Catch::Contains("\"tokens\" must be"));
  write_file(scratch / "a.tokens", our_shard(kTwo));
  std::filesystem::rename(scratch / "shard.json", scratch / "token_bytes.json");
  write_file(scratch / "token_bytes.json", good);
  CHECK_THROWS_WITH(open_corpus(tokens_at({scratch / "a.tokens"}), DataForm::running_text),
                    Catch::Contains("of the tokenizer 0000000000001234 with 4 tokens"));
}
