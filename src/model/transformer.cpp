#include "src/model/transformer.hpp"

#include <fmt/core.h>

#include "src/model/rope.hpp"

namespace fp8lab {
namespace {

enum LinearIndex : int { kQkv = 0, kO = 1, kGateUp = 2, kDown = 3, kLinearsPerLayer = 4 };

}  // namespace

std::vector<LinearShape> linear_shapes(const ModelConfig& model) {
  const std::int64_t hidden = model.hidden_size;
  const std::int64_t attention = model.num_attention_heads * model.head_dim;
  const std::int64_t qkv = attention + 2 * model.num_key_value_heads * model.head_dim;
  std::vector<LinearShape> shapes;
  for (std::int64_t i = 0; i < model.num_hidden_layers; ++i) {
    const std::string prefix = fmt::format("layers.{}.", i);
    shapes.push_back({prefix + "attention.qkv", hidden, qkv});
    shapes.push_back({prefix + "attention.o", attention, hidden});
    shapes.push_back({prefix + "mlp.gate_up", hidden, 2 * model.intermediate_size});
    shapes.push_back({prefix + "mlp.down", model.intermediate_size, hidden});
  }
  shapes.push_back({"lm_head", hidden, model.vocab_size});
  return shapes;
}

Transformer::Transformer(Backend& backend, const Parameters& parameters, const ModelConfig& model,
                         const Recipe& recipe, const BatchShape& shape, Purpose purpose)
    : backend_(backend),
      parameters_(parameters),
      model_(model),
      shape_(shape),
      activation_(backend.storage(recipe.activation_dtype)),
      workspace_(backend) {
  const std::size_t before = backend_.memory_bytes();
  build_layers(recipe, purpose);
  workspace_.allocate();
  operand_bytes_ = backend_.memory_bytes() - before;
  allocate_activations(purpose);
  build_rope_tables();
}

void Transformer::build_layers(const Recipe& recipe, Purpose purpose) {
  const auto layer_count = static_cast<int>(model_.num_hidden_layers);
  const auto add = [&](const Parameter& weight, std::size_t bias = LayerParameters::kNone) {
    const std::string name = linear_shapes(model_)[linears_.size()].name;
    linears_.push_back(std::make_unique<Linear>(
        backend_, workspace_, name, static_cast<std::uint32_t>(linears_.size()),
        recipe.for_layer(name, layer_count), weight,
        bias == LayerParameters::kNone ? nullptr : &parameters_[bias], shape_.tokens(), purpose));
  };
  for (std::int64_t i = 0; i < model_.num_hidden_layers; ++i) {
    const LayerParameters& layer = parameters_.layer(i);
    add(parameters_[layer.qkv], layer.qkv_bias);
    add(parameters_[layer.o], layer.o_bias);
    add(parameters_[layer.gate_up], layer.gate_up_bias);
    add(parameters_[layer.down], layer.down_bias);
  }
  add(parameters_.head());
}

Transformer::LayerActivations Transformer::allocate_layer() {
  const std::int64_t t = shape_.tokens(), c = model_.hidden_size, f = model_.intermediate_size;
  const std::int64_t attention = model_.num_attention_heads * model_.head_dim;
  const std::int64_t qkv = attention + 2 * model_.num_key_value_heads * model_.head_dim;
  const DType real = backend_.storage(DType::f32);
  const auto activation = [&](std::int64_t cols) {
    return backend_.allocate(activation_, t, cols);
  };
  LayerActivations layer;
  layer.input = activation(c);
  layer.norm1 = activation(c);
  layer.rstd1 = backend_.allocate(real, 1, t);
  layer.qkv = activation(qkv);
  if (model_.qk_norm) {
    layer.qk = activation(qkv - model_.num_key_value_heads * model_.head_dim);
    layer.q_rstd = backend_.allocate(real, 1, t * model_.num_attention_heads);
    layer.k_rstd = backend_.allocate(real, 1, t * model_.num_key_value_heads);
  }
  layer.attention = activation(attention);
  layer.lse = backend_.allocate(real, model_.num_attention_heads, t);
  layer.middle = activation(c);
  layer.norm2 = activation(c);
  layer.rstd2 = backend_.allocate(real, 1, t);
  layer.gate_up = activation(2 * f);
  layer.swiglu = activation(f);
  return layer;
}

Transformer::LayerActivations Transformer::LayerActivations::first_tokens(
    std::int64_t count) const {
  LayerActivations part = *this;
  if (count == input.rows) return part;
  const std::int64_t tokens = input.rows;
  for (TensorView LayerActivations::*matrix :
       {&LayerActivations::input, &LayerActivations::norm1, &LayerActivations::qkv,
        &LayerActivations::attention, &LayerActivations::middle, &LayerActivations::norm2,
        &LayerActivations::gate_up, &LayerActivations::swiglu, &LayerActivations::qk}) {
    if (!(part.*matrix).empty()) part.*matrix = (part.*matrix).row_range(0, count);
  }
  for (TensorView LayerActivations::*vector :
       {&LayerActivations::rstd1, &LayerActivations::rstd2, &LayerActivations::lse,
        &LayerActivations::q_rstd, &LayerActivations::k_rstd}) {
    const TensorView& whole = part.*vector;
    if (!whole.empty()) part.*vector = whole.columns(0, whole.cols / tokens * count);
  }
  return part;
}

void Transformer::allocate_activations(Purpose purpose) {
  const std::int64_t t = shape_.tokens(), c = model_.hidden_size, f = model_.intermediate_size;
  const std::int64_t attention = model_.num_attention_heads * model_.head_dim;
  const std::int64_t qkv = attention + 2 * model_.num_key_value_heads * model_.head_dim;
  const DType real = backend_.storage(DType::f32);
  const auto activation = [&](std::int64_t cols) {
    return backend_.allocate(activation_, t, cols);
  };
  tokens_ = backend_.allocate(DType::i32, 1, t);
  targets_ = backend_.allocate(DType::i32, 1, t);
  positions_ = backend_.allocate(DType::i32, 1, t);
  document_start_ = backend_.allocate(DType::i32, 1, t);
  argmax_ = backend_.allocate(DType::i32, 1, t);
  weights_ = backend_.allocate(DType::f32, 1, t);
  token_loss_ = backend_.allocate(real, 1, t);
  wanted_ = backend_.allocate(DType::i32, 1, t);
  // Without a backward pass every layer works in the same memory.
  for (std::int64_t i = 0; i < model_.num_hidden_layers; ++i) {
    const bool own = i == 0 || purpose == Purpose::training;
    layers_.push_back(own ? allocate_layer() : layers_.front());
  }
  final_input_ = activation(c);
  final_norm_ = activation(c);
  final_rstd_ = backend_.allocate(real, 1, t);
  logits_ = activation(model_.vocab_size);
  branch_ = activation(c);
  if (purpose == Purpose::inference) return;
  d_hidden_ = activation(c);
  d_branch_ = activation(c);
  d_qkv_ = activation(qkv);
  d_attention_ = activation(attention);
  d_gate_up_ = activation(2 * f);
  d_swiglu_ = activation(f);
}

void Transformer::build_rope_tables() {
  const std::int64_t positions = shape_.sequence_length, half = model_.head_dim / 2;
  if (positions > model_.max_position_embeddings) {
    throw Error(fmt::format("sequence_length {} exceeds the model's max_position_embeddings {}",
                            positions, model_.max_position_embeddings));
  }
  const auto [cosine, sine] = rope_tables(model_, positions);
  const DType real = backend_.storage(DType::f32);
  cosine_ = backend_.allocate(real, positions, half);
  sine_ = backend_.allocate(real, positions, half);
  if (real == DType::f64) {
    backend_.upload(cosine_, cosine.data());
    backend_.upload(sine_, sine.data());
  } else {
    const std::vector<float> cosine_f32(cosine.begin(), cosine.end());
    const std::vector<float> sine_f32(sine.begin(), sine.end());
    backend_.upload(cosine_, cosine_f32.data());
    backend_.upload(sine_, sine_f32.data());
  }
}

void Transformer::load(const Batch& batch) {
  FP8LAB_ASSERT(batch.sequences == shape_.sequences &&
                batch.sequence_length == shape_.sequence_length);
  backend_.upload(tokens_, batch.tokens.data());
  backend_.upload(targets_, batch.targets.data());
  backend_.upload(weights_, batch.weights.data());
  backend_.upload(positions_, batch.positions.data());
  backend_.upload(document_start_, batch.document_start.data());
  rows_ = outputs_ = shape_.tokens();
  cache_ = nullptr;
}

void Transformer::load(const CachedBatch& batch, const KvCache& cache) {
  rows_ = static_cast<std::int64_t>(batch.tokens.size());
  outputs_ = static_cast<std::int64_t>(batch.wanted.size());
  FP8LAB_ASSERT(rows_ > 0 && rows_ <= shape_.tokens() && outputs_ <= rows_);
  FP8LAB_ASSERT(static_cast<std::int64_t>(batch.cached.size()) == cache.sequences());
  cache_ = &cache;
  backend_.upload(tokens_.columns(0, rows_), batch.tokens.data());
  backend_.upload(positions_.columns(0, rows_), batch.positions.data());
  if (outputs_ > 0) backend_.upload(wanted_.columns(0, outputs_), batch.wanted.data());
  backend_.upload(cache.query_start(), batch.query_start.data());
  backend_.upload(cache.cached(), batch.cached.data());
}

void Transformer::set_targets(const std::vector<std::int32_t>& targets) {
  FP8LAB_ASSERT(static_cast<std::int64_t>(targets.size()) == outputs_);
  const std::vector<float> weights(targets.size(), 1.0f);
  backend_.upload(targets_.columns(0, outputs_), targets.data());
  backend_.upload(weights_.columns(0, outputs_), weights.data());
}

KvCache Transformer::make_cache(std::int64_t sequences, std::int64_t capacity) {
  FP8LAB_ASSERT(capacity <= shape_.sequence_length);
  return KvCache(backend_, model_, activation_, sequences, capacity);
}

void Transformer::prepare_weights(const StepContext& context) {
  for (const auto& layer : linears_) layer->prepare_weights(context);
}

AttentionShape Transformer::attention_shape() const {
  return {shape_.sequences,           shape_.sequence_length, model_.num_attention_heads,
          model_.num_key_value_heads, model_.head_dim,        shape_.attention.kv_tile,
          shape_.attention.q_tile};
}

Transformer::QkvViews Transformer::split(const TensorView& qkv) const {
  const std::int64_t q = model_.num_attention_heads * model_.head_dim;
  const std::int64_t kv = model_.num_key_value_heads * model_.head_dim;
  return {qkv.columns(0, q), qkv.columns(q, kv), qkv.columns(q + kv, kv)};
}

Transformer::QkvViews Transformer::attention_inputs(const LayerActivations& layer) const {
  QkvViews views = split(layer.qkv);
  if (!model_.qk_norm) return views;
  views.q = layer.qk.columns(0, views.q.cols);
  views.k = layer.qk.columns(views.q.cols, views.k.cols);
  return views;
}

void Transformer::normalise_heads(std::int64_t index) {
  const LayerActivations layer = activations(index);
  const LayerParameters& weights = parameters_.layer(index);
  const auto epsilon = static_cast<float>(model_.rms_norm_eps);
  const QkvViews from = split(layer.qkv), to = attention_inputs(layer);
  backend_.run(ops::RmsNormForward{from.q, parameters_[weights.q_norm].working(), epsilon, to.q,
                                   layer.q_rstd});
  backend_.run(ops::RmsNormForward{from.k, parameters_[weights.k_norm].working(), epsilon, to.k,
                                   layer.k_rstd});
}

void Transformer::normalise_heads_backward(std::int64_t index, const QkvViews& gradients) {
  const LayerActivations& layer = layers_[static_cast<std::size_t>(index)];
  const Parameter& q_norm = parameters_[parameters_.layer(index).q_norm];
  const Parameter& k_norm = parameters_[parameters_.layer(index).k_norm];
  const QkvViews inputs = split(layer.qkv);
  backend_.run(ops::RmsNormBackward{gradients.q, inputs.q, q_norm.working(), layer.q_rstd,
                                    gradients.q, q_norm.gradient()});
  backend_.run(ops::RmsNormBackward{gradients.k, inputs.k, k_norm.working(), layer.k_rstd,
                                    gradients.k, k_norm.gradient()});
}

void Transformer::rotate(const QkvViews& views, bool inverse) {
  const TensorView positions = positions_.columns(0, rows_);
  backend_.run(ops::Rope{views.q, positions, cosine_, sine_, model_.head_dim, inverse});
  backend_.run(ops::Rope{views.k, positions, cosine_, sine_, model_.head_dim, inverse});
}

void Transformer::attend(std::int64_t index, const QkvViews& views) {
  const LayerActivations layer = activations(index);
  AttentionShape shape = attention_shape();
  if (cache_ == nullptr) {
    backend_.run(ops::AttentionForward{shape, views.q, views.k, views.v, document_start_,
                                       layer.attention, layer.lse});
    return;
  }
  shape.batch = cache_->sequences();
  shape.sequence = cache_->capacity();
  backend_.run(ops::AttentionCached{shape, views.q, views.k, views.v, cache_->query_start(),
                                    cache_->cached(), cache_->layer(index).keys,
                                    cache_->layer(index).values, layer.attention});
}

void Transformer::forward_layer(const StepContext& context, std::int64_t index,
                                const TensorView& output) {
  const LayerActivations layer = activations(index);
  const TensorView branch = branch_.row_range(0, rows_);
  const LayerParameters& weights = parameters_.layer(index);
  const auto epsilon = static_cast<float>(model_.rms_norm_eps);
  const ops::RmsNormForward norm1{layer.input, parameters_[weights.attention_norm].working(),
                                  epsilon, layer.norm1, layer.rstd1};
  linear(index, kQkv).forward(context, norm1, layer.qkv);
  if (model_.qk_norm) normalise_heads(index);
  const QkvViews views = attention_inputs(layer);
  rotate(views, false);
  attend(index, views);
  linear(index, kO).forward(context, layer.attention, branch);
  backend_.run(ops::Add{layer.input, branch, layer.middle});
  const ops::RmsNormForward norm2{layer.middle, parameters_[weights.mlp_norm].working(), epsilon,
                                  layer.norm2, layer.rstd2};
  linear(index, kGateUp).forward(context, norm2, layer.gate_up);
  linear(index, kDown).forward(context, ops::SwigluForward{layer.gate_up, layer.swiglu}, branch);
  backend_.run(ops::Add{layer.middle, branch, output});
}

void Transformer::forward(const StepContext& context) {
  const std::int64_t count = model_.num_hidden_layers;
  const TensorView last = final_input_.row_range(0, rows_);
  const auto input = [&](std::int64_t i) { return i < count ? activations(i).input : last; };
  backend_.run(ops::EmbeddingForward{tokens_.columns(0, rows_), parameters_.embedding().working(),
                                     input(0)});
  for (std::int64_t i = 0; i < count; ++i) forward_layer(context, i, input(i + 1));
  if (outputs_ == 0) return;
  // Rows of a matrix are looked up as rows of an embedding are.
  const TensorView wanted = outputs_ == rows_ ? last : branch_.row_range(0, outputs_);
  if (outputs_ < rows_) {
    backend_.run(ops::EmbeddingForward{wanted_.columns(0, outputs_), last, wanted});
  }
  const ops::RmsNormForward norm{
      wanted, parameters_.final_norm().working(), static_cast<float>(model_.rms_norm_eps),
      final_norm_.row_range(0, outputs_), final_rstd_.columns(0, outputs_)};
  linears_.back()->forward(context, norm, logits());
}

void Transformer::loss(const TensorView& scalars, bool gradient) {
  backend_.run(ops::CrossEntropy{logits(), targets_.columns(0, outputs_),
                                 weights_.columns(0, outputs_), scalars, token_losses(),
                                 gradient ? logits() : TensorView{}});
}

TensorView Transformer::argmax() {
  const TensorView best = argmax_.columns(0, outputs_);
  backend_.run(ops::Argmax{logits(), best});
  return best;
}

void Transformer::backward_mlp(const StepContext& context, std::int64_t index) {
  const LayerActivations& layer = layers_[static_cast<std::size_t>(index)];
  const Parameter& norm = parameters_[parameters_.layer(index).mlp_norm];
  linear(index, kDown).backward(context, layer.swiglu, d_hidden_, d_swiglu_);
  const ops::SwigluBackward swiglu{layer.gate_up, d_swiglu_, d_gate_up_};
  linear(index, kGateUp).backward(context, layer.norm2, swiglu, d_branch_);
  backend_.run(ops::RmsNormBackward{d_branch_, layer.middle, norm.working(), layer.rstd2, branch_,
                                    norm.gradient()});
  backend_.run(ops::Add{d_hidden_, branch_, d_hidden_});
}

void Transformer::backward_attention(const StepContext& context, std::int64_t index) {
  const LayerActivations& layer = layers_[static_cast<std::size_t>(index)];
  const Parameter& norm = parameters_[parameters_.layer(index).attention_norm];
  linear(index, kO).backward(context, layer.attention, d_hidden_, d_attention_);
  const QkvViews views = attention_inputs(layer);
  const QkvViews gradients = split(d_qkv_);
  backend_.run(ops::AttentionBackward{attention_shape(), views.q, views.k, views.v, document_start_,
                                      layer.attention, layer.lse, d_attention_, gradients.q,
                                      gradients.k, gradients.v});
  rotate(gradients, true);
  if (model_.qk_norm) normalise_heads_backward(index, gradients);
  linear(index, kQkv).backward(context, layer.norm1, d_qkv_, d_branch_);
  backend_.run(ops::RmsNormBackward{d_branch_, layer.input, norm.working(), layer.rstd1, branch_,
                                    norm.gradient()});
  backend_.run(ops::Add{d_hidden_, branch_, d_hidden_});
}

void Transformer::backward(const StepContext& context) {
  linears_.back()->backward(context, final_norm_, logits_, d_branch_);
  backend_.run(ops::RmsNormBackward{d_branch_, final_input_, parameters_.final_norm().working(),
                                    final_rstd_, d_hidden_, parameters_.final_norm().gradient()});
  for (std::int64_t i = model_.num_hidden_layers; i-- > 0;) {
    backward_mlp(context, i);
    backward_attention(context, i);
  }
  backend_.run(ops::EmbeddingBackward{tokens_, d_hidden_, parameters_.embedding().gradient()});
}

void Transformer::update_delayed_scales() {
  for (const auto& layer : linears_) layer->update_delayed_scales();
}

void Transformer::discard_amaxes() {
  for (const auto& layer : linears_) layer->discard_amaxes();
}

std::vector<std::uint8_t> Transformer::without_history() const {
  std::vector<std::uint8_t> flags;
  for (const auto& layer : linears_) {
    for (const Slot slot : kSlots) flags.push_back(layer->is_without_history(slot) ? 1 : 0);
  }
  return flags;
}

bool Transformer::has_delayed_scales() const {
  for (const auto& layer : linears_) {
    for (const TensorView& state : layer->delayed_states()) {
      if (!state.empty()) return true;
    }
  }
  return false;
}

}  // namespace fp8lab
