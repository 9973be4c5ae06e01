#include "src/data/mixture.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "emulation/base/error.hpp"
#include "emulation/base/input_error.hpp"
#include "src/data/random.hpp"
#include "src/io/files/file_kind.hpp"

namespace fp8lab {
namespace {

constexpr std::uint32_t kScheduleStream = 0x51ed;

/// Returns the stream of source `index`; that of the first source is `stream` itself.
std::uint32_t stream_of(std::uint32_t stream, std::size_t index) {
  return stream + (static_cast<std::uint32_t>(index) << 16);
}

/// Returns the paths separated by spaces; empty for the generator.
std::string files_of(const SourceConfig& source) {
  std::string files;
  for (const std::filesystem::path& path : source.paths) {
    files += (files.empty() ? "" : " ") + path.string();
  }
  return files;
}

}  // namespace

std::vector<std::string> vocabulary_notes(const DataSources& sources,
                                          const ModelVocabulary& model) {
  std::vector<std::string> notes;
  for (const auto& corpus : sources.corpora) {
    const std::string files = corpus->records().front().path;
    std::string note = vocabulary_note(corpus->vocabulary(), model, files);
    const bool is_known = std::find(notes.begin(), notes.end(), note) != notes.end();
    if (!note.empty() && !is_known) notes.push_back(std::move(note));
  }
  return notes;
}

void check_one_tokenizer(const std::vector<StageSources>& stages) {
  std::string known;
  for (const StageSources& stage : stages) {
    for (const auto& corpus : stage.sources->corpora) {
      if (known.empty()) known = corpus->vocabulary().tokenizer();
    }
  }
  for (const StageSources& stage : stages) {
    for (const auto& corpus : stage.sources->corpora) {
      const std::string& own = corpus->vocabulary().tokenizer();
      if (own == known || (own.empty() && known != "bytes")) continue;
      throw InputError(
          {.where = stage.where,
           .reason = fmt::format("data of the tokenizer '{}' beside data of the tokenizer '{}'",
                                 own.empty() ? "unknown" : own, known),
           .accepted = "shards that one tokenizer made of all: python3 -m fp8lab.tokens FILE "
                       "--tokenizer FOLDER --out shards"});
    }
  }
}

MixtureSchedule::MixtureSchedule(const std::vector<double>& weights, std::uint64_t seed,
                                 std::uint32_t stream)
    : counts_(weights.size(), 0) {
  const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
  RandomSequence random(seed ^ (static_cast<std::uint64_t>(stream) << 40), kScheduleStream);
  for (const double weight : weights) {
    shares_.push_back(weight / sum);
    phases_.push_back(random.open_unit());
  }
}

std::size_t MixtureSchedule::next() {
  ++sequences_;
  std::size_t chosen = 0;
  double furthest = -1e300;
  for (std::size_t i = 0; i < shares_.size(); ++i) {
    const double due = shares_[i] * static_cast<double>(sequences_) + phases_[i];
    const double behind = due - static_cast<double>(counts_[i]);
    if (behind > furthest) {
      furthest = behind;
      chosen = i;
    }
  }
  ++counts_[chosen];
  return chosen;
}

void MixtureSchedule::seek(std::int64_t sequences) {
  std::fill(counts_.begin(), counts_.end(), 0);
  sequences_ = 0;
  while (sequences_ < sequences) next();
}

DataSources open_sources(const DataConfig& config, const ModelVocabulary& model,
                         const std::string& where, std::span<const ColumnSpec> columns) {
  DataSources sources;
  sources.form = config.form;
  for (const SourceConfig& source : config.sources) {
    // If the model has another tokenizer, report that before any error in the form of the bytes.
    const auto& paths = source.paths;
    if (source.kind != DataKind::tokens && model.tokenizer_folder().empty() &&
        std::all_of(paths.begin(), paths.end(), [](auto& path) { return is_file(path); })) {
      check_vocabulary(Vocabulary::bytes(), model, where, files_of(source));
    }
    sources.corpora.push_back(open_corpus(source, config.form, model.tokenizer_folder(), columns));
    sources.weights.push_back(source.weight);
    check_vocabulary(sources.corpora.back()->vocabulary(), model, where, files_of(source));
  }
  check_one_tokenizer({{where, &sources}});
  return sources;
}

void check_targets(const DataSources& sources, std::int64_t sequence_length,
                   const std::string& where) {
  // Running text continues in the next sequence, so none of its tokens is cut off.
  const bool cut = sources.form == DataForm::prompt_response;
  const auto gives_target = [&](const Corpus& corpus) {
    for (std::int64_t index = 0; index < corpus.size(); ++index) {
      const DocumentView document = corpus.document(index);
      const std::int64_t last =
          cut ? std::min(document.size - 1, sequence_length) : document.size - 1;
      for (std::int64_t token = 1; token <= last; ++token) {
        if (document.trained(token)) return true;
      }
    }
    return false;
  };
  for (const auto& corpus : sources.corpora) {
    if (gives_target(*corpus)) continue;
    const SourceRecord record = corpus->records().front();
    throw InputError(
        {.where = where,
         .reason = fmt::format("no token of {} can be trained on or scored: in all of its {} "
                               "documents the response begins after the first {} tokens",
                               record.path.empty() ? record.format : record.path, corpus->size(),
                               sequence_length),
         .accepted = "a larger sequence_length, or other data"});
  }
}

Mixture::Mixture(const DataSources& sources, std::uint64_t seed, std::uint32_t stream,
                 std::vector<ColumnSpec> columns)
    : corpora_(sources.corpora),
      schedule_(sources.weights, seed, stream),
      padding_(sources.vocabulary().padding()),
      columns_(std::move(columns)) {
  for (std::size_t i = 0; i < sources.corpora.size(); ++i) {
    datasets_.emplace_back(sources.corpora[i], sources.form, seed, stream_of(stream, i));
  }
}

Batch Mixture::next(std::int64_t sequences, std::int64_t sequence_length) {
  Batch batch = Batch::padded(sequences, sequence_length, padding_, columns_);
  chosen_.clear();
  for (std::int64_t s = 0; s < sequences; ++s) {
    chosen_.push_back(schedule_.next());
    datasets_[chosen_.back()].fill_sequence(batch, s);
  }
  for (const auto& corpus : corpora_) corpus->require_unchanged();
  return batch;
}

StreamPosition Mixture::position() const {
  StreamPosition position{schedule_.sequences(), {}};
  for (const Dataset& dataset : datasets_) position.cursors.push_back(dataset.cursor());
  return position;
}

void Mixture::seek(const StreamPosition& position) {
  const std::vector<DataCursor>& cursors = position.cursors;
  if (cursors.size() != datasets_.size()) {
    throw Error(fmt::format("checkpoint positions of {} sources do not fit a stage of {}",
                            cursors.size(), datasets_.size()));
  }
  for (std::size_t i = 0; i < datasets_.size(); ++i) datasets_[i].seek(cursors[i]);
  schedule_.seek(position.sequences);
}

}  // namespace fp8lab
