// Text in a model's own tokenizer: python3 -m fp8lab.tokens as a child, and a cache of its shards.
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

/// What the ids of the tokenizer of `folder` say, from its token_bytes.json, the cache, or made;
/// one of `size` ids without text where the tokenizer has no bytes. Throws as text_shards.
Vocabulary folder_vocabulary(const std::filesystem::path& folder, std::int64_t size);

}  // namespace fp8lab
