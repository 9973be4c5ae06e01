// Text in a model's own tokenizer: python3 -m fp8lab.tokens as a child, and a cache of its shards.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "src/config/config.hpp"
#include "src/data/vocabulary.hpp"

namespace fp8lab {

/// Where shards are kept: $FP8LAB_CACHE, else $XDG_CACHE_HOME/fp8lab, else ~/.cache/fp8lab. Throws
/// Error when none of them is set.
std::filesystem::path cache_folder();

/// The token shards of `file`, of the kind text or jsonl, made with the tokenizer.json and chat
/// template of `folder`; token_bytes.json lies beside them where the tokenizer has bytes. They are
/// taken from the cache, under the hash of all that they follow from, or made by the interpreter
/// $FP8LAB_PYTHON (default: python3). A folder of the cache is there whole or not at all, and its
/// shards are read once from end to end before they count; one process makes it while others wait.
/// Throws Error for what the tokenizer refuses, a package that is missing and a file that changes
/// meanwhile, RuntimeFailure when the machine fails.
std::vector<std::filesystem::path> text_shards(const std::filesystem::path& file, DataKind kind,
                                               const std::filesystem::path& folder);

/// Ids of each text, as a document begins (with the begin token, where there is one), by the
/// tokenizer of `folder`. Throws as text_shards.
std::vector<std::vector<std::int32_t>> text_ids(const std::vector<std::string>& texts,
                                                const std::filesystem::path& folder);

/// What the ids of the tokenizer of `folder` say, from its token_bytes.json, the cache, or made;
/// one of `size` ids without text where the tokenizer has no bytes. Throws as text_shards.
Vocabulary folder_vocabulary(const std::filesystem::path& folder, std::int64_t size);

}  // namespace fp8lab
