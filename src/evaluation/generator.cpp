#include "src/evaluation/generator.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "emulation/base/error.hpp"
#include "emulation/base/input_error.hpp"
#include "src/objectives/objective.hpp"

namespace fp8lab {

Generator::Generator(Backend& backend, Transformer& transformer, std::int64_t sequences,
                     std::int64_t capacity, const std::atomic<bool>* stop)
    : backend_(backend),
      transformer_(transformer),
      cache_(transformer.make_cache(sequences, capacity)),
      scalars_(backend.allocate(backend.storage(DType::f32), 1, StepScalar::kCount)),
      slots_(static_cast<std::size_t>(sequences)),
      stop_(stop) {
  FP8LAB_ASSERT(sequences > 0 && sequences <= transformer.shape().logit_rows());
}

std::int64_t Generator::Slot::length() const {
  return static_cast<std::int64_t>(prompt->tokens.size() + completion->tokens.size());
}

std::int32_t Generator::Slot::token(std::int64_t position) const {
  const auto index = static_cast<std::size_t>(position);
  const std::size_t prompted = prompt->tokens.size();
  return index < prompted ? prompt->tokens[index] : completion->tokens[index - prompted];
}

void Generator::check(const std::vector<Prompt>& prompts) const {
  const std::int64_t vocabulary = transformer_.vocab_size();
  for (const Prompt& prompt : prompts) {
    const auto length = static_cast<std::int64_t>(prompt.tokens.size());
    if (length < 1 || length >= cache_.capacity()) {
      throw InputError(
          {.noun = fmt::format("prompt {}", prompt.problem),
           .reason = fmt::format("has {} tokens", length),
           .accepted = fmt::format("1 to {}, and room for new ones", cache_.capacity() - 1)});
    }
    for (const auto* tokens : {&prompt.tokens, &prompt.given}) {
      for (const std::int32_t token : *tokens) {
        if (token >= 0 && token < vocabulary) continue;
        throw InputError({.where = fmt::format("prompt {}", prompt.problem),
                          .noun = "token",
                          .found = fmt::to_string(token),
                          .reason = fmt::format("is not in the vocabulary of {}", vocabulary)});
      }
    }
  }
}

std::vector<Generator::Slot*> Generator::advance(const StepContext& context, std::int64_t chunk) {
  CachedBatch batch;
  std::vector<Slot*> complete;
  batch.query_start = {0};
  std::int64_t room = transformer_.shape().tokens();
  auto waiting = std::count_if(slots_.begin(), slots_.end(),
                               [](const Slot& slot) { return slot.prompt != nullptr; });
  for (Slot& slot : slots_) {
    batch.cached.push_back(static_cast<std::int32_t>(slot.cached));
    if (slot.prompt != nullptr) {
      --waiting;  // every later sequence needs room for at least one token
      std::int64_t count = std::min(slot.length() - slot.cached, room - waiting);
      if (chunk > 0) count = std::min(count, chunk);
      for (std::int64_t i = 0; i < count; ++i, ++slot.cached) {
        batch[kTokens].push_back(slot.token(slot.cached));
        batch[kPositions].push_back(static_cast<std::int32_t>(slot.cached));
      }
      room -= count;
      if (slot.cached == slot.length()) {
        batch.wanted.push_back(static_cast<std::int32_t>(batch[kTokens].size()) - 1);
        complete.push_back(&slot);
      }
    }
    batch.query_start.push_back(static_cast<std::int32_t>(batch[kTokens].size()));
  }
  transformer_.load(batch, cache_);
  transformer_.forward(context);
  return complete;
}

std::vector<std::int32_t> Generator::choose(const std::vector<Slot*>& slots,
                                            const GenerationConfig& config) {
  const auto count = static_cast<std::int64_t>(slots.size());
  std::vector<std::int32_t> tokens(slots.size());
  const SamplingConfig& sampling = config.sampling;
  if (sampling.temperature == 0.0 && sampling.min_new_tokens == 0) {
    backend_.download(tokens.data(), transformer_.argmax());
    return tokens;
  }
  const TensorView logits = transformer_.logits();
  std::vector<float> values(static_cast<std::size_t>(logits.size()));
  download_floats(backend_, logits, values);
  for (std::int64_t i = 0; i < count; ++i) {
    const Slot& slot = *slots[static_cast<std::size_t>(i)];
    const auto position = static_cast<std::uint32_t>(slot.completion->tokens.size());
    const bool may_end = position >= sampling.min_new_tokens;
    const auto width = static_cast<std::size_t>(logits.cols);
    tokens[static_cast<std::size_t>(i)] =
        choose_token(std::span(values).subspan(static_cast<std::size_t>(i) * width, width),
                     sampling, {sampling.seed, slot.prompt->problem, slot.prompt->sample, position},
                     may_end ? -1 : config.end);
  }
  return tokens;
}

void Generator::replace_by_given(const std::vector<Slot*>& slots,
                                 std::vector<std::int32_t>& tokens) {
  for (std::size_t i = 0; i < slots.size(); ++i) {
    const std::vector<std::int32_t>& given = slots[i]->prompt->given;
    if (given.empty()) continue;
    Completion& completion = *slots[i]->completion;
    const std::int32_t token = given[completion.tokens.size()];
    completion.chosen_otherwise += tokens[i] != token ? 1 : 0;
    tokens[i] = token;
  }
}

void Generator::accept(const std::vector<Slot*>& slots, const std::vector<std::int32_t>& tokens,
                       const GenerationConfig& config) {
  std::vector<float> losses(config.log_probabilities ? slots.size() : 0);
  if (config.log_probabilities) {
    transformer_.set_targets(tokens);
    likelihood().run(transformer_, scalars_, Leaves::logits);
    download_floats(backend_, transformer_.token_losses(), losses);
  }
  for (std::size_t i = 0; i < slots.size(); ++i) {
    Slot& slot = *slots[i];
    Completion& completion = *slot.completion;
    completion.tokens.push_back(tokens[i]);
    if (config.log_probabilities) {
      completion.log_probabilities.push_back(-static_cast<double>(losses[i]));
    }
    completion.ended = tokens[i] == config.end;
    const bool full = slot.length() == cache_.capacity();
    const auto made = static_cast<std::int64_t>(completion.tokens.size());
    const bool is_given = completion.tokens.size() == slot.prompt->given.size();
    if (completion.ended || full || is_given || made == config.max_new_tokens) slot = Slot{};
  }
}

std::size_t Generator::most_tokens(const Prompt& prompt, const GenerationConfig& config) {
  const std::size_t given = prompt.given.size();
  return prompt.tokens.size() +
         (given > 0 ? given : static_cast<std::size_t>(config.max_new_tokens));
}

std::size_t Generator::most_tokens(const std::vector<Prompt>& prompts,
                                   const GenerationConfig& config) {
  std::size_t tokens = 0;
  for (const Prompt& prompt : prompts) tokens += most_tokens(prompt, config);
  return tokens;
}

std::size_t Generator::tokens_left(const GenerationConfig& config) const {
  std::size_t tokens = 0;
  for (const Slot& slot : slots_) {
    if (slot.prompt == nullptr) continue;
    tokens += most_tokens(*slot.prompt, config) - static_cast<std::size_t>(slot.cached);
  }
  return tokens;
}

std::vector<Completion> Generator::generate(const StepContext& context,
                                            const std::vector<Prompt>& prompts,
                                            const GenerationConfig& config,
                                            const PartReport& report) {
  check(prompts);
  const std::string part = fmt::format("generating {} completions", prompts.size());
  const std::size_t most = most_tokens(prompts, config);
  std::fill(slots_.begin(), slots_.end(), Slot{});  // discards sequences of a stopped call
  std::vector<Completion> completions(prompts.size());
  std::size_t next = 0, begun = 0;  // `begun`: tokens of all prompts before `next`
  for (;;) {
    bool busy = false;
    for (Slot& slot : slots_) {
      if (slot.prompt == nullptr && next < prompts.size()) {
        slot = {&prompts[next], &completions[next], 0};
        begun += most_tokens(prompts[next], config);
        ++next;
      }
      busy = busy || slot.prompt != nullptr;
    }
    if (!busy) break;
    throw_if_raised(stop_);
    if (report) report(part, begun - tokens_left(config), most, "tokens");
    const std::vector<Slot*> complete = advance(context, config.prefill_chunk);
    if (complete.empty()) continue;
    std::vector<std::int32_t> tokens = choose(complete, config);
    replace_by_given(complete, tokens);
    accept(complete, tokens, config);
  }
  return completions;
}

}  // namespace fp8lab
