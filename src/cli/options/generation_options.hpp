// Options for prompts and sampling.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "emulation/base/input_error.hpp"
#include "src/cli/inputs/model_source.hpp"
#include "src/cli/options/options.hpp"
#include "src/config/config.hpp"
#include "src/data/vocabulary.hpp"

namespace fp8lab::cli {

/// Adds --prompt, --chat, --prompts, --vocabulary and --end.
void add_prompt_options(Options& options);

/// Adds --min-new-tokens, --temperature, --top-k, --top-p and --seed. `temperature` is the default,
/// `about_temperature` its help.
void add_sampling_options(Options& options, double temperature,
                          const std::string& about_temperature);

/// Returns the value of an option. Throws Error if it is not within [least, most].
template <class T>
T checked_value(const Values& values, const std::string& command, const char* option, T least,
                T most) {
  const T value = values[option].as<T>();
  if (value >= least && value <= most) return value;
  throw InputError({.where = command,
                    .key = fmt::format("--{}", option),
                    .found = fmt::to_string(value),
                    .accepted = fmt::format("{} to {}", least, most)});
}

/// Reads the sampling options. Throws Error for a value out of range, and for options without
/// effect at temperature 0.
SamplingConfig read_sampling(const Values& values, const std::string& command);

/// Returns the vocabulary of --vocabulary, else of the run's data, else of a folder that has one.
Vocabulary find_vocabulary(const Values& values, const ModelSource& source, const RunConfig& run,
                           const std::string& command);

/// Returns the token of --end, which must be below `vocab_size`, else the end
/// token of the vocabulary.
std::int32_t end_token(const Values& values, const std::string& command,
                       const Vocabulary& vocabulary, std::int64_t vocab_size);

/// Throws Error if --min-new-tokens exceeds `most`, the value of --max-new-tokens.
void check_shortest(const SamplingConfig& sampling, const std::string& command, std::int64_t most);

/// Prompts of the command line, then those of the file; texts and chats in the tokenizer of the
/// model's folder or beside the run's shards, else in bytes, with notes on standard error. Throws
/// Error for what is no prompt.
std::vector<std::vector<std::int32_t>> read_prompts(const Values& values, const ModelSource& source,
                                                    const RunConfig& run,
                                                    const std::string& command,
                                                    const Vocabulary& vocabulary);

}  // namespace fp8lab::cli
