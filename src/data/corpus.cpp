#include "src/data/corpus.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <new>
#include <optional>
#include <utility>

#include "emulation/base/error.hpp"
#include "emulation/base/input_error.hpp"
#include "src/config/config_names.hpp"
#include "src/data/document_values.hpp"
#include "src/data/text_shards.hpp"
#include "src/io/files/file_kind.hpp"
#include "src/io/hash.hpp"

namespace fp8lab {
namespace {

/// Name of `count` files that begin with `first`.
std::string name_of_files(const std::filesystem::path& first, std::size_t count) {
  const std::string name = first.filename().string();
  return count > 1 ? fmt::format("{}+{}", name, count - 1) : name;
}

class DocumentCorpus final : public Corpus {
 public:
  DocumentCorpus(std::vector<Document> documents, SourceRecord record)
      : documents_(std::move(documents)), record_(std::move(record)) {
    if (documents_.empty()) throw Error("a data source needs at least one document");
    Xxh3Stream hash;
    for (const Document& document : documents_) {
      const auto prompt = static_cast<std::int32_t>(document.prompt_length);
      hash.update(&prompt, sizeof prompt);
      hash.update(document.tokens.data(), document.tokens.size() * sizeof(std::int32_t));
      hash.update(document.loss_mask.data(), document.loss_mask.size());
      record_.tokens += static_cast<std::int64_t>(document.tokens.size());
    }
    hash_ = hash.digest();
    record_.documents = size();
    record_.hash = hex16(hash_);
    record_.tokenizer = vocabulary_.tokenizer();
  }

  std::int64_t size() const override { return static_cast<std::int64_t>(documents_.size()); }

  DocumentView document(std::int64_t index) const override {
    const Document& document = documents_[static_cast<std::size_t>(index)];
    DocumentView view;
    view.tokens = reinterpret_cast<const std::byte*>(document.tokens.data());
    view.size = static_cast<std::int64_t>(document.tokens.size());
    view.prompt_length = document.prompt_length;
    if (!document.loss_mask.empty()) view.loss_mask = document.loss_mask.data();
    return view;
  }

  std::string reference(std::int64_t index) const override {
    return documents_[static_cast<std::size_t>(index)].reference;
  }

  std::uint64_t hash() const override { return hash_; }
  const Vocabulary& vocabulary() const override { return vocabulary_; }
  std::vector<SourceRecord> records() const override { return {record_}; }

 private:
  std::vector<Document> documents_;
  SourceRecord record_;
  Vocabulary vocabulary_ = Vocabulary::bytes();
  std::uint64_t hash_ = 0;
};

std::string tokenizer_of(const ShardLayout& layout) {
  return layout.tokenizer_hash == 0 ? std::string() : hex16(layout.tokenizer_hash);
}

/// Returns the common vocabulary of all shards; with text if a table lies beside the first of them.
Vocabulary vocabulary_of(const std::vector<TokenShard>& shards) {
  const TokenShard& first = shards.front();
  const ShardLayout& layout = first.layout();
  const std::filesystem::path table =
      std::filesystem::path(first.name()).parent_path() / "token_bytes.json";
  if (layout.format == ShardFormat::fp8lab && is_present(table)) {
    Vocabulary vocabulary = Vocabulary::read(table);
    if (vocabulary.tokenizer() != tokenizer_of(layout) || vocabulary.size() != layout.vocabulary) {
      throw InputError(
          {.where = table.string(),
           .reason = fmt::format("of the tokenizer {} with {} tokens, but {} was made with {}, {}",
                                 vocabulary.tokenizer(), vocabulary.size(), first.name(),
                                 tokenizer_of(layout), layout.vocabulary)});
    }
    return vocabulary;
  }
  std::int64_t size = 0;
  for (const TokenShard& shard : shards) size = std::max(size, shard.vocabulary());
  return Vocabulary::opaque(size, layout.begin, layout.end, tokenizer_of(layout));
}

class ShardCorpus final : public Corpus {
 public:
  /// `text` describes the source files if the shards were made from text.
  ShardCorpus(const SourceConfig& source, DataForm form, std::optional<SourceRecord> text = {})
      : form_(form),
        shards_(open(source)),
        vocabulary_(vocabulary_of(shards_)),
        text_(std::move(text)) {
    std::int64_t total = 0;
    Xxh3Stream hash;
    for (const TokenShard& shard : shards_) {
      check_like_first(shard);
      const std::uint64_t content = shard.hash();
      hash.update(&content, sizeof content);
      starts_.push_back(total);
      total += shard.documents();
    }
    hash_ = hash.digest();
    const auto count = static_cast<double>(total);
    first_ = static_cast<std::int64_t>(std::floor(source.range_begin * count));
    last_ = static_cast<std::int64_t>(std::floor(source.range_end * count));
    check_range(source, total);
  }

  std::int64_t size() const override { return last_ - first_; }

  DocumentView document(std::int64_t index) const override {
    const std::int64_t place = first_ + index;
    const auto next = std::upper_bound(starts_.begin(), starts_.end(), place);
    const auto shard = static_cast<std::size_t>(next - starts_.begin() - 1);
    DocumentView view = shards_[shard].document(place - starts_[shard]);
    if (form_ == DataForm::running_text) view.loss_mask = nullptr;
    return view;
  }

  std::string reference(std::int64_t index) const override {
    if (!vocabulary_.has_text()) {
      throw InputError({.where = shards_.front().name(),
                        .reason = "answers cannot be read: no token_bytes.json beside it",
                        .accepted = "shards of python3 -m fp8lab.tokens, which writes it"});
    }
    const DocumentView view = document(index);
    std::vector<std::int32_t> tokens;
    for (std::int64_t i = prompt_length(view); i < view.size && view.trained(i); ++i) {
      tokens.push_back(view.token(i));
    }
    return vocabulary_.decode(tokens);
  }

