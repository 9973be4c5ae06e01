#include "src/evaluation/evaluator.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "emulation/base/input_error.hpp"
#include "src/data/documents.hpp"
#include "src/evaluation/held_out.hpp"
#include "src/evaluation/sharpness.hpp"

namespace fp8lab {
namespace {

/// Returns the names of all sources; equal names get their index in the mixture appended.
std::vector<std::string> source_names(const DataSources& data) {
  std::vector<std::string> names;
  for (const auto& corpus : data.corpora) names.push_back(corpus->records().front().name);
  const std::vector<std::string> plain = names;
  for (std::size_t i = 0; i < names.size(); ++i) {
    if (std::count(plain.begin(), plain.end(), plain[i]) > 1) names[i] += fmt::format("#{}", i + 1);
  }
  return names;
}

/// Sum of the losses of one source's tokens.
struct LossSum {
  double nats = 0;
  std::int64_t tokens = 0;
  std::vector<std::int32_t> targets;  ///< kept if ids can be decoded to text
};

HeldOutLoss::Source summarise(std::string name, const Corpus& corpus, const LossSum& sum) {
  HeldOutLoss::Source source{std::move(name), sum.tokens,
                             sum.nats / static_cast<double>(sum.tokens)};
  if (!corpus.vocabulary().has_text()) return source;
  const std::size_t bytes = corpus.vocabulary().decode(sum.targets).size();
  if (bytes > 0) source.bits_per_byte = sum.nats / std::log(2.0) / static_cast<double>(bytes);
  return source;
}

/// Adds the tokens of a batch from `begin` on that have a target, a few rows of logits at a time.
void add_tokens(Backend& backend, const TensorView& logits, const Batch& batch, std::int64_t begin,
                Sharpness& sharpness) {
  constexpr std::int64_t kValues = std::int64_t{1} << 22;
  const auto& weights = batch[kTargetWeights];
  const auto& targets = batch[kTargets];
  const std::int64_t together = std::max<std::int64_t>(1, kValues / logits.cols);
  std::vector<float> values;
  for (std::int64_t first = 0; first < logits.rows; first += together) {
    const std::int64_t rows = std::min(together, logits.rows - first);
    values.resize(static_cast<std::size_t>(rows * logits.cols));
    download_floats(backend, logits.row_range(first, rows), values);
    const auto token_of = [&](std::int64_t row) {
      return static_cast<std::size_t>(begin + first + row);
    };
    std::vector<Sharpness::Token> measured(static_cast<std::size_t>(rows));
#pragma omp parallel for schedule(dynamic)
    for (std::int64_t row = 0; row < rows; ++row) {
      if (weights[token_of(row)] == 0.0f) continue;
      const auto at = static_cast<std::size_t>(row * logits.cols);
      measured[static_cast<std::size_t>(row)] = sharpness.measure(
          {values.data() + at, static_cast<std::size_t>(logits.cols)}, targets[token_of(row)]);
    }
    for (std::int64_t row = 0; row < rows; ++row) {
      if (weights[token_of(row)] == 0.0f) continue;
      sharpness.add(measured[static_cast<std::size_t>(row)]);
    }
  }
}

void check_lengths(const std::vector<Question>& questions, const std::string& file,
                   std::int64_t sequence_length) {
  for (std::size_t i = 0; i < questions.size(); ++i) {
    const std::size_t prompt = questions[i].prompt.size();
    for (const Choice& choice : questions[i].choices) {
      const auto inputs = static_cast<std::int64_t>(prompt + choice.tokens.size()) - 1;
      if (inputs <= sequence_length) continue;
      throw InputError({.where = file,
                        .noun = fmt::format("question {}", i + 1),
                        .reason = fmt::format("with a choice has {} tokens", inputs + 1),
                        .accepted = fmt::format("at most {}, one more than sequence_length",
                                                sequence_length + 1)});
    }
  }
}

/// Returns the keys of `config` that ask prompts, "exact_match and rollout".
std::string asking_keys(const EvalConfig& config, bool compare) {
  std::vector<std::string> keys;
  if (config.exact_match > 0) keys.emplace_back("exact_match");
  if (config.pass_at_k) keys.emplace_back("pass_at_k");
  if (config.rollout && !compare) keys.emplace_back("rollout");
  return fmt::format("{}", fmt::join(keys, " and "));
}

/// Throws Error if no reference can be compared with an answer.
void require_final_answers(const EvalConfig& config, const DataSources& data,
                           const std::string& where) {
  for (const auto& corpus : data.corpora) {
    for (std::int64_t i = 0; i < corpus->size(); ++i) {
      if (!final_answer(corpus->reference(i)).empty()) return;
    }
  }
  throw InputError(
      {.where = where,
       .reason = fmt::format("{} cannot judge an answer: it compares what follows the last "
                             "\"####\", as in GSM8K, and no answer of {} has one",
                             asking_keys(config, true), fmt::join(source_names(data), ", ")),
       .accepted = "answers that end with \"#### RESULT\", in a chat its last message of the "
                   "assistant; without results, the held-out loss alone (exact_match = 0, no "
                   "pass_at_k) or multiple_choice"});
}

/// Throws Error if no prompt leaves room for an answer.
void require_problems(const EvalConfig& config, const DataSources& data,
                      std::int64_t sequence_length, const std::string& where) {
  const std::string keys = asking_keys(config, false);
  if (keys.empty() || !problems_of(config, data, sequence_length).empty()) return;
  throw InputError({.where = where,
                    .reason = fmt::format("{} asks nothing: no prompt of {} leaves room for "
                                          "max_new_tokens = {} in the {} tokens of a sequence",
                                          keys, fmt::join(source_names(data), ", "),
                                          config.max_new_tokens, sequence_length),
                    .accepted = "smaller max_new_tokens, or a larger sequence_length"});
}

}  // namespace

std::vector<Score> scores_of(const Evaluation& evaluation) {
  std::vector<Score> scores;
  for (const HeldOutLoss::Source& source : evaluation.held_out.sources) {
    scores.push_back({"loss/" + source.name, source.loss, source.tokens});
    if (source.bits_per_byte < 0) continue;
    scores.push_back({"bits_per_byte/" + source.name, source.bits_per_byte, source.tokens});
  }
  if (const auto& phi = evaluation.held_out.sharpness) {
    std::int64_t tokens = 0;
    for (const HeldOutLoss::Source& source : evaluation.held_out.sources) tokens += source.tokens;
    scores.push_back({"sharpness", *phi, tokens});
  }
  if (const auto& pass = evaluation.pass_at_k) {
    for (const PassAtK::Estimate& estimate : pass->estimates) {
      scores.push_back({fmt::format("pass@{}", estimate.k), estimate.value, pass->problems});
    }
  }
  if (const auto& choices = evaluation.multiple_choice) {
    scores.push_back({"choice/sum", choices->sum, choices->questions});
    scores.push_back({"choice/per_token", choices->per_token, choices->questions});
    if (choices->per_byte >= 0) {
      scores.push_back({"choice/per_byte", choices->per_byte, choices->questions});
    }
  }
  if (const auto& gap = evaluation.rollout) {
    scores.push_back({"rollout/gap_mean", gap->mean, gap->tokens});
    scores.push_back({"rollout/gap_largest", gap->largest, gap->tokens});
    scores.push_back({"rollout/k3", gap->k3, gap->tokens});
    scores.push_back({"rollout/clipped_share", gap->clipped_share, gap->tokens});
    scores.push_back({"rollout/clipped_mean", gap->clipped_mean, gap->tokens});
    for (const RolloutGap::Bucket& part : gap->buckets) {
      scores.push_back({fmt::format("rollout/k3/{}", part.first), part.k3, part.tokens});
    }
  }
  return scores;
}

EvaluationInputs read_evaluation_inputs(const EvalConfig& config, const DataSources& data,
                                        const ModelConfig& model, std::int64_t sequence_length,
                                        const std::string& where, const RecipeTexts& recorded) {
  EvaluationInputs inputs;
  if (config.exact_match > 0 || config.pass_at_k) require_final_answers(config, data, where);
  require_problems(config, data, sequence_length, where);
  if (!config.multiple_choice.empty()) {
    inputs.questions = read_questions(config.multiple_choice, data.vocabulary(), model.vocab_size);
    check_lengths(inputs.questions.questions, config.multiple_choice.string(), sequence_length);
  }
  if (config.rollout && !config.rollout->recipe.empty()) {
    inputs.rollout_recipe = load_recipe(config.rollout->recipe, recorded);
  }
  return inputs;
}

std::vector<Problem> problems_of(const EvalConfig& config, const DataSources& data,
                                 std::int64_t limit) {
  std::int64_t most = config.exact_match;
  if (config.pass_at_k) most = std::max(most, config.pass_at_k->problems);
  if (config.rollout) most = std::max(most, config.rollout->prompts);
  if (most == 0) return {};
  return choose_problems(data, most, config.max_new_tokens, limit);
}

EvaluationTexts texts_of(const EvalConfig& config, const DataSources& data,
                         const std::vector<Problem>& problems) {
  EvaluationTexts texts{2, data.vocabulary().padding()};
  for (const Problem& problem : problems) {
    const auto length = static_cast<std::int64_t>(problem.prompt.size());
    texts.longest = std::max(texts.longest, length + config.max_new_tokens);
  }
  return texts;
}

EvaluationMemory::EvaluationMemory(Backend& backend, const Parameters& parameters,
                                   Transformer& transformer, const EvalConfig& config,
                                   const EvaluationTexts& texts, const Recipe* rollout_recipe,
                                   const std::atomic<bool>* stop)
    : scalars(backend.allocate(backend.storage(DType::f32), 1, StepScalar::kCount)),
      scorer(backend, transformer, texts.padding, stop) {
  const auto make_generator = [&](Transformer& model, std::int64_t prompts) {
    const std::int64_t sequences = std::clamp<std::int64_t>(
        std::min({prompts, kDecodedTogether, kCachedTokens / texts.longest}), 1,
        transformer.shape().logit_rows());
    return std::make_unique<Generator>(backend, model, sequences, texts.longest, stop);
  };
  std::int64_t together = config.exact_match;
  if (const auto& pass = config.pass_at_k) {
    together = std::max(together, pass->problems * pass->samples);
  }
  const bool own = rollout_recipe != nullptr;
  if (config.rollout && !own) together = std::max(together, config.rollout->prompts);
  if (together > 0) generator = make_generator(transformer, together);
  if (!own) return;
  rollout_model = make_rollout_model(backend, parameters, transformer, *rollout_recipe);
  rollout_generator = make_generator(*rollout_model, config.rollout->prompts);
}

Evaluator::Evaluator(Backend& backend, const Parameters& parameters, Transformer& transformer,
                     const EvalConfig& config, const DataSources& data,
                     const EvaluationInputs& inputs, const std::atomic<bool>* stop)
    : backend_(backend),
      parameters_(parameters),
      transformer_(transformer),
      config_(config),
      data_(data),
      stop_(stop),
      inputs_(inputs),
      problems_(problems_of(config, data, transformer.shape().sequence_length)),
      memory_(backend, parameters, transformer, config_, texts_of(config, data, problems_),
              inputs.rollout_recipe ? &*inputs.rollout_recipe : nullptr, stop) {}

GenerationConfig Evaluator::generation(const SamplingConfig& sampling) const {
  return {sampling, config_.max_new_tokens, data_.vocabulary().end(), false};
}

std::vector<Prompt> Evaluator::prompts(std::int64_t problems, std::int64_t samples) const {
  std::vector<Prompt> result;
  const std::size_t count = std::min(problems_.size(), static_cast<std::size_t>(problems));
  for (std::size_t i = 0; i < count; ++i) {
    for (std::int64_t sample = 0; sample < samples; ++sample) {
      result.push_back(
          {problems_[i].prompt, static_cast<std::uint32_t>(i), static_cast<std::uint32_t>(sample)});
    }
  }
  return result;
}

Evaluation Evaluator::evaluate(const StepContext& context, bool complete) {
  try {
    Evaluation evaluation = measure(context, complete);
    transformer_.discard_amaxes();
    return evaluation;
  } catch (const EvaluationStopped&) {
    transformer_.discard_amaxes();
    throw;
  }
}

Evaluation Evaluator::measure(const StepContext& context, bool complete) {
  transformer_.prepare_weights(context);
  Evaluation evaluation;
  evaluation.held_out = held_out_loss(context);
  if (complete) {
    if (config_.exact_match > 0) evaluation.exact_match = exact_match(context);
    if (config_.pass_at_k) evaluation.pass_at_k = pass_at_k(context);
    if (const auto& questions = inputs_.questions.questions; !questions.empty()) {
      evaluation.multiple_choice = score_questions(context, memory_.scorer, questions, report_);
    }
    if (config_.rollout) evaluation.rollout = rollout(context);
  }
  return evaluation;
}

HeldOutLoss Evaluator::held_out_loss(const StepContext& context) {
  const bool has_text = data_.vocabulary().has_text();
  std::vector<LossSum> sums(data_.corpora.size());
  Sharpness sharpness(config_.sharpness);
  HeldOutPass pass{backend_, transformer_, memory_.scalars, data_, config_.sequences, stop_};
  pass.report = report_;
  if (config_.sharpness > 0.0) {
    pass.look = [&](const Batch& batch, const Transformer::LogitChunk& chunk) {
      add_tokens(backend_, chunk.logits, batch, chunk.first, sharpness);
    };
  }
  HeldOutLoss result;
  const std::vector<std::string> names = source_names(data_);
  DocumentSums documents;
  const HeldOutLosses losses = pass.run(context, [&](const HeldOutToken& token) {
    if (!std::isfinite(token.loss)) {
      if (!result.nonfinite) result.nonfinite = {0, names[token.source], token.document};
      ++result.nonfinite->tokens;
    }
    LossSum& sum = sums[token.source];
    sum.nats += token.loss;
    ++sum.tokens;
    if (has_text) sum.targets.push_back(token.target);
    documents.add(token);
  });
  result.mean = losses.mean;
  result.text = losses.text;
  result.documents = documents.documents();
  for (std::size_t i = 0; i < sums.size(); ++i) {
    if (sums[i].tokens == 0) continue;
    result.sources.push_back(summarise(names[i], *data_.corpora[i], sums[i]));
  }
  if (config_.sharpness > 0.0) result.sharpness = sharpness.phi();
  return result;
}

ExactMatch Evaluator::exact_match(const StepContext& context) {
  SamplingConfig greedy;
  greedy.temperature = 0.0;
  const std::vector<Completion> completions = memory_.generator->generate(
      context, prompts(config_.exact_match, 1), generation(greedy), report_);
  ExactMatch result;
  for (std::size_t i = 0; i < completions.size(); ++i) {
    ++result.asked;
    result.right += is_right(problems_[i], completions[i].tokens, data_.vocabulary()) ? 1 : 0;
  }
  return result;
}

PassAtK Evaluator::pass_at_k(const StepContext& context) {
  const PassAtKConfig& config = *config_.pass_at_k;
  const std::vector<Prompt> asked = prompts(config.problems, config.samples);
  const std::vector<Completion> completions =
      memory_.generator->generate(context, asked, generation(config.sampling), report_);
  std::vector<std::int64_t> right(problems_.size(), 0);
  for (std::size_t i = 0; i < completions.size(); ++i) {
    const std::uint32_t problem = asked[i].problem;
    const bool correct = is_right(problems_[problem], completions[i].tokens, data_.vocabulary());
    right[problem] += correct ? 1 : 0;
  }
  PassAtK result;
  result.problems = static_cast<std::int64_t>(asked.size()) / config.samples;
  for (const std::int64_t k : config.k) {
    double sum = 0;
    for (std::int64_t i = 0; i < result.problems; ++i) {
      sum += fp8lab::pass_at_k(config.samples, right[static_cast<std::size_t>(i)], k);
    }
    const auto problems = static_cast<double>(std::max<std::int64_t>(result.problems, 1));
    result.estimates.push_back({k, sum / problems});
  }
  return result;
}

RolloutGap Evaluator::rollout(const StepContext& context) {
  const RolloutConfig& config = *config_.rollout;
  GenerationConfig how = generation(config.sampling);
  how.log_probabilities = true;
  if (memory_.rollout_model != nullptr) memory_.rollout_model->prepare_weights(context);
  Generator& generator =
      memory_.rollout_model != nullptr ? *memory_.rollout_generator : *memory_.generator;
  const std::vector<Prompt> asked = prompts(config.prompts, 1);
  const std::vector<Completion> completions = generator.generate(context, asked, how, report_);
  std::vector<ScoredText> texts;
  for (std::size_t i = 0; i < asked.size(); ++i) {
    ScoredText text{asked[i].tokens, static_cast<std::int64_t>(asked[i].tokens.size())};
    const std::vector<std::int32_t>& tokens = completions[i].tokens;
    text.tokens.insert(text.tokens.end(), tokens.begin(), tokens.end());
    texts.push_back(std::move(text));
  }
  const std::vector<std::vector<double>> training =
      memory_.scorer.score(context, texts, Packing::tiles, report_);
  std::vector<RolloutTokens> compared;
  for (std::size_t i = 0; i < texts.size(); ++i) {
    compared.push_back({completions[i].log_probabilities, training[i]});
  }
  return measure_gap(compared, config.clip, config.bucket);
}

}  // namespace fp8lab
