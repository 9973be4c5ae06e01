#include "src/train/watch/place.hpp"

#include <type_traits>
#include <utility>
#include <variant>

namespace fp8lab {
namespace {

template <class... Calls>
struct Overloads : Calls... {
  using Calls::operator()...;
};
template <class... Calls>
Overloads(Calls...) -> Overloads<Calls...>;  // for Clang before 17

/// "layers.3" of "layers.3.mlp.down"; empty for what is in no layer.
std::string block_of(const std::string& name) {
  constexpr std::string_view kLayers = "layers.";
  if (!name.starts_with(kLayers)) return {};
  return name.substr(0, name.find('.', kLayers.size()));
}

/// The key of an operation that quantizes; null for others.
const RandomKey* key_of(const AnyOperation& op) {
  return std::visit(
      Overloads{[](const ops::Quantize* quantize) { return &quantize->key; },
                [](const ops::QuantizeBoth* quantize) { return &quantize->key; },
                [](const ops::ProduceQuantize* quantize) { return &quantize->key; },
                [](const ops::Dequantize* back) { return &std::as_const(back->operand).key; },
                [](const auto*) -> const RandomKey* { return nullptr; }},
      op);
}

/// Whether `operand` is the tensor's second orientation. Its own key does not tell: where both are
/// made in one pass, it is that of the pass.
bool is_second(const AnyOperation& op, const QuantizedOperand& operand) {
  return std::visit(
      Overloads{[&](const ops::QuantizeBoth* both) { return &operand == &both->second; },
                [&](const ops::ProduceQuantize* both) { return &operand == both->second; },
                [](const ops::Quantize* one) { return one->key.orientation != 0; },
                [](const auto*) { return false; }},
      op);
}

/// The parameter, state or gradient that tells whose operation it is.
const void* subject_of(const AnyOperation& op) {
  return std::visit(
      Overloads{
          [](const ops::EmbeddingForward* e) -> const void* { return e->table.data; },
          [](const ops::EmbeddingBackward* e) -> const void* { return e->dtable.data; },
          [](const ops::RmsNormForward* n) -> const void* { return n->weight.data; },
          [](const ops::RmsNormBackward* n) -> const void* { return n->weight.data; },
          [](const ops::LayerNormForward* n) -> const void* { return n->weight.data; },
          [](const ops::LayerNormBackward* n) -> const void* { return n->weight.data; },
          [](const ops::AddRmsNormForward* n) -> const void* { return n->norm.weight.data; },
          [](const ops::AddLayerNormForward* n) -> const void* { return n->norm.weight.data; },
          [](const ops::RmsNormBackwardAdd* n) -> const void* { return n->norm.weight.data; },
          [](const ops::LayerNormBackwardAdd* n) -> const void* { return n->norm.weight.data; },
          [](const ops::BiasBackward* b) -> const void* { return b->dbias.data; },
          [](const ops::Add* a) -> const void* { return a->sum.data; },
          [](const ops::AdamW* a) -> const void* { return a->tensors.master.data; },
          [](const ops::StoreState* s) -> const void* { return s->state.codes.data; },
          [](const ops::LoadState* l) -> const void* { return l->state.codes.data; },
          [](const ops::AdvanceMoments* a) -> const void* { return a->gradient.data; },
          [](const ops::Orthogonalize* o) -> const void* { return o->gradient.data; },
          [](const ops::UpdateWeights* u) -> const void* { return u->master.data; },
          [](const ops::UpdateDelayedScale* u) -> const void* { return u->state.data; },
          [](const ops::MeasureOperand* m) -> const void* { return m->record.data; },
          [](const ops::MeasureBoth* m) -> const void* { return m->first_record.data; },
          [](const ops::SmoothingFactors* s) -> const void* { return s->factors.data; },
          [](const auto*) -> const void* { return nullptr; }},
      op);
}

/// Where that of an operation on a state is memory that many share: what is stored, or loaded.
const void* other_subject_of(const AnyOperation& op) {
  return std::visit(
      Overloads{[](const ops::StoreState* s) -> const void* { return s->source.data; },
                [](const ops::LoadState* l) -> const void* { return l->destination.data; },
                [](const auto*) -> const void* { return nullptr; }},
      op);
}

/// What modules without parameters are called within their layer.
const char* module_of(const AnyOperation& op) {
  return std::visit(
      Overloads{[](const ops::Rope*) { return ".attention"; },
                [](const ops::AttentionForward*) { return ".attention"; },
                [](const ops::AttentionBackward*) { return ".attention"; },
                [](const ops::SwigluForward*) { return ".mlp"; },
                [](const ops::SwigluBackward*) { return ".mlp"; },
                [](const ops::GeluForward*) { return ".mlp"; },
                [](const ops::GeluBackward*) { return ".mlp"; }, [](const auto*) { return ""; }},
      op);
}

template <class... Ops>
bool is_one_of(const AnyOperation& op) {
  return (std::holds_alternative<const Ops*>(op) || ...);
}

}  // namespace

std::string_view name_of(Phase phase) {
  switch (phase) {
    case Phase::stress: return "stress";
    case Phase::load: return "load";
    case Phase::weights: return "weights";
    case Phase::forward: return "forward";
    case Phase::backward: return "backward";
    case Phase::update: return "update";
  }
  return "?";
}

std::string kind_of(const AnyOperation& op) {
  return std::visit(Overloads{[](const ops::ProduceQuantize* both) {
                                return std::visit(
                                           [](const auto& made) { return std::string(made.kName); },
                                           both->producer) +
                                       " and quantize";
                              },
                              [](const auto* other) { return std::string(other->kName); }},
                    op);
}

PlaceTracker::PlaceTracker(const Parameters& parameters, const Transformer& transformer) {
  for (const Work::LoadedColumn& column : transformer.columns()) {
    columns_[column.memory.data] = column.spec.name;
  }
  for (const Parameter& parameter : parameters.all()) {
    // Muon updates the parts of a fused matrix one after another.
    const auto add = [&](const TensorView& matrix) {
      std::int64_t first = 0;
      parameters_[matrix.data] = parameter.name();
      if (parameter.declaration.is_vector) return;
      for (const OutputGroup& group : parameter.declaration.groups) {
        parameters_[matrix.row_range(first, group.rows).data] = parameter.name();
        first += group.rows;
      }
    };
    add(parameter.master());
    for (const TensorView* view : {&parameter.working(), &parameter.tensors.first_moment.codes,
                                   &parameter.tensors.second_moment.codes}) {
      if (!view->empty()) parameters_[view->data] = parameter.name();
    }
    for (const Parameters::GradientSet& gradients : parameters.gradient_sets()) {
      const TensorView& gradient = gradients[parameter.index];
      if (!gradient.empty()) add(gradient);
    }
  }
  const auto& declared = parameters.declaration().linears();
  const std::vector<std::unique_ptr<Linear>>& linears = transformer.linears();
  for (std::size_t i = 0; i < linears.size(); ++i) {
    const Parameter& weight = parameters[declared[i].weight];
    linears_.push_back(linears[i]->name());
    weights_[weight.master().data] = weights_[weight.working().data] = i;
    for (const Parameters::GradientSet& gradients : parameters.gradient_sets()) {
      if (weight.is_trained()) gradients_[gradients[weight.index].data] = i;
    }
    for (std::int64_t slot = 0; slot < linears[i]->statistics().rows; ++slot) {
      states_[linears[i]->statistics().row_range(slot, 1).data] = linears[i]->name();
    }
    for (const TensorView& state : linears[i]->delayed_states()) {
      if (!state.empty()) states_[state.data] = linears[i]->name();
    }
    for (const TensorView& factors : linears[i]->smoothing_factors()) {
      if (!factors.empty()) states_[factors.data] = linears[i]->name();
    }
  }
}

std::string PlaceTracker::layer_of(const AnyOperation& op) const {
  if (const RandomKey* key = key_of(op)) return linears_.at(linear_of(*key));
  const void* const subject = subject_of(op);
  for (const void* const of : {subject, other_subject_of(op)}) {
    if (const auto found = parameters_.find(of); found != parameters_.end()) return found->second;
  }
  if (const auto found = states_.find(subject); found != states_.end()) return found->second;
  return {};
}

const std::string* PlaceTracker::stressed(const AnyOperation& op) const {
  const void* const written =
      std::visit(Overloads{[](const Upload* u) -> const void* { return u->destination.data; },
                           [](const ops::Copy* c) -> const void* { return c->destination.data; },
                           [](const auto*) -> const void* { return nullptr; }},
                 op);
  const auto found = parameters_.find(written);
  return found == parameters_.end() ? nullptr : &found->second;
}

Place PlaceTracker::next(const AnyOperation& op) {
  if (const std::string* const parameter = stressed(op)) {
    return {place_.micro_batch, Phase::stress, *parameter, {}};
  }
  if (is_one_of<Upload>(op)) {
    if (place_.phase == Phase::backward) ++place_.micro_batch;
    place_.phase = Phase::load;
  } else if (is_one_of<ops::StoreState, ops::AccumulateSquareSum, ops::BeginUpdate,
                       ops::UpdateDelayedScale>(op)) {
    place_.phase = Phase::update;
  } else if (place_.phase == Phase::load && place_.micro_batch == 0) {
    place_.phase = Phase::weights;
  }
  if (is_one_of<ops::EmbeddingForward>(op)) place_.phase = Phase::forward;
  Place place = place_;
  if (is_one_of<ops::CrossEntropy>(op)) place_.phase = Phase::backward;
  if (const auto* const* product = std::get_if<const ops::Product*>(&op)) {
    const ops::Product& p = **product;
    if (const auto to = gradients_.find(p.gemm.d.data); to != gradients_.end()) {
      place.layer = linears_[to->second];
      place.gemm = gemm_role_name(GemmRole::wgrad);
    } else if (const auto by = weights_.find(p.b_source.data); by != weights_.end()) {
      place.layer = linears_[by->second];
      place.gemm = gemm_role_name(p.transpose_b ? GemmRole::dgrad : GemmRole::fprop);
    }
  } else {
    place.layer = layer_of(op);
  }
  const bool belongs_to_none = is_one_of<Upload, ops::CrossEntropy, ops::AccumulateSquareSum,
                                         ops::BeginUpdate, ops::HashTensors>(op);
  if (!place.layer.empty()) {
    last_ = place.layer;
  } else if (const std::string block = block_of(last_); !belongs_to_none && !block.empty()) {
    place.layer = block + module_of(op);
  }
  return place;
}

std::string PlaceTracker::part_of(const AnyOperation& op, const OperationOutput& output) const {
  const RandomKey* const key = key_of(op);
  if (key == nullptr) return {};
  const Tensor tensor = tensor_of(*key);
  if (output.operand == nullptr) {
    return output.name == "delayed state" ? tensor_name(tensor) : std::string();
  }
  return slot_name(is_second(op, *output.operand) ? second_orientation(tensor)
                                                  : first_orientation(tensor));
}

std::string_view PlaceTracker::uploaded(const AnyOperation& op) const {
  if (!is_one_of<Upload>(op) || stressed(op) != nullptr) return {};
  const TensorView& view = std::get<const Upload*>(op)->destination;
  const auto column = columns_.find(view.data);
  if (column != columns_.end()) return column->second;
  return view.dtype == DType::i32 ? "step number" : "step scalars";
}

}  // namespace fp8lab
