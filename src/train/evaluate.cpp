#include "src/train/evaluate.hpp"

#include <algorithm>

#include "src/train/optimizer_step.hpp"

namespace fp8lab {
namespace {

constexpr std::uint32_t kEvaluationStream = 0xe7a1;

}  // namespace

Evaluator::Evaluator(Backend& backend, Transformer& transformer, const EvalConfig& config,
                     const DataSources& data)
    : backend_(backend),
      transformer_(transformer),
      config_(config),
      data_(data),
      scalars_(backend.allocate(backend.storage(DType::f32), 1, StepScalar::kCount)) {}

double Evaluator::held_out_loss(const StepContext& context) {
  Mixture mixture(data_, 0, kEvaluationStream);
  const BatchShape& shape = transformer_.shape();
  transformer_.prepare_weights(context);
  backend_.fill_zero(scalars_);
  std::int64_t tokens = 0;
  for (std::int64_t done = 0; done < config_.sequences; done += shape.sequences) {
    const Batch batch = mixture.next(shape.sequences, shape.sequence_length);
    tokens += batch.trained_tokens;
    transformer_.load(batch);
    transformer_.forward(context);
    transformer_.loss(scalars_, false);
  }
  transformer_.discard_amaxes();
  const double total = read_scalar(backend_, scalars_, StepScalar::kLossSum);
  return tokens > 0 ? total / static_cast<double>(tokens) : 0.0;
}

std::vector<Evaluator::Problem> Evaluator::choose_problems() const {
  const std::int64_t limit = transformer_.shape().sequence_length;
  std::vector<Problem> problems;
  for (const auto& corpus : data_.corpora) {
    for (std::int64_t i = 0; i < corpus->size(); ++i) {
      if (static_cast<std::int64_t>(problems.size()) == config_.exact_match) return problems;
      const DocumentView document = corpus->document(i);
      Problem problem;
      problem.prompt_length = prompt_length(document);
      if (problem.prompt_length + config_.max_new_tokens > limit) continue;
      for (std::int64_t j = 0; j < problem.prompt_length; ++j) {
        problem.tokens.push_back(document.token(j));
      }
      problem.expected = final_answer(corpus->reference(i));
      problems.push_back(std::move(problem));
    }
  }
  return problems;
}

void Evaluator::extend(const StepContext& context, std::vector<Problem*>& group,
                       std::int64_t slot) {
  const BatchShape& shape = transformer_.shape();
  const std::int64_t per_sequence = shape.sequence_length / slot;
  Batch batch(shape.sequences, shape.sequence_length, data_.vocabulary().padding());
  std::vector<std::size_t> last(group.size());
  for (std::size_t i = 0; i < group.size(); ++i) {
    const std::int64_t start = static_cast<std::int64_t>(i) % per_sequence * slot;
    const std::int64_t base = static_cast<std::int64_t>(i) / per_sequence * shape.sequence_length;
    const std::vector<std::int32_t>& tokens = group[i]->tokens;
    for (std::int64_t j = 0; j < slot; ++j) {
      const auto to = static_cast<std::size_t>(base + start + j);
      const auto from = static_cast<std::size_t>(j);
      if (from < tokens.size()) batch.tokens[to] = tokens[from];
      batch.positions[to] = static_cast<std::int32_t>(j);
      batch.document_start[to] = static_cast<std::int32_t>(start);
    }
    last[i] = static_cast<std::size_t>(base + start) + tokens.size() - 1;
  }
  transformer_.load(batch);
  transformer_.forward(context);
  std::vector<std::int32_t> best(static_cast<std::size_t>(shape.tokens()));
  backend_.download(best.data(), transformer_.argmax());
  for (std::size_t i = 0; i < group.size(); ++i) {
    const std::int32_t token = best[last[i]];
    group[i]->tokens.push_back(token);
    const auto generated =
        static_cast<std::int64_t>(group[i]->tokens.size()) - group[i]->prompt_length;
    group[i]->finished = token == data_.vocabulary().end() || generated >= config_.max_new_tokens;
  }
  group.erase(std::remove_if(group.begin(), group.end(),
                             [](const Problem* problem) { return problem->finished; }),
              group.end());
}

Evaluator::ExactMatch Evaluator::exact_match(const StepContext& context) {
  std::vector<Problem> problems = choose_problems();
  std::int64_t slot = 1;
  for (const Problem& problem : problems) {
    slot = std::max(slot, problem.prompt_length + config_.max_new_tokens);
  }
  const BatchShape& shape = transformer_.shape();
  const auto capacity = static_cast<std::size_t>(shape.sequence_length / slot * shape.sequences);
  transformer_.prepare_weights(context);
  std::vector<Problem*> group;
  std::size_t next = 0;
  while (next < problems.size() || !group.empty()) {
    while (group.size() < capacity && next < problems.size()) group.push_back(&problems[next++]);
    extend(context, group, slot);
  }
  transformer_.discard_amaxes();
  ExactMatch result;
  for (const Problem& problem : problems) {
    const std::vector<std::int32_t> generated(problem.tokens.begin() + problem.prompt_length,
                                              problem.tokens.end());
    const std::string answer = final_answer(data_.vocabulary().decode(generated));
    ++result.asked;
    if (!problem.expected.empty() && answer == problem.expected) ++result.correct;
  }
  return result;
}

}  // namespace fp8lab
