// The documents of one source, from files, a generator or memory.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "src/config/config.hpp"
#include "src/data/batch.hpp"
#include "src/data/documents.hpp"
#include "src/data/token_shard.hpp"
#include "src/data/vocabulary.hpp"

namespace fp8lab {

/// The manifest entry of one file or generator.
struct SourceRecord {
  std::string path;    ///< empty if generated
  std::string format;  ///< "arithmetic", "text", "jsonl" or name_of(ShardFormat)
  std::int64_t documents = 0;
  std::int64_t tokens = 0;
  std::string hash;       ///< 16 hex digits over the contents, as printed by `fp8lab data inspect`
  std::string tokenizer;  ///< the value of Vocabulary::tokenizer()
  std::string name;       ///< first file, "+2" if two more follow; generator: format
};

/// Documents in a fixed order. Read-only, so that stages and evaluations may share one.
class Corpus {
 public:
  virtual ~Corpus() = default;
  virtual std::int64_t size() const = 0;
  /// Returns document `index` in [0, size()); valid as long as the corpus.
  virtual DocumentView document(std::int64_t index) const = 0;
  /// Returns the number of document `index` under the record key of `column`. Precondition: the
  /// corpus was opened with the column.
  virtual float value(std::int64_t index, const ColumnSpec& column) const;
  /// Returns the expected response of a prompt-response document, as text. Throws Error if the ids
  /// cannot be decoded to text.
  virtual std::string reference(std::int64_t index) const = 0;
  /// Throws RuntimeFailure if the documents in files have changed since hash() was computed.
  virtual void require_unchanged() const {}
  /// Returns the XXH3-64 that identifies all documents.
  virtual std::uint64_t hash() const = 0;
  virtual const Vocabulary& vocabulary() const = 0;
  virtual std::vector<SourceRecord> records() const = 0;
};

/// Returns the number of leading prompt tokens: everything before the last run of trained tokens.
std::int64_t prompt_length(const DocumentView& document);

/// Creates a corpus of documents in memory, in the byte-level vocabulary.
std::shared_ptr<const Corpus> make_corpus(std::vector<Document> documents,
                                          SourceRecord record = {});

/// Opens a source: files of tokens are mapped, others are read or generated. Text and JSON lines
/// are encoded by the tokenizer in the folder `tokenizer` (text_shards), or as bytes if it is
/// empty. The documents have the numbers of those of `columns` with a record key. Throws Error that
/// names the file for malformed input, and if the chosen range is empty.
std::shared_ptr<const Corpus> open_corpus(const SourceConfig& source, DataForm form,
                                          const std::filesystem::path& tokenizer = {},
                                          std::span<const ColumnSpec> columns = {});

}  // namespace fp8lab
