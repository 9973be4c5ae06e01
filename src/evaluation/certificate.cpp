#include "src/evaluation/certificate.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <tuple>
#include <utility>

#include "emulation/base/error.hpp"
#include "emulation/base/input_error.hpp"
#include "emulation/spec/row_locality.hpp"
#include "src/evaluation/scorer.hpp"

namespace fp8lab {
namespace {

constexpr double kClip = 2.0;
constexpr const char* kTraining = "training";
constexpr const char* kGeneration = "generation";

/// Sentences about layers; each is listed once, with the layers it applies to.
class Reasons {
 public:
  void add(const std::string& sentence, const std::string& layer) {
    const auto found = std::find_if(entries_.begin(), entries_.end(),
                                    [&](const Entry& entry) { return entry.sentence == sentence; });
    if (found == entries_.end()) {
      entries_.push_back({sentence, {layer}});
      return;
    }
    std::vector<std::string>& layers = found->layers;
    if (std::find(layers.begin(), layers.end(), layer) == layers.end()) layers.push_back(layer);
  }
  std::vector<std::string> take() const {
    std::vector<std::string> sentences;
    for (const Entry& entry : entries_) {
      const std::size_t layers = entry.layers.size();
      const std::string more = layers > 1 ? fmt::format(" and {} more", layers - 1) : "";
      sentences.push_back(fmt::format("{} ({}{})", entry.sentence, entry.layers.front(), more));
    }
    return sentences;
  }

 private:
  struct Entry {
    std::string sentence;
    std::vector<std::string> layers;
  };
  std::vector<Entry> entries_;
};

void add_mixing(const Transformer& model, Reasons& reasons) {
  constexpr Slot kSlot = Slot::fprop_x;
  for (const auto& linear : model.linears()) {
    const QuantSpec& spec = linear->recipe().slot(kSlot);
    std::string why = row_mixing(spec);
    if (spec.scale_source == ScaleSource::delayed && linear->operands().is_warming_up()) {
      why = "its delayed scale is in its warm-up and taken from the whole tensor";
    }
    if (why.empty()) continue;
    reasons.add(fmt::format("{}, {}: {}", slot_name(kSlot), label(spec), why), linear->name());
  }
}

/// Describes everything that determines the bits of an operand of the forward pass.
std::string words_of(const QuantSpec& spec, Slot slot) {
  const bool is_master = is_weight(slot) && spec.weight_source == WeightSource::master;
  return label(spec) + (is_master ? " of the master weights" : "");
}

/// The same of an operand of attention, which is the same in all layers.
std::string words_of(const Transformer& model, AttentionSlot slot) {
  const auto operands = model.attention_operands();
  if (operands.empty()) return "as it is";
  const OperandId id{static_cast<std::size_t>(slot)};
  const QuantSpec& spec = operands.front()->declaration(id).spec;
  return spec.is_cast() ? label(spec) : "as it is";
}

void add_differences(const Transformer& training, const Transformer& generation, Reasons& reasons) {
  for (std::size_t i = 0; i < training.linears().size(); ++i) {
    const Linear& a = *training.linears()[i];
    const LinearRecipe &trained = a.recipe(), &generated = generation.linears()[i]->recipe();
    const auto add = [&](const std::string& what, const std::string& left,
                         const std::string& right) {
      if (left == right) return;
      reasons.add(fmt::format("{} is {} in training and {} in generation", what, left, right),
                  a.name());
    };
    for (const Slot slot : {Slot::fprop_x, Slot::fprop_w}) {
      add(slot_name(slot), words_of(trained.slot(slot), slot),
          words_of(generated.slot(slot), slot));
    }
    add("the GEMM fprop", label(trained.gemm(GemmRole::fprop)),
        label(generated.gemm(GemmRole::fprop)));
  }
  for (const AttentionSlot slot :
       {AttentionSlot::q, AttentionSlot::k, AttentionSlot::v, AttentionSlot::p}) {
    const std::string left = words_of(training, slot), right = words_of(generation, slot);
    if (left == right) continue;
    reasons.add(
        fmt::format("{} is {} in training and {} in generation", name_of(slot), left, right),
        "attention");
  }
}

/// Log-probabilities of completions, token by token.
using Scores = std::vector<std::vector<double>>;

struct Decoded {
  Scores scores;
  std::int64_t chosen_otherwise = 0;
};

void append(Scores from, Scores& to) {
  to.insert(to.end(), std::make_move_iterator(from.begin()), std::make_move_iterator(from.end()));
}

class Certifier {
 public:
  Certifier(Backend& backend, Transformer& training, Transformer& generation,
            const StepContext& context, const std::vector<Prompt>& prompts,
            const CertificateConfig& config, const PartReport& report)
      : backend_(backend),
        training_(training),
        generation_(generation),
        context_(context),
        prompts_(prompts),
        config_(config),
        report_(report),
        decoded_(config.ways.size()) {
    check();
    for (const Prompt& prompt : prompts_) {
      const auto length = static_cast<std::int64_t>(prompt.tokens.size());
      capacity_ = std::max(capacity_, length + config_.max_new_tokens);
    }
  }