  void require_unchanged() const override {
    for (const TokenShard& shard : shards_) shard.require_unchanged();
  }
  std::uint64_t hash() const override { return hash_; }
  const Vocabulary& vocabulary() const override { return vocabulary_; }

  std::vector<SourceRecord> records() const override {
    if (text_) return {record_of_text()};
    std::vector<SourceRecord> records;
    for (const TokenShard& shard : shards_) {
      records.push_back({shard.name(), name_of(shard.layout().format), shard.documents(),
                         shard.layout().token_count, hex16(shard.hash()),
                         tokenizer_of(shard.layout()),
                         name_of_files(shard.name(), shards_.size())});
    }
    return records;
  }

 private:
  SourceRecord record_of_text() const {
    SourceRecord record = *text_;
    for (const TokenShard& shard : shards_) {
      record.documents += shard.documents();
      record.tokens += shard.layout().token_count;
    }
    record.hash = hex16(hash_);
    record.tokenizer = vocabulary_.tokenizer();
    return record;
  }

  static std::vector<TokenShard> open(const SourceConfig& source) {
    std::vector<TokenShard> shards;
    for (const std::filesystem::path& path : source.paths) {
      for (const std::filesystem::path& file : shard_files(path)) {
        shards.emplace_back(file, source.delimiter);
      }
    }
    return shards;
  }

  void check_like_first(const TokenShard& shard) const {
    const ShardLayout& first = shards_.front().layout();
    const ShardLayout& layout = shard.layout();
    if (layout.tokenizer_hash != first.tokenizer_hash || layout.vocabulary != first.vocabulary) {
      throw InputError(
          {.where = shard.name(),
           .reason = fmt::format("another tokenizer than that of {}", shards_.front().name())});
    }
    if (form_ == DataForm::prompt_response && layout.loss_mask.empty()) {
      if (text_) {
        throw InputError(
            {.where = text_->path,
             .reason =
                 "no record has a prompt; prompt_response needs questions, prompts or messages",
             .accepted = "form = \"running_text\""});
      }
      throw InputError({.where = shard.name(),
                        .reason = "has no loss mask; form = \"prompt_response\" needs one"});
    }
  }

  void check_range(const SourceConfig& source, std::int64_t total) const {
    bool usable = false;
    for (std::int64_t i = 0; i < size() && !usable; ++i) usable = document(i).size > 1;
    if (usable) return;
    throw InputError({.where = source.paths.front().string(),
                      .reason = fmt::format("no documents of two tokens in range [{}, {}) of {}",
                                            source.range_begin, source.range_end, total)});
  }

  DataForm form_;
  std::vector<TokenShard> shards_;
  Vocabulary vocabulary_;
  std::optional<SourceRecord> text_;
  std::vector<std::int64_t> starts_;  ///< index of the first document of each shard
  std::int64_t first_ = 0, last_ = 0;
  std::uint64_t hash_ = 0;
};

SourceRecord record_of(const SourceConfig& source) {
  SourceRecord record;
  record.format = word_for(kDataKindNames, source.kind);
  record.name = source.paths.empty() ? record.format
                                     : name_of_files(source.paths.front(), source.paths.size());
  for (const std::filesystem::path& path : source.paths) {
    record.path += (record.path.empty() ? "" : ", ") + path.string();
  }
  return record;
}

/// Opens the shards of text in the tokenizer of `folder`; records name the text files.
std::shared_ptr<const Corpus> open_text(const SourceConfig& source, DataForm form,
                                        const std::filesystem::path& folder) {
  SourceConfig shards = source;
  shards.kind = DataKind::tokens;
  shards.paths.clear();
  for (const std::filesystem::path& path : source.paths) {
    const std::vector<std::filesystem::path> more = text_shards(path, source.kind, folder);
    shards.paths.insert(shards.paths.end(), more.begin(), more.end());
  }
  return std::make_shared<ShardCorpus>(shards, form, record_of(source));
}

/// Of the tokens alone.
std::shared_ptr<const Corpus> open_documents(const SourceConfig& source, DataForm form,
                                             const std::filesystem::path& tokenizer) {
  if (source.kind == DataKind::tokens) return std::make_shared<ShardCorpus>(source, form);
  const bool is_text = source.kind == DataKind::text || source.kind == DataKind::jsonl;
  if (is_text && !tokenizer.empty()) return open_text(source, form, tokenizer);
  SourceRecord record = record_of(source);
  const std::string name = record.path.empty() ? record.name : record.path;
  try {
    return make_corpus(load_documents(source, form), std::move(record));
  } catch (const std::bad_alloc&) {
    throw RuntimeFailure(name + ": out of memory: its documents do not fit");
  }
}

}  // namespace

float Corpus::value(std::int64_t, const ColumnSpec&) const {
  throw Error("the documents have no numbers of their own");
}

std::int64_t prompt_length(const DocumentView& document) {
  std::int64_t length = document.size;
  while (length > 1 && !document.trained(length - 1)) --length;
  while (length > 1 && document.trained(length - 1)) --length;
  return length;
}

std::shared_ptr<const Corpus> make_corpus(std::vector<Document> documents, SourceRecord record) {
  return std::make_shared<DocumentCorpus>(std::move(documents), std::move(record));
}

std::shared_ptr<const Corpus> open_corpus(const SourceConfig& source, DataForm form,
                                          const std::filesystem::path& tokenizer,
                                          std::span<const ColumnSpec> columns) {
  require_records(source, columns);
  return with_values(open_documents(source, form, tokenizer), source, columns);
}

}  // namespace fp8lab
