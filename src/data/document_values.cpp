#include "src/data/document_values.hpp"

#include <fmt/format.h>

#include <cmath>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "emulation/base/input_error.hpp"
#include "src/config/config_names.hpp"
#include "src/data/json_records.hpp"
#include "src/io/files/atomic_file.hpp"
#include "src/io/files/text_lines.hpp"
#include "src/io/hash.hpp"
#include "src/io/json_document.hpp"

namespace fp8lab {
namespace {

/// Values of documents, by the key of their records.
using Values = std::map<std::string_view, std::vector<float>>;

float number_of(const nlohmann::json& record, std::string_view key, const std::string& where) {
  const auto found = record.find(key);
  if (found != record.end() && found->is_number()) {
    const auto value = static_cast<float>(found->get<double>());
    if (std::isfinite(value)) return value;
  }
  throw InputError(
      {.where = where,
       .reason = fmt::format(
           "expected a finite number in \"{}\", which the objective of the stage reads", key)});
}

/// Reads the values of all records of a file; each makes one document.
void read_values(const std::filesystem::path& path, Values& values) {
  const std::string text = read_file(path);
  TextLines lines(text);
  for (std::string_view line; lines.next(line);) {
    const std::string_view record = without_byte_order_mark(line);
    if (is_blank(record)) continue;
    const std::string where = fmt::format("{}:{}", path.string(), lines.number());
    const nlohmann::json object = parse_json(record, where);
    for (auto& [key, numbers] : values) numbers.push_back(number_of(object, key, where));
  }
}

class ValuedCorpus final : public Corpus {
 public:
  /// `values` are those of the documents, in order.
  ValuedCorpus(std::shared_ptr<const Corpus> documents, Values values)
      : documents_(std::move(documents)), values_(std::move(values)) {
    Xxh3Stream hash;
    const std::uint64_t tokens = documents_->hash();
    hash.update(&tokens, sizeof tokens);
    for (const auto& [key, numbers] : values_) {
      hash.update(std::string(key));
      hash.update(numbers.data(), numbers.size() * sizeof(float));
    }
    hash_ = hash.digest();
  }

  std::int64_t size() const override { return documents_->size(); }
  DocumentView document(std::int64_t index) const override { return documents_->document(index); }
  float value(std::int64_t index, const ColumnSpec& column) const override {
    return values_.at(column.record_key).at(static_cast<std::size_t>(index));
  }
  std::string reference(std::int64_t index) const override { return documents_->reference(index); }
  void require_unchanged() const override { documents_->require_unchanged(); }
  std::uint64_t hash() const override { return hash_; }
  const Vocabulary& vocabulary() const override { return documents_->vocabulary(); }
  std::vector<SourceRecord> records() const override { return documents_->records(); }

 private:
  std::shared_ptr<const Corpus> documents_;
  Values values_;
  std::uint64_t hash_ = 0;
};

}  // namespace

void require_records(const SourceConfig& source, std::span<const ColumnSpec> columns) {
  for (const ColumnSpec& column : columns) {
    if (column.record_key.empty() || source.kind == DataKind::jsonl) continue;
    const std::string kind(word_for(kDataKindNames, source.kind));
    throw InputError(
        {.where = fmt::to_string(source.paths.empty() ? kind : source.paths.front().string()),
         .reason = fmt::format("documents of kind = \"{}\" have no number \"{}\", which the "
                               "objective of the stage reads",
                               kind, column.record_key),
         .accepted = "kind = \"jsonl\" with the number in each record"});
  }
}

std::shared_ptr<const Corpus> with_values(std::shared_ptr<const Corpus> documents,
                                          const SourceConfig& source,
                                          std::span<const ColumnSpec> columns) {
  Values values;
  for (const ColumnSpec& column : columns) {
    if (!column.record_key.empty()) values[column.record_key];
  }
  if (values.empty()) return documents;
  for (const std::filesystem::path& path : source.paths) read_values(path, values);
  for (auto& [key, numbers] : values) {
    // The documents in the range, as load_documents chooses them.
    const auto count = static_cast<double>(numbers.size());
    const auto first = static_cast<std::ptrdiff_t>(std::floor(source.range_begin * count));
    const auto last = static_cast<std::ptrdiff_t>(std::floor(source.range_end * count));
    numbers = std::vector<float>(numbers.begin() + first, numbers.begin() + last);
    if (static_cast<std::int64_t>(numbers.size()) != documents->size()) {
      throw InputError(
          {.where = source.paths.front().string(),
           .reason = fmt::format("has {} records but {} documents: it was written to meanwhile",
                                 numbers.size(), documents->size())});
    }
  }
  return std::make_shared<ValuedCorpus>(std::move(documents), std::move(values));
}

}  // namespace fp8lab
