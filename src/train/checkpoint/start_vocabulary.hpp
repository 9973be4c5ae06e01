// Which tokenizer the weights that a run or a command starts from were trained with.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "src/data/model_vocabulary.hpp"
#include "src/io/hdf5/run_log.hpp"
#include "src/train/checkpoint/checkpoint_file.hpp"
#include "src/train/run_record.hpp"

namespace fp8lab {

/// Of a model with `vocab_size` ids that starts from the checkpoint, Hugging Face folder or
/// safetensors file `start`; an empty path stands for random weights. A file that is missing says
/// nothing. Throws Error for a folder that names two tokenizers.
ModelVocabulary start_vocabulary(const std::filesystem::path& start, std::int64_t vocab_size);

/// Of a checkpoint called `origin`; `run` is what the run file beside it says, or null, and
/// `folder` the Hugging Face folder that it started from, or empty. Checkpoints of older versions
/// say nothing themselves: then the run's start or data do.
ModelVocabulary checkpoint_vocabulary(const CheckpointFile& checkpoint, const RunMeta* run,
                                      const std::filesystem::path& folder,
                                      const std::string& origin, std::int64_t vocab_size);

/// What the run file in `folder` says, or nothing.
std::optional<RunMeta> run_meta_in(const std::filesystem::path& folder);

}  // namespace fp8lab
