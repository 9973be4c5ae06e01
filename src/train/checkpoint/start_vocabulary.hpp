// The tokenizer with which initial weights were trained.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "src/data/model_vocabulary.hpp"
#include "src/io/hdf5/run_log.hpp"
#include "src/train/checkpoint/checkpoint_file.hpp"
#include "src/train/run_record.hpp"

namespace fp8lab {

/// Returns the vocabulary of the weights in `start`: a checkpoint, a Hugging Face folder or a
/// safetensors file with `vocab_size` ids; an empty path means random weights. A missing file gives
/// no tokenizer. Throws Error for a folder that names two tokenizers.
ModelVocabulary start_vocabulary(const std::filesystem::path& start, std::int64_t vocab_size);

/// Returns the vocabulary of a checkpoint called `origin`. `run`: metadata of the run file beside
/// it, or null, and `places` those of its files. For checkpoints of older versions, which do not
/// name a tokenizer, the run's initial weights or data decide. The folder with the tokenizer.json
/// is the Hugging Face folder that the run started from, or the first that holds that very
/// tokenizer: beside its training data, those of the last stage first, where `places` looks for
/// files of the run, or those of the run that it started from.
ModelVocabulary checkpoint_vocabulary(const CheckpointFile& checkpoint, const RunMeta* run,
                                      const RunPlaces& places, const std::string& origin,
                                      std::int64_t vocab_size);

/// Returns the metadata of the run file in `folder`, or nothing.
std::optional<RunMeta> run_meta_in(const std::filesystem::path& folder);

}  // namespace fp8lab
