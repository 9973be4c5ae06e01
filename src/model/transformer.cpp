#include "src/model/transformer.hpp"

#include <algorithm>

namespace fp8lab {

Transformer::Transformer(Backend& backend, const Parameters& parameters, const ModelConfig& model,
                         const Recipe& recipe, const BatchShape& shape, Purpose purpose)
    : model_(model),
      decoder_(model),
      work_(backend, parameters, decoder_.declaration(), model, recipe, shape, purpose),
      argmax_(backend.allocate(DType::i32, 1, shape.tokens())) {}

KvCache Transformer::make_cache(std::int64_t sequences, std::int64_t capacity) {
  FP8LAB_ASSERT(capacity <= shape().sequence_length);
  Backend& backend = work_.backend();
  KvStorage storage{work_.activation(), work_.activation()};
  const AttentionOperands* const attention = work_.attention();
  if (attention != nullptr && attention->quantizes_forward()) {
    attention->check_cache();
    const QuantSpec &k = attention->spec(AttentionSlot::k), &v = attention->spec(AttentionSlot::v);
    storage.keys = backend.storage(k.storage());
    storage.values = backend.storage(v.storage());
    const bool has_scales = k.scale_source == ScaleSource::current;
    if (has_scales) storage.key_scales = k.scale_cols(model_.num_key_value_heads * model_.head_dim);
  }
  return KvCache(backend, model_, storage, sequences, capacity);
}

void Transformer::load(const Batch& batch) {
  enter(Phase::load);
  work_.load(batch);
}

void Transformer::load(const CachedBatch& batch, const KvCache& cache) {
  enter(Phase::load);
  work_.load(batch, cache);
}

void Transformer::enter(Phase phase) {
  Backend& backend = work_.backend();
  backend.enter(backend.label().in_phase(phase));
}

void Transformer::prepare_weights(const StepContext& context) {
  enter(Phase::weights);
  work_.enter(PassPhase::weights);
  for (const auto& linear : linears()) linear->prepare_weights(context);
}

void Transformer::forward(const StepContext& context) {
  enter(Phase::forward);
  work_.begin_pass(context);
  decoder_.forward(work_);
  if (work_.outputs() > 0 && !has_chunks()) decoder_.head_forward(work_, whole());
}

void Transformer::for_each_chunk(bool is_differentiated,
                                 const std::function<void(const LogitChunk&)>& objective) {
  for (const Decoder::Chunk& chunk : decoder_.chunks(work_)) {
    enter(Phase::forward);
    if (has_chunks()) decoder_.head_forward(work_, chunk);
    objective({chunk.first, decoder_.logits(work_, chunk), decoder_.token_losses(work_, chunk),
               chunk.first + chunk.count == work_.outputs()});
    if (!has_chunks() || !is_differentiated) continue;
    enter(Phase::backward);
    decoder_.head_backward(work_, chunk);
  }
}

void Transformer::backward(const StepContext& context) {
  enter(Phase::backward);
  work_.begin_pass(context);
  if (!has_chunks()) decoder_.head_backward(work_, whole());
  decoder_.backward(work_);
}

TensorView Transformer::logits() const {
  FP8LAB_ASSERT(!has_chunks());
  return decoder_.logits(work_, whole());
}

TensorView Transformer::token_losses() const { return decoder_.token_losses(work_, whole()); }

TensorView Transformer::argmax() {
  const TensorView best = argmax_.columns(0, work_.outputs());
  work_.run(ops::Argmax{logits(), best});
  return best;
}

std::vector<NamedOperands> Transformer::operand_sets() const {
  std::vector<NamedOperands> sets;
  for (const auto& linear : linears()) sets.push_back({linear->name(), &linear->operands()});
  std::int64_t layer = 0;
  for (const auto& of_layer : attention_operands()) {
    sets.push_back({attention_name(layer++), of_layer.get()});
  }
  return sets;
}

void Transformer::update_delayed_scales() {
  Backend& backend = work_.backend();
  for (const auto& [name, operands] : operand_sets()) {
    const LabelScope scope(backend, backend.label().in_layer(name));
    operands->update_delayed_scales();
  }
}

void Transformer::end_step() {
  for (const NamedOperands& set : operand_sets()) set.operands->end_step();
}

void Transformer::repeat(std::size_t part, const std::string& settings,
                         const std::function<void()>& enqueue) {
  // The first steps of a history enqueue other operations than later steps.
  const std::vector<NamedOperands> sets = operand_sets();
  const bool varies = std::any_of(sets.begin(), sets.end(), [](const NamedOperands& set) {
    return set.operands->is_warming_up();
  });
  if (varies) return enqueue();
  Part& kept = parts_[part];
  if (kept.settings != settings) kept = {settings, nullptr};
  work_.backend().repeat(kept.recorded, enqueue);
}

void Transformer::discard_amaxes() {
  for (const NamedOperands& set : operand_sets()) set.operands->discard_amaxes();
}

std::vector<std::uint8_t> Transformer::without_history() const {
  std::vector<std::uint8_t> flags;
  for (const auto& linear : linears()) {
    const OperandSet& operands = linear->operands();
    for (const OperandId id : operands.ids()) {
      flags.push_back(operands.is_without_history(id) ? 1 : 0);
    }
  }
  return flags;
}

bool Transformer::has_quantized_operands() const {
  if (work_.attention() != nullptr && work_.attention()->quantizes_forward()) return true;
  return std::any_of(linears().begin(), linears().end(), [](const auto& linear) {
    return linear->recipe().slot(Slot::fprop_x).is_cast() ||
           linear->recipe().slot(Slot::fprop_w).is_cast();
  });
}

bool Transformer::has_delayed_scales() const {
  for (const NamedOperands& set : operand_sets()) {
    for (const TensorView& state : set.operands->delayed_states()) {
      if (!state.empty()) return true;
    }
  }
  return false;
}

}  // namespace fp8lab
