#include "src/model/work.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <iterator>
#include "emulation/base/input_error.hpp"

namespace fp8lab {
namespace {

struct Extent {
  std::int64_t rows, cols;
};

Extent extent_of(const SavedDeclaration& declaration, std::int64_t tokens) {
  switch (declaration.shape) {
    case SavedDeclaration::Shape::activation: return {tokens, declaration.extent};
    case SavedDeclaration::Shape::row: return {1, tokens * declaration.extent};
    case SavedDeclaration::Shape::planes: return {declaration.extent, tokens};
  }
  return {0, 0};
}

std::string shared_name(const SavedDeclaration& declaration) { return "saved." + declaration.name; }

}  // namespace

Work::Work(Backend& backend, const Parameters& parameters, const Declaration& declaration,
           const ModelConfig& model, const Recipe& recipe, const BatchShape& shape, Purpose purpose)
    : backend_(backend),
      parameters_(parameters),
      declaration_(declaration),
      shape_(shape),
      activation_(backend.storage(recipe.activation_dtype)),
      workspace_(backend) {
  if (shape_.sequence_length > model.max_position_embeddings) {
    throw InputError({.key = "sequence_length",
                      .found = fmt::to_string(shape_.sequence_length),
                      .accepted = fmt::format("at most {}, the model's max_position_embeddings",
                                              model.max_position_embeddings)});
  }
  const std::size_t before = backend_.memory_bytes();
  build_linears(model, recipe, purpose);
  operand_bytes_ = backend_.memory_bytes() - before;
  find_needed();
  if (purpose == Purpose::training) {
    saved_activations_.emplace(backend_, workspace_, declaration_,
                               SavedActivationsPlan{.recipe = recipe,
                                                    .is_read = is_needed_,
                                                    .recompute = shape_.memory.recompute,
                                                    .tokens = shape_.tokens(),
                                                    .activation = activation_});
  }
  if (!recipe.attention.empty()) {
    attention_.emplace(backend_, workspace_, declaration_, model,
                       AttentionPlan{.recipe = recipe.attention,
                                     .extents = {.sequence = shape_.sequence_length,
                                                 .head_dim = model.head_dim,
                                                 .q_tile = shape_.attention.q_tile,
                                                 .kv_tile = shape_.attention.kv_tile},
                                     .values = recipe.activation_dtype,
                                     .tokens = shape_.tokens(),
                                     .recompute = shape_.memory.recompute,
                                     .purpose = purpose});
  }
  allocate_activations(purpose == Purpose::training);
  allocate_tokens();
  if (model.positions == PositionKind::rope) {
    rotary_ = make_rotary_tables(backend_, model, shape_.sequence_length);
  }
}

std::optional<LiveRange> Work::live_range(std::size_t index, bool training) const {
  const SavedDeclaration& saved = declaration_.saved()[index];
  const PassPhase forward = forward_of(saved.block), backward = backward_of(saved.block);
  // The host reads the losses of tokens after a step.
  if (saved.block == Block::head && saved.shape == SavedDeclaration::Shape::activation) {
    return backward;
  }
  if (!training) return LiveRange::from_to(PassPhase::attention, PassPhase::head);
  LiveRange made = forward;
  if (is_remade(saved)) made = made | PassPhase::recompute;
  if (!is_needed_[index]) {
    return recomputes(saved.recomputed) ? made | PassPhase::recompute : made;
  }
  // Recomputed in every layer except the last, whose buffers are still valid.
  if (recomputes(saved.recomputed)) return LiveRange::from_to(forward, backward);
  if (is_remade(saved)) return made | backward;
  if (saved_activations_->has(SavedId{index})) {
    return saved_activations_->live_range(SavedId{index});
  }
  return std::nullopt;
}

void Work::find_needed() {
  is_needed_.assign(declaration_.saved().size(), true);
  for (std::size_t i = 0; i < linears_.size(); ++i) {
    const std::optional<SavedId>& x = declaration_.linears()[i].own_x;
    if (x && !linears_[i]->needs_x()) is_needed_[static_cast<std::size_t>(*x)] = false;
  }
}

void Work::allocate_activations(bool training) {
  const std::int64_t t = shape_.tokens();
  const std::vector<SavedDeclaration>& saved = declaration_.saved();
  const auto tokens_of = [&](std::size_t i) {
    return saved[i].in_chunks ? shape_.logit_rows() : t;
  };
  const auto dtype_of = [&](std::size_t i) {
    const bool is_activation = saved[i].shape == SavedDeclaration::Shape::activation;
    return is_activation ? activation_ : backend_.storage(DType::f32);
  };
  for (std::size_t i = 0; i < saved.size(); ++i) {
    const auto [rows, cols] = extent_of(saved[i], tokens_of(i));
    const std::optional<LiveRange> live = live_range(i, training);
    if (live) workspace_.reserve(shared_name(saved[i]), *live, dtype_of(i), rows, cols);
  }
  const auto exists = [&](const ScratchDeclaration& scratch) {
    return training || !scratch.in_training_only;
  };
  const auto type_of = [&](const ScratchDeclaration& scratch) {
    return scratch.is_f32 ? backend_.storage(DType::f32) : activation_;
  };
  for (const ScratchDeclaration& scratch : declaration_.scratch()) {
    if (exists(scratch)) {
      workspace_.reserve(scratch.name, scratch.live, type_of(scratch), t, scratch.cols);
    }
  }
  const std::size_t before = backend_.memory_bytes();
  workspace_.allocate();
  buffer_bytes_ = backend_.memory_bytes() - before;
  for (std::size_t i = 0; i < saved.size(); ++i) {
    const auto [rows, cols] = extent_of(saved[i], tokens_of(i));
    const std::optional<LiveRange> live = live_range(i, training);
    saved_.push_back({live ? workspace_.view(shared_name(saved[i]), *live, dtype_of(i), rows, cols)
                           : backend_.allocate(dtype_of(i), rows, cols),
                      live});
  }
  for (const ScratchDeclaration& scratch : declaration_.scratch()) {
    scratch_.push_back(exists(scratch) ? Placed{workspace_.view(scratch.name, scratch.live,
                                                                type_of(scratch), t, scratch.cols),
                                                scratch.live}
                                       : Placed{});
  }
}

void Work::allocate_tokens() {
  const std::int64_t t = shape_.tokens();
  const auto add = [&](const ColumnSpec& column) {
    columns_.push_back({column, backend_.allocate(column.type, 1, t)});
  };
  std::for_each(std::begin(kBatchColumns), std::end(kBatchColumns), add);
  std::for_each(shape_.columns.begin(), shape_.columns.end(), add);
  wanted_ = backend_.allocate(DType::i32, 1, t);
}

void Work::build_linears(const ModelConfig& model, const Recipe& recipe, Purpose purpose) {
  const auto layers = static_cast<int>(model.layer_count());
  for (const LinearDeclaration& linear : declaration_.linears()) {
    OperandLife life;
    life.owns_x = linear.own_x.has_value();
    const bool remakes_x = purpose == Purpose::training && linear.x_is_remakeable &&
                           recomputes_remakeable(recipe, declaration_);
    if (recomputes(linear.recomputed) || remakes_x) life.recomputed = linear.module;
    life.weights = shape_.memory.weight_codes;
    life.forward = forward_of(linear.block);
    life.backward = backward_of(linear.block);
    LinearRecipe of_layer = recipe.for_layer(linear.name, layers);
    for (GemmSpec& gemm : of_layer.gemms) gemm.alpha = linear.alpha;
    linears_.push_back(std::make_unique<Linear>(
        backend_, workspace_, linear.name, static_cast<std::uint32_t>(linears_.size()), of_layer,
        parameters_[linear.weight], linear.bias ? &parameters_[*linear.bias] : nullptr,
        linear.in_chunks ? shape_.logit_rows() : shape_.tokens(), purpose, life));
  }
}

void Work::begin_load(std::int64_t rows, std::int64_t outputs, const KvCache* cache) {
  rows_ = rows;
  outputs_ = outputs;
  cache_ = cache;
  for (LoadedColumn& column : columns_) column.is_loaded = false;
}

void Work::upload(std::string_view name, const TensorView& destination, const void* source) {
  const LabelScope scope(backend_, backend_.label().on_tensor(std::string(name)));
  backend_.upload(destination, source);
}

void Work::upload(const Columns& batch) {
  for (LoadedColumn& column : columns_) {
    if (!batch.has(column.spec)) continue;
    upload(column.spec.name, part_of(column), batch.data(column.spec));
    column.is_loaded = true;
  }
}

void Work::load(const Batch& batch) {
  FP8LAB_ASSERT(batch.sequences == shape_.sequences &&
                batch.sequence_length == shape_.sequence_length);
  begin_load(shape_.tokens(), shape_.tokens(), nullptr);
  upload(batch);
}

void Work::load(const CachedBatch& batch, const KvCache& cache) {
  begin_load(static_cast<std::int64_t>(batch[kTokens].size()),
             static_cast<std::int64_t>(batch.wanted.size()), &cache);
  FP8LAB_ASSERT(rows_ > 0 && rows_ <= shape_.tokens() && outputs_ <= rows_);
  FP8LAB_ASSERT(static_cast<std::int64_t>(batch.cached.size()) == cache.sequences());
  upload(batch);
  if (outputs_ > 0) upload("wanted tokens", wanted(), batch.wanted.data());
  upload("query starts", cache.query_start(), batch.query_start.data());
  upload("cached tokens", cache.cached(), batch.cached.data());
}

void Work::set_targets(const std::vector<std::int32_t>& targets) {
  FP8LAB_ASSERT(static_cast<std::int64_t>(targets.size()) == outputs_);
  Columns wanted;
  wanted.add(kTargets);
  wanted.add(kTargetWeights);
  wanted[kTargets] = targets;
  wanted[kTargetWeights].assign(targets.size(), 1.0f);
  upload(wanted);
}

TensorView Work::column(const ColumnSpec& spec) const {
  const auto found =
      std::find_if(columns_.begin(), columns_.end(),
                   [&](const LoadedColumn& column) { return column.spec.name == spec.name; });
  FP8LAB_ASSERT(found != columns_.end() && found->is_loaded);
  return part_of(*found);
}

TensorView Work::saved(SavedId id, std::int64_t first, std::int64_t tokens) const {
  const auto index = static_cast<std::size_t>(id);
  const SavedDeclaration& declaration = declaration_.saved()[index];
  const TensorView whole = memory_of(saved_[index]);
  const auto [rows, cols] = extent_of(declaration, tokens);
  if (declaration.shape == SavedDeclaration::Shape::activation) return whole.row_range(first, rows);
  return whole.columns(extent_of(declaration, first).cols, cols);
}

TensorView Work::saved_x(SavedId id, std::int64_t first, std::int64_t tokens) const {
  const auto index = static_cast<std::size_t>(id);
  if (is_needed_[index]) return saved(id, first, tokens);
  return TensorView::without_memory(activation_, tokens, declaration_.saved()[index].extent);
}

void Work::keep_activations(std::int64_t layer, Block block) {
  if (!saved_activations_) return;
  saved_activations_->for_each_kept(
      layer, block, [&](SavedId id) { saved_activations_->keep(context_, id, saved(id)); });
}

void Work::restore_activations(std::int64_t layer, PassPhase phase) {
  saved_activations_->for_each_restored(
      layer, phase, [&](SavedId id) { saved_activations_->restore(context_, id, saved(id)); });
}

std::span<const std::unique_ptr<OperandSet>> Work::activation_operands() const {
  if (!saved_activations_) return {};
  return saved_activations_->operands();
}

TensorView Work::scratch(ScratchId id, std::int64_t tokens) const {
  return memory_of(scratch_[static_cast<std::size_t>(id)]).row_range(0, tokens);
}

TensorView Work::memory_of(const Placed& placed) const {
  FP8LAB_ASSERT(!placed.live || workspace_.is_live(*placed.live));
  return placed.view;
}

}  // namespace fp8lab
