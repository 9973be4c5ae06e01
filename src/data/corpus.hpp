// The documents of one source, wherever they lie.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "src/config/config.hpp"
#include "src/data/documents.hpp"
#include "src/data/token_shard.hpp"
#include "src/data/vocabulary.hpp"

namespace fp8lab {

/// What a manifest says about one file or generator.
struct SourceRecord {
  std::string path;    ///< empty for the generator
  std::string format;  ///< "arithmetic", "text", "jsonl" or name_of(ShardFormat)
  std::int64_t documents = 0;
  std::int64_t tokens = 0;
  std::string hash;       ///< 16 hex digits over the contents, as `fp8lab data inspect` prints it
  std::string tokenizer;  ///< as Vocabulary::tokenizer()
  std::string name;       ///< of its first file, "+2" for two more; the format of the generator
};

/// Documents in a fixed order. Read-only, so stages and evaluations may share one.
class Corpus {
 public:
  virtual ~Corpus() = default;
  virtual std::int64_t size() const = 0;
  /// Document `index` in [0, size()); valid as long as the corpus.
  virtual DocumentView document(std::int64_t index) const = 0;
  /// The expected response of a prompt-response document, as text. Throws Error when ids cannot be
  /// read as text.
  virtual std::string reference(std::int64_t index) const = 0;
  /// Throws RuntimeFailure when documents of files are no longer those that hash() identifies.
  virtual void require_unchanged() const {}
  /// XXH3-64 that identifies all documents.
  virtual std::uint64_t hash() const = 0;
  virtual const Vocabulary& vocabulary() const = 0;
  virtual std::vector<SourceRecord> records() const = 0;
};

/// Number of leading tokens that are prompt: all up to the last run of trained tokens.
std::int64_t prompt_length(const DocumentView& document);

/// Documents held in memory, in the byte-level vocabulary.
std::shared_ptr<const Corpus> make_corpus(std::vector<Document> documents,
                                          SourceRecord record = {});

/// Opens a source: files of tokens are mapped, others are read or generated. Text and JSON lines
/// become ids of the tokenizer in the folder `tokenizer` (text_shards), bytes where that is empty.
/// Throws Error with the file for everything malformed, and when the chosen range is empty.
std::shared_ptr<const Corpus> open_corpus(const SourceConfig& source, DataForm form,
                                          const std::filesystem::path& tokenizer = {});

}  // namespace fp8lab
