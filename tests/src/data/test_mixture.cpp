// Mixtures: proportions, order, resuming, and what may be mixed.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <set>

#include "emulation/base/error.hpp"
#include "src/data/manifest.hpp"
#include "src/data/mixture.hpp"
#include "tests/scratch_directory.hpp"
#include "tests/src/data/token_files.hpp"

using namespace fp8lab;
using namespace fp8lab::test;

namespace {

/// Documents of different lengths whose tokens are all `value`.
std::shared_ptr<const Corpus> uniform_corpus(std::int32_t value, int documents) {
  std::vector<Document> list;
  for (int i = 0; i < documents; ++i) {
    list.push_back(
        {std::vector<std::int32_t>(static_cast<std::size_t>(5 + i % 7), value), 1, {}, ""});
  }
  return make_corpus(std::move(list));
}

DataSources three_sources() {
  DataSources sources;
  sources.corpora = {uniform_corpus(10, 30), uniform_corpus(20, 7), uniform_corpus(30, 100)};
  sources.weights = {5.0, 1.0, 2.5};
  return sources;
}

std::vector<std::size_t> choices(const std::vector<double>& weights, std::uint64_t seed,
                                 int count) {
  MixtureSchedule schedule(weights, seed, 3);
  std::vector<std::size_t> chosen;
  for (int i = 0; i < count; ++i) chosen.push_back(schedule.next());
  return chosen;
}

}  // namespace

TEST_CASE("every source keeps to its share at every moment") {
  const std::vector<std::vector<double>> mixtures = {
      {1.0}, {1.0, 1.0}, {0.7, 0.3}, {100.0, 1.0}, {3.0, 2.0, 1.0, 0.5, 0.01}};
  for (const std::vector<double>& weights : mixtures) {
    double sum = 0.0;
    for (const double weight : weights) sum += weight;
    for (std::uint64_t seed = 1; seed < 4; ++seed) {
      std::vector<double> counts(weights.size(), 0.0);
      double worst = 0.0;
      const auto order = choices(weights, seed, 20000);
      for (std::size_t n = 0; n < order.size(); ++n) {
        counts[order[n]] += 1.0;
        for (std::size_t i = 0; i < weights.size(); ++i) {
          const double share = weights[i] / sum * static_cast<double>(n + 1);
          worst = std::max(worst, std::fabs(counts[i] - share));
        }
      }
      CHECK(worst < 2.0);
    }
  }
}

TEST_CASE("the schedule depends on the seed and can start anywhere") {
  const std::vector<double> weights = {0.6, 0.3, 0.1};
  const auto first = choices(weights, 1, 500);
  CHECK(first == choices(weights, 1, 500));
  CHECK(first != choices(weights, 2, 500));
  MixtureSchedule resumed(weights, 1, 3);
  resumed.seek(321);
  for (std::size_t n = 321; n < 500; ++n) CHECK(resumed.next() == first[n]);
  resumed.seek(0);
  CHECK(resumed.next() == first[0]);
}

TEST_CASE("every sequence of a mixture is of one source, in the proportions of tokens") {
  Mixture mixture(three_sources(), 4, 9);
  std::vector<std::int64_t> tokens(3, 0);
  for (int i = 0; i < 170; ++i) {
    const Batch batch = mixture.next(2, 16);
    for (std::size_t row = 0; row < 2; ++row) {
      const std::set<std::int32_t> seen(
          batch[kTokens].begin() + static_cast<std::ptrdiff_t>(row * 16),
          batch[kTokens].begin() + static_cast<std::ptrdiff_t>(row * 16 + 16));
      REQUIRE(seen.size() == 1);
      tokens[static_cast<std::size_t>(*seen.begin() / 10 - 1)] += 16;
    }
    CHECK(batch.trained_tokens == 32);
  }
  const double shares[] = {5.0 / 8.5, 1.0 / 8.5, 2.5 / 8.5};
  for (std::size_t i = 0; i < 3; ++i) {
    CHECK(std::fabs(static_cast<double>(tokens[i]) - shares[i] * 340 * 16) < 2 * 16);
  }
}

