// Which tokenizer the weights that a run or a command starts from were trained with.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "src/data/model_vocabulary.hpp"
#include "src/io/run_log.hpp"
#include "src/train/checkpoint_file.hpp"

namespace fp8lab {

/// The key of RunMeta::extra and of a checkpoint's metadata: as Vocabulary::tokenizer(), of the
/// weights; empty where nothing says it.
inline constexpr char kTokenizerKey[] = "tokenizer";

/// Of a model with `vocab_size` ids that starts from the checkpoint, Hugging Face folder or
/// safetensors file `start`; an empty path stands for random weights. A file that is missing says
/// nothing. Throws Error for a folder that names two tokenizers.
ModelVocabulary start_vocabulary(const std::filesystem::path& start, std::int64_t vocab_size);

/// Of a checkpoint called `origin`; `run` is what the run file beside it says, or null. Checkpoints
/// of older versions say nothing themselves: then the run's start or data do.
ModelVocabulary checkpoint_vocabulary(const CheckpointFile& checkpoint, const RunMeta* run,
                                      const std::string& origin, std::int64_t vocab_size);

/// What the run file in `folder` says, or nothing.
std::optional<RunMeta> run_meta_in(const std::filesystem::path& folder);

}  // namespace fp8lab
