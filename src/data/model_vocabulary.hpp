// The tokenizer of a model's weights, and whether data were made with it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "src/data/vocabulary.hpp"

namespace fp8lab {

/// The vocabulary of a model, as far as its weights identify it.
struct ModelVocabulary {
  /// For weights drawn at random, which belong to no tokenizer until they are trained.
  ModelVocabulary(std::int64_t ids) : size(ids) {}  // NOLINT(google-explicit-constructor)

  std::int64_t size;      ///< number of ids
  std::string origin;     ///< source of the weights; empty: drawn at random
  std::string tokenizer;  ///< the value of Vocabulary::tokenizer(); empty: unknown
  std::string folder;     ///< folder with the tokenizer.json; empty: unknown

  /// Returns the folder whose tokenizer.json encodes text; empty: ids are bytes.
  std::filesystem::path tokenizer_folder() const {
    if (origin.empty() || tokenizer == "bytes") return {};
    return folder;
  }

  bool operator==(const ModelVocabulary&) const = default;
};

/// The largest vocabulary that is assumed to be byte-level if the weights state no tokenizer.
/// Larger vocabularies must belong to another tokenizer.
inline constexpr std::int64_t kMostByteLevelIds = 512;

/// Throws Error if `model` lacks ids of `vocabulary`, or if its weights belong to another
/// tokenizer. `where` names the reader, `files` the data, separated by spaces; empty: the built-in
/// problems. The message includes the command that makes shards of the files.
void check_vocabulary(const Vocabulary& vocabulary, const ModelVocabulary& model,
                      const std::string& where, const std::string& files);

/// Returns a note on what check_vocabulary cannot verify: a model or data that state no
/// tokenizer, or a randomly initialized model most of whose ids never occur in
/// byte-level data. Otherwise empty.
std::string vocabulary_note(const Vocabulary& vocabulary, const ModelVocabulary& model,
                            const std::string& files);

}  // namespace fp8lab
