// Whose ids a model's weights know, and whether data are made of them.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "src/data/vocabulary.hpp"

namespace fp8lab {

/// The vocabulary of a model as far as its weights say.
struct ModelVocabulary {
  /// Of weights drawn at random, which know no tokenizer before they are trained.
  ModelVocabulary(std::int64_t ids) : size(ids) {}  // NOLINT(google-explicit-constructor)

  std::int64_t size;      ///< ids are below it
  std::string origin;     ///< what the weights are taken from; empty: drawn at random
  std::string tokenizer;  ///< as Vocabulary::tokenizer(); empty: not known
  std::string folder;     ///< that holds the tokenizer.json; empty: not known

  /// The folder whose tokenizer.json makes ids of text; empty: bytes are the ids.
  std::filesystem::path tokenizer_folder() const {
    if (origin.empty() || tokenizer == "bytes") return {};
    return folder;
  }

  bool operator==(const ModelVocabulary&) const = default;
};

/// The largest model that may be byte-level when nothing says which tokenizer its weights are of:
/// larger ones are of another tokenizer for certain.
inline constexpr std::int64_t kMostByteLevelIds = 512;

/// Throws Error when `model` has not all ids of `vocabulary`, and when its weights know those of
/// another tokenizer. `where` says who reads, `files` what, with spaces between files; empty: the
/// built-in problems. The line gives the command that makes shards of the files.
void check_vocabulary(const Vocabulary& vocabulary, const ModelVocabulary& model,
                      const std::string& where, const std::string& files);

/// A line for what check_vocabulary has to believe: a model or data that do not say their
/// tokenizer, and a model drawn at random most of whose ids data of bytes never use. Else empty.
std::string vocabulary_note(const Vocabulary& vocabulary, const ModelVocabulary& model,
                            const std::string& files);

}  // namespace fp8lab
