// Tokenizes text with a model's own tokenizer: runs python3 -m fp8lab.tokens and caches its shards.
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
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

/// What makes ids of prompts: the tokenizer.json in a folder, and the chat template beside it.
struct PromptTokenizer {
  std::filesystem::path folder;
  /// The token before every document, -1 for none; nothing: what tokenizer_config.json says.
  std::optional<std::int32_t> begin;
};

/// Something to complete: {"prompt": text}, or {"messages": [...]} and perhaps "tools", and where
/// it is given.
struct GivenPrompt {
  nlohmann::json record;
  std::string where;
};

/// Ids of each prompt, and what is to be said of them.
struct PromptIds {
  std::vector<std::vector<std::int32_t>> ids;
  std::vector<std::string> notes;
};

/// Special tokens in prompts are recognised. A text begins as a document does, unless it begins
/// with the begin token, or as a chat of the template does; messages are what the template says,
/// with the generation prompt behind them. Throws as text_shards, with where a prompt was given.
PromptIds prompt_ids(const std::vector<GivenPrompt>& prompts, const PromptTokenizer& tokenizer);

/// Returns the vocabulary of the tokenizer of `folder`, from its token_bytes.json, from the cache,
/// or newly made; a vocabulary of `size` ids without text if the tokenizer has no bytes. Throws
/// under the conditions of text_shards.
Vocabulary folder_vocabulary(const std::filesystem::path& folder, std::int64_t size);

}  // namespace fp8lab