  Certificate run() {
    Scorer trained(backend_, training_, config_.padding);
    Scorer generated(backend_, generation_, config_.padding);
    training_.prepare_weights(context_);
    generation_.prepare_weights(context_);
    for (const SamplingConfig& sampling : config_.samplings) {
      const std::vector<ScoredText> texts = decode_all(sampling);
      const auto score = [&](Scorer& scorer, Packing packing) {
        return scorer.score(context_, texts, packing, next_part("scoring whole sequences"));
      };
      append(score(trained, Packing::tiles), trained_);
      append(score(generated, Packing::tiles), whole_);
      append(score(trained, Packing::documents), packed_);
    }
    training_.discard_amaxes();
    generation_.discard_amaxes();
    return compare_all();
  }

 private:
  void check() const {
    FP8LAB_ASSERT(!config_.ways.empty() && !config_.samplings.empty());
    const auto count = static_cast<std::int64_t>(prompts_.size());
    for (const DecodingWay& way : config_.ways) {
      if (way.together >= 1 && way.together <= count &&
          way.together <= generation_.shape().logit_rows()) {
        continue;
      }
      throw InputError(
          {.where = name_of(way),
           .reason = fmt::format("there are {} sequences, and one pass takes {} tokens", count,
                                 generation_.shape().logit_rows())});
    }
  }

  /// Returns the report of the next part, as a share of all: every way to decode and three ways to
  /// score the same tokens, for each sampling.
  PartReport next_part(const std::string& name) {
    const GenerationConfig longest{{}, config_.max_new_tokens};
    const std::size_t tokens = Generator::most_tokens(prompts_, longest);
    const std::size_t before = tokens * parts_++;
    const std::size_t all = tokens * config_.samplings.size() * (config_.ways.size() + 3);
    return [this, name, tokens, before, all](const std::string&, std::size_t done,
                                             std::size_t total, const char*) {
      if (report_) report_(name, before + done * tokens / total, all, "tokens");
    };
  }

  std::vector<Completion> decode(const DecodingWay& way, const SamplingConfig& sampling,
                                 const std::vector<Prompt>& prompts) {
    const std::size_t mark = backend_.memory_mark();
    std::vector<Completion> completions;
    {
      Generator generator(backend_, generation_, way.together, capacity_);
      completions = generator.generate(
          context_, prompts,
          {sampling, config_.max_new_tokens, config_.end, true, way.prefill_chunk},
          next_part(fmt::format("decoding {} sequences, {}", prompts.size(), name_of(way))));
    }
    backend_.release_to(mark);
    return completions;
  }

  /// Decodes in every way, and returns the texts that the first way chose.
  std::vector<ScoredText> decode_all(const SamplingConfig& sampling) {
    std::vector<Prompt> prompts = prompts_;
    std::vector<ScoredText> texts;
    for (std::size_t way = 0; way < config_.ways.size(); ++way) {
      std::vector<Completion> completions = decode(config_.ways[way], sampling, prompts);
      for (std::size_t i = 0; i < prompts.size(); ++i) {
        Completion& completion = completions[i];
        decoded_[way].chosen_otherwise += completion.chosen_otherwise;
        decoded_[way].scores.push_back(std::move(completion.log_probabilities));
        if (way > 0) continue;
        ScoredText text{prompts[i].tokens, static_cast<std::int64_t>(prompts[i].tokens.size())};
        text.tokens.insert(text.tokens.end(), completion.tokens.begin(), completion.tokens.end());
        texts.push_back(std::move(text));
        prompts[i].given = std::move(completion.tokens);
      }
    }
    return texts;
  }

