// Tokenizes text with a model's own tokenizer: runs python3 -m fp8lab.tokens and caches its shards.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "src/config/config.hpp"
#include "src/data/vocabulary.hpp"

namespace fp8lab {

/// Returns the folder of the cache: $FP8LAB_CACHE, else $XDG_CACHE_HOME/fp8lab, else
/// ~/.cache/fp8lab. Throws Error if none of them is set.
std::filesystem::path cache_folder();

/// Returns the token shards of `file`, of kind text or jsonl, made with the tokenizer.json and chat
/// template of `folder`; token_bytes.json lies beside them if the tokenizer has bytes. The shards
/// come from the cache, under the hash of everything that determines them, or are made with the
/// interpreter $FP8LAB_PYTHON (default: python3). A cache folder is either complete or absent, and
/// its shards are verified by one full read before use; one process makes them while others wait.
/// Throws Error if the tokenizer refuses the text, a package is missing or a file changes
/// meanwhile, RuntimeFailure if the machine fails.
std::vector<std::filesystem::path> text_shards(const std::filesystem::path& file, DataKind kind,
                                               const std::filesystem::path& folder);

/// Returns the ids of each text as the beginning of a document (after the begin token, if there is
/// one), encoded by the tokenizer of `folder`. Throws under the conditions of text_shards.
std::vector<std::vector<std::int32_t>> text_ids(const std::vector<std::string>& texts,
                                                const std::filesystem::path& folder);

/// Returns the vocabulary of the tokenizer of `folder`, from its token_bytes.json, from the cache,
/// or newly made; a vocabulary of `size` ids without text if the tokenizer has no bytes. Throws
/// under the conditions of text_shards.
Vocabulary folder_vocabulary(const std::filesystem::path& folder, std::int64_t size);

}  // namespace fp8lab