TEST_CASE("a mixture resumes with the same bits, whatever the batch sizes were") {
  Mixture whole(three_sources(), 4, 9);
  std::int64_t sequences = 0;
  for (const int rows : {3, 1, 8, 5, 40, 2}) {
    whole.next(rows, 11);
    sequences += rows;
  }
  Mixture resumed(three_sources(), 4, 9);
  resumed.seek(whole.position());
  CHECK(whole.position().sequences == sequences);
  for (int i = 0; i < 50; ++i) {
    const Batch expected = whole.next(3, 11), actual = resumed.next(3, 11);
    CHECK(actual[kTokens] == expected[kTokens]);
    CHECK(actual[kPositions] == expected[kPositions]);
    CHECK(actual[kDocumentStarts] == expected[kDocumentStarts]);
  }
  CHECK(resumed.position().cursors[1].epoch > 2);
  CHECK_THROWS_WITH(resumed.seek({1, {{0, 0, 0}}}), Catch::Contains("1 sources do not fit"));
  CHECK_THROWS_AS(resumed.seek({1, {{0, 0, 0}, {0, 7, 0}, {0, 0, 0}}}), Error);
  CHECK_THROWS_AS(resumed.seek({1, {{0, 0, 0}, {0, 0, 99}, {0, 0, 0}}}), Error);
}

TEST_CASE("one source alone gives the batches of its dataset") {
  DataSources one;
  one.corpora = {uniform_corpus(10, 30)};
  one.weights = {1.0};
  Mixture mixture(one, 7, 0x5eed);
  Dataset dataset(one.corpora[0], DataForm::running_text, 7, 0x5eed);
  for (int i = 0; i < 20; ++i) {
    const Batch expected = dataset.next(2, 9), actual = mixture.next(2, 9);
    CHECK(actual[kTokens] == expected[kTokens]);
    CHECK(actual[kTargets] == expected[kTargets]);
    CHECK(actual[kDocumentStarts] == expected[kDocumentStarts]);
  }
}

TEST_CASE("sources of different tokenizers and ids beyond the model are refused") {
  const ScratchDirectory scratch;
  ShardText shard = {{0, 7, 8, 1}, {4}, "", 16, 50, 0x1234};
  write_file(scratch / "a.tokens", our_shard(shard));
  shard.tokenizer = 0x5678;
  write_file(scratch / "b.tokens", our_shard(shard));
  write_file(scratch / "c.bin", llm_c_file({1, 2, 3, 400}, false));
  const auto open = [&](const std::vector<std::string>& names, std::int64_t vocab_size) {
    DataConfig config;
    config.sources.clear();
    for (const std::string& name : names) {
      SourceConfig source;
      source.problems = 3;
      source.kind = name.empty() ? DataKind::arithmetic : DataKind::tokens;
      if (!name.empty()) source.paths = {scratch / name};
      config.sources.push_back(source);
    }
    return open_sources(config, vocab_size, "stage one");
  };
  CHECK(open({"a.tokens", "c.bin"}, 401).corpora.size() == 2);
  CHECK_THROWS_WITH(open({"a.tokens"}, 49), Catch::Contains("needs a vocabulary of 50") &&
                                                Catch::Contains("model.vocab_size is 49"));
  CHECK_THROWS_WITH(open({"c.bin"}, 400), Catch::Contains("needs a vocabulary of 401"));
  CHECK_THROWS_WITH(open({""}, 258), Catch::Contains("byte-level tokenizer needs a vocabulary"));
  CHECK_THROWS_WITH(open({"a.tokens", "b.tokens"}, 50),
                    Catch::Contains("stage one: data of the tokenizer '0000000000005678' beside"));
  CHECK_THROWS_WITH(open({"", "a.tokens"}, 300), Catch::Contains("beside data of the tokenizer"));
  CHECK_THROWS_WITH(open({"", "c.bin"}, 500), Catch::Contains("'unknown' beside"));
  CHECK_THROWS_WITH(open({"c.bin", ""}, 500), Catch::Contains("'unknown' beside"));
  CHECK_THROWS_WITH(open({"c.bin", "a.tokens", "b.tokens"}, 500),
                    Catch::Contains("'0000000000005678' beside"));
}

TEST_CASE("the manifest names every file with its hash") {
  const ScratchDirectory scratch;
  const std::string bytes = our_shard({{0, 7, 8, 1}, {4}, "0011", 16, 50, 0x1234});
  write_file(scratch / "a.tokens", bytes);
  DataConfig config;
  config.sources[0].kind = DataKind::tokens;
  config.sources[0].paths = {scratch / "a.tokens"};
  const DataSources sources = open_sources(config, 50, "one");
  const std::string text = data_manifest({{"one", "train", &sources}});
  const std::string hash = hex16(xxh3(bytes.data() + 128, bytes.size() - 128));
  for (const std::string part : {"\"stage\":\"one\"", "\"use\":\"train\"", "a.tokens",
                                 "\"tokenizer\":\"0000000000001234\"", "\"tokens\":4"}) {
    CHECK_THAT(text, Catch::Contains(part));
  }
  CHECK_THAT(text, Catch::Contains(hash));
}