  Comparison compare(const DecodingWay& way, const Decoded& decoded, const char* reference,
                     const Scores& full, bool must_be_exact) const {
    std::vector<RolloutTokens> tokens;
    for (std::size_t i = 0; i < full.size(); ++i) tokens.push_back({decoded.scores[i], full[i]});
    Comparison result;
    result.name = name_of(way);
    result.reference = reference;
    result.must_be_exact = must_be_exact;
    result.gap = measure_gap(tokens, kClip, config_.bucket);
    result.spread = spread_of(tokens);
    result.chosen_otherwise = decoded.chosen_otherwise;
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      const std::int64_t found = first_difference(tokens[i]);
      if (found < 0 || (result.first && result.first->position <= found)) continue;
      const Prompt& prompt = prompts_[i % prompts_.size()];
      const auto at = static_cast<std::size_t>(found);
      result.first = FirstDifference{found,
                                     prompt.problem,
                                     prompt.sample,
                                     config_.samplings[i / prompts_.size()].temperature,
                                     tokens[i].training[at],
                                     tokens[i].rollout[at]};
    }
    return result;
  }

  Certificate compare_all() const {
    Certificate result;
    result.pair = expect_same_bits(training_, generation_);
    result.generation = expect_same_bits(generation_);
    result.sequences = static_cast<std::int64_t>(trained_.size());
    for (std::size_t i = 0; i < config_.ways.size(); ++i) {
      const DecodingWay& way = config_.ways[i];
      result.training.push_back(
          compare(way, decoded_[i], kTraining, trained_, result.pair.is_exact()));
      result.whole.push_back(
          compare(way, decoded_[i], kGeneration, whole_, result.generation.is_exact()));
    }
    result.packed = compare(config_.ways.front(), decoded_.front(), kTraining, packed_, false);
    return result;
  }

  Backend& backend_;
  Transformer &training_, &generation_;
  StepContext context_;
  const std::vector<Prompt>& prompts_;
  const CertificateConfig& config_;
  const PartReport& report_;
  std::size_t parts_ = 0;  ///< begun
  std::int64_t capacity_ = 0;
  std::vector<Decoded> decoded_;  ///< one entry per way to decode
  Scores trained_, whole_, packed_;
};

}  // namespace

Expectation expect_same_bits(const Transformer& model) {
  Reasons reasons;
  add_mixing(model, reasons);
  return {reasons.take()};
}

Expectation expect_same_bits(const Transformer& training, const Transformer& generation) {
  Reasons reasons;
  add_differences(training, generation, reasons);
  add_mixing(generation, reasons);
  add_mixing(training, reasons);
  return {reasons.take()};
}

std::string name_of(const DecodingWay& way) {
  const std::string name = fmt::format("batch {}", way.together);
  return way.prefill_chunk == 0
             ? name
             : fmt::format("{}, prefill in chunks of {}", name, way.prefill_chunk);
}

bool Certificate::holds() const { return !worst().fails(); }

bool Certificate::is_exact() const { return worst().is_exact(); }

const Comparison& Certificate::worst() const {
  const auto weight = [](const Comparison& comparison) {
    return std::tuple(comparison.fails(),
                      !comparison.is_exact() && comparison.reference == kTraining,
                      comparison.gap.different, comparison.chosen_otherwise);
  };
  const Comparison* worst = &training.front();
  for (const auto* part : {&training, &whole}) {
    for (const Comparison& comparison : *part) {
      if (weight(comparison) > weight(*worst)) worst = &comparison;
    }
  }
  return *worst;
}

Certificate certify(Backend& backend, Transformer& training, Transformer& generation,
                    const StepContext& context, const std::vector<Prompt>& prompts,
                    const CertificateConfig& config, const PartReport& report) {
  return Certifier(backend, training, generation, context, prompts, config, report).run();
}

}  // namespace fp8lab
