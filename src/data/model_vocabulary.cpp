#include "src/data/model_vocabulary.hpp"

#include <fmt/format.h>

#include "emulation/base/error.hpp"
#include "emulation/base/input_error.hpp"
#include "src/io/shell_word.hpp"

namespace fp8lab {
namespace {

const char* const kBytes = "bytes";

std::string name_of(const std::string& files) {
  return files.empty() ? "the byte-level tokenizer" : files;
}

std::string command_for(const std::string& files, const ModelVocabulary& model) {
  return fmt::format("python3 -m fp8lab.tokens {} {} --out shards", files.empty() ? "FILE" : files,
                     shell_option("--tokenizer", model.folder.empty() ? "FOLDER" : model.folder));
}

/// Returns true for weights of bytes, for which no shards can be made.
bool is_of_bytes(const ModelVocabulary& model) {
  return model.tokenizer.empty() ? model.size <= kMostByteLevelIds : model.tokenizer == kBytes;
}

const char* const kTextItself = "the text itself, as .txt or .jsonl";

std::string known_by(const ModelVocabulary& model) {
  return model.tokenizer.empty() ? fmt::format("{} ids of another tokenizer", model.size)
                                 : fmt::format("the tokenizer {}", model.tokenizer);
}

}  // namespace

void check_vocabulary(const Vocabulary& vocabulary, const ModelVocabulary& model,
                      const std::string& where, const std::string& files) {
  if (vocabulary.size() > model.size) {
    const std::string fact = fmt::format("{}: {} needs a vocabulary of {}, model.vocab_size is {}",
                                         where, name_of(files), vocabulary.size(), model.size);
    if (!model.origin.empty()) {
      throw InputError(
          {.reason = fmt::format("{}, which the weights of {} determine", fact, model.origin),
           .accepted = is_of_bytes(model) ? kTextItself : command_for("", model)});
    }
    throw Error(
        fmt::format("{}; write vocab_size = {} into [model] of the run file, or give --set "
                    "model.vocab_size={}",
                    fact, vocabulary.size(), vocabulary.size()));
  }
  if (model.origin.empty() || vocabulary.tokenizer() == model.tokenizer) return;
  const std::string& own = vocabulary.tokenizer();
  if (own == kBytes) {
    if (is_of_bytes(model)) return;
    throw InputError(
        {.where = where,
         .reason = fmt::format("{} would be read as bytes, but the weights of {} are of {}; make "
                               "shards of the text with that: {}",
                               files.empty() ? "the built-in arithmetic" : files, model.origin,
                               known_by(model), command_for(files, model))});
  }
  if (model.tokenizer.empty()) return;
  if (model.tokenizer == kBytes) {
    throw InputError(
        {.where = where,
         .reason =
             fmt::format("{} holds ids of {}, but the weights of {} are of bytes", files,
                         own.empty() ? "a tokenizer that it does not name" : "the tokenizer " + own,
                         model.origin),
         .accepted = kTextItself});
  }
  if (own.empty()) return;
  throw InputError(
      {.where = where,
       .reason = fmt::format("{} was made with the tokenizer {}, but the weights of {} are of the "
                             "tokenizer {}; make shards of the text with that: {}",
                             files, own, model.origin, model.tokenizer, command_for("", model))});
}

std::string vocabulary_note(const Vocabulary& vocabulary, const ModelVocabulary& model,
                            const std::string& files) {
  const bool bytes = vocabulary.tokenizer() == kBytes;
  if (model.origin.empty()) {
    if (!bytes || model.size <= kMostByteLevelIds) return {};
    return fmt::format("{} is read as bytes, which use {} of the model's {} ids",
                       files.empty() ? "the built-in arithmetic" : files, vocabulary.size(),
                       model.size);
  }
  if (vocabulary.tokenizer() == model.tokenizer && !model.tokenizer.empty()) return {};
  if (bytes) return {};
  if (vocabulary.tokenizer().empty()) {
    return fmt::format("{} does not say its tokenizer; its ids fit the {} of {}, no more is known",
                       files, model.size, model.origin);
  }
  return fmt::format(
      "{} does not say its tokenizer; the ids of {}, of the tokenizer {}, fit its {}", model.origin,
      files, vocabulary.tokenizer(), model.size);
}

}  // namespace fp8lab
