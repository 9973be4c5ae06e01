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
/// interpreter of python_interpreter(). A cache folder is either complete or absent, and
/// its shards are verified by one full read before use; one process makes them while others wait.
/// Throws Error if the tokenizer refuses the text, a package is missing or a file changes
/// meanwhile, RuntimeFailure if the machine fails.
std::vector<std::filesystem::path> text_shards(const std::filesystem::path& file, DataKind kind,
                                               const std::filesystem::path& folder);

/// The tokenizer of prompts: the tokenizer.json of a folder and the chat template beside it.
struct PromptTokenizer {
  std::filesystem::path folder;
  /// The token before every document, -1 for none; empty: as tokenizer_config.json states.
  std::optional<std::int32_t> begin;
};

/// A prompt and its location: {"prompt": text}, or {"messages": [...]} with optional "tools".
struct GivenPrompt {
  nlohmann::json record;
  std::string where;
};

/// Token ids of each prompt, and notes for the user.
struct PromptIds {
  std::vector<std::vector<std::int32_t>> ids;
  std::vector<std::string> notes;
};

/// Returns the token ids of prompts. Special tokens are recognised. A text gets the begin token of
/// documents, unless it starts with that token or with the special token that starts a chat of the
/// template. Messages are rendered by the template, followed by the generation prompt. Throws as
/// text_shards does; the message begins with the prompt's location.
PromptIds prompt_ids(const std::vector<GivenPrompt>& prompts, const PromptTokenizer& tokenizer);

/// Returns the vocabulary of the tokenizer of `folder`, from its token_bytes.json, from the cache,
/// or newly made; a vocabulary of `size` ids without text if the tokenizer has no bytes. Throws
/// under the conditions of text_shards.
Vocabulary folder_vocabulary(const std::filesystem::path& folder, std::int64_t size);

}  // namespace fp8lab
