#include "src/data/manifest.hpp"

#include <nlohmann/json.hpp>

#include "src/config/config_names.hpp"
#include "src/io/hash.hpp"

namespace fp8lab {
namespace {

using nlohmann::ordered_json;

ordered_json describe(const Corpus& corpus, double weight) {
  ordered_json files = ordered_json::array();
  for (const SourceRecord& record : corpus.records()) {
    files.push_back({{"path", record.path},
                     {"format", record.format},
                     {"documents", record.documents},
                     {"tokens", record.tokens},
                     {"hash", record.hash}});
  }
  return {{"weight", weight},
          {"hash", hex16(corpus.hash())},
          {"documents", corpus.size()},
          {"tokenizer", corpus.vocabulary().tokenizer()},
          {"vocabulary", corpus.vocabulary().size()},
          {"files", std::move(files)}};
}

}  // namespace

std::string data_manifest(const std::vector<ManifestEntry>& entries) {
  ordered_json manifest = ordered_json::array();
  for (const ManifestEntry& entry : entries) {
    ordered_json sources = ordered_json::array();
    for (std::size_t i = 0; i < entry.sources->corpora.size(); ++i) {
      sources.push_back(describe(*entry.sources->corpora[i], entry.sources->weights[i]));
    }
    manifest.push_back({{"stage", entry.stage},
                        {"use", entry.use},
                        {"form", word_for(kDataFormNames, entry.sources->form)},
                        {"sources", std::move(sources)}});
  }
  // Paths need not be UTF-8.
  return manifest.dump(-1, ' ', false, ordered_json::error_handler_t::replace);
}

}  // namespace fp8lab
