#include "src/architecture/parts.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

namespace fp8lab {
namespace {

using Shape = SavedDeclaration::Shape;

// Output of a block, before the next norm or the head adds it to the residual stream.
constexpr const char* kBranch = "branch";
constexpr LiveRange kBranchRange{PassPhase::attention, PassPhase::feed_forward, PassPhase::head,
                                 PassPhase::recompute};
// Gradients of the residual stream and of a branch, live from the head on.
constexpr const char *kHiddenGradient = "d_hidden", *kBranchGradient = "d_branch";
constexpr LiveRange kGradientRange =
    LiveRange::from_to(PassPhase::head, PassPhase::attention_backward);

/// Standard deviation of the initial weights of the linear layers that write into the residual
/// stream: with scaled_residual_init initializer_range / sqrt(2 layers) (Radford et al. 2019,
/// section 2.3).
double residual_deviation(const ModelConfig& model) {
  if (!model.scaled_residual_init) return model.initializer_range;
  return model.initializer_range / std::sqrt(2.0 * static_cast<double>(model.layer_count()));
}

ParameterId table(Declaration& declaration, const ModelConfig& model, const char* name,
                  std::int64_t rows) {
  return declaration.parameter(
      {name, rows, model.hidden_size, false, true, {0.0, model.initializer_range}, {}});
}

/// The weight of a norm, which begins with `value`.
ParameterId norm_weight(Declaration& declaration, const std::string& name, std::int64_t width,
                        double value, bool is_zero_centered) {
  return declaration.parameter({.name = name + ".weight",
                                .rows = 1,
                                .cols = width,
                                .is_vector = true,
                                .weight_decay = false,
                                .initialization = {value, 0.0},
                                .groups = {},
                                .is_zero_centered = is_zero_centered});
}

/// A norm of the residual stream, or, without `keeps_y`, of what is added to it. `name` names its
/// parameters and, within a layer, the tensors that it saves.
NormParts declare_norm(Declaration& declaration, const ModelConfig& model, NormKind kind,
                       const std::string& name, bool keeps_y) {
  const bool is_layer_norm = kind == NormKind::layernorm;
  const std::int64_t width = model.hidden_size;
  NormParts parts;
  parts.kind = kind;
  parts.epsilon = static_cast<float>(is_layer_norm ? model.layer_norm_eps : model.rms_norm_eps);
  const bool is_scaled = model.scaled_norm_init && !keeps_y;
  parts.weight =
      norm_weight(declaration, name, width,
                  is_scaled ? 1.0 / std::sqrt(static_cast<double>(model.layer_count())) : 1.0,
                  model.zero_centered_norms && !is_layer_norm);
  if (is_layer_norm) {
    parts.bias = declaration.parameter({name + ".bias", 1, width, true, false, {}, {}});
  }
  if (keeps_y) parts.y = declaration.saved(name, Shape::activation, width);
  if (is_layer_norm) parts.mean = declaration.saved(name + ".mean", Shape::row, 1);
  parts.rstd = declaration.saved(name + ".rstd", Shape::row, 1);
  return parts;
}

std::optional<NormParts> declare_norm_before(Declaration& declaration, const ModelConfig& model,
                                             const LayerSpec& layer, const std::string& block) {
  if (!is_before(layer.norm_place)) return std::nullopt;
  return declare_norm(declaration, model, layer.norm, block + ".norm", true);
}

/// The norm of the output of a block, and that output.
std::optional<BlockNorms::After> declare_norm_after(Declaration& declaration,
                                                    const ModelConfig& model,
                                                    const LayerSpec& layer,
                                                    const std::string& block) {
  if (!is_after(layer.norm_place)) return std::nullopt;
  const SavedId x = declaration.saved(block + ".branch", Shape::activation, model.hidden_size);
  return BlockNorms::After{
      x, declare_norm(declaration, model, layer.norm, block + ".post_norm", false)};
}

/// The name of a part of a linear layer's outputs: "attention.q" of "attention.qkv" and "q".
std::string output_name(const std::string& module, const std::string& group) {
  return group.empty() ? module : module.substr(0, module.rfind('.') + 1) + group;
}

/// The adapters of the outputs of `base` that are targets. A begins with N(0, 1 / (3 inputs)), the
/// variance of PEFT's uniform numbers, and B with zeros, so that the function is that without
/// adapters.
AdaptedLinear adapted(Declaration& declaration, const ModelConfig& model, LinearId base,
                      PassPhase forward, PassPhase backward) {
  AdaptedLinear result{base};
  const LoraSpec& lora = model.lora;
  if (lora.rank == 0) return result;
  const LinearDeclaration linear = declaration.linear(base);
  std::vector<OutputGroup> groups = declaration.parameter(linear.weight).groups;
  if (groups.empty()) groups = {{"", linear.out}};
  const LiveRange made = forward, read = backward;
  std::int64_t first = 0;
  for (const OutputGroup& group : groups) {
    const std::string name = output_name(linear.module, group.name);
    const std::int64_t begin = std::exchange(first, first + group.rows);
    if (std::find(lora.targets.begin(), lora.targets.end(), name) == lora.targets.end()) continue;
    AdapterParts parts;
    parts.first = begin;
    parts.count = group.rows;
    const double deviation = 1.0 / std::sqrt(3.0 * static_cast<double>(linear.in));
    parts.a = declaration.linear(name + ".lora_a", linear.in, {{"", lora.rank}}, false, deviation);
    parts.b = declaration.linear(name + ".lora_b", lora.rank, {{"", group.rows}}, false, 0.0);
    declaration.adapts(parts.a, 1.0f);
    declaration.adapts(parts.b, static_cast<float>(lora.alpha / static_cast<double>(lora.rank)));
    parts.hidden = declaration.saved(name + ".lora", Shape::activation, lora.rank);
    declaration.of_adapter(parts.hidden);
    parts.out =
        declaration.scratch(name + ".lora_out", group.rows, made | PassPhase::recompute, false);
    parts.d_hidden = declaration.scratch(name + ".d_lora", lora.rank, read);
    parts.d_x = declaration.scratch(name + ".lora_d_x", linear.in, read);
    result.adapters.push_back(parts);
  }
  return result;
}

/// Widths of all heads together.
struct HeadWidths {
  explicit HeadWidths(const ModelConfig& model)
      : q(model.num_attention_heads * model.head_dim),
        kv(model.num_key_value_heads * model.head_dim) {}
  std::int64_t q, kv;
};

QkNormParts declare_qk_norms(Declaration& declaration, const ModelConfig& model,
                             const AttentionSpec& spec) {
  const HeadWidths widths(model);
  const bool is_of_head = spec.qk_norm == QkNorm::head;
  const bool is_of_elements = spec.qk_norm == QkNorm::elements;
  const auto weight = [&](const char* name, std::int64_t width) {
    const std::int64_t elements = is_of_elements ? 1 : is_of_head ? model.head_dim : width;
    return declaration.parameter(
        {.name = std::string(name) + ".weight",
         .rows = 1,
         .cols = elements,
         .is_vector = true,
         .weight_decay = false,
         .initialization = {1.0, 0.0},
         .groups = {},
         .is_frozen = spec.qk_norm_frozen,
         .is_zero_centered = model.zero_centered_norms && !is_of_elements});
  };
  QkNormParts parts;
  parts.q = weight("attention.q_norm", widths.q);
  parts.k = weight("attention.k_norm", widths.kv);
  parts.qk = declaration.saved("attention.qk", Shape::activation, widths.q + widths.kv);
  if (is_of_elements) {
    parts.terms =
        declaration.f32_scratch("attention.alpha_terms", 1, PassPhase::attention_backward);
    return parts;
  }
  const std::int64_t q_heads = is_of_head ? model.num_attention_heads : 1;
  const std::int64_t k_heads = is_of_head ? model.num_key_value_heads : 1;
  parts.rstd = {.q = declaration.saved("attention.q_rstd", Shape::row, q_heads),
                .k = declaration.saved("attention.k_rstd", Shape::row, k_heads)};
  return parts;
}

AttentionParts declare_attention(Declaration& declaration, const ModelConfig& model,
                                 const AttentionSpec& spec) {
  const HeadWidths widths(model);
  const std::int64_t qkv_width = widths.q + 2 * widths.kv;
  AttentionParts parts;
  parts.heads = model.num_attention_heads;
  parts.kv_heads = model.num_key_value_heads;
  parts.head_dim = model.head_dim;
  parts.window = spec.window;
  parts.softmax_scale = static_cast<float>(spec.softmax_scale);
  parts.is_rotated = model.positions == PositionKind::rope;
  parts.epsilon = static_cast<float>(model.rms_norm_eps);
  parts.qkv.base = declaration.linear("attention.qkv", model.hidden_size,
                                      {{"q", widths.q}, {"k", widths.kv}, {"v", widths.kv}},
                                      spec.qkv_bias, model.initializer_range);
  if (spec.qk_norm != QkNorm::none) {
    parts.norms = declare_qk_norms(declaration, model, spec);
  }
  parts.o.base = declaration.linear("attention.o", widths.q, {{"", model.hidden_size}}, spec.o_bias,
                                    residual_deviation(model));
  parts.qkv_out = declaration.saved("attention.qkv", Shape::activation, qkv_width);
  parts.attended = declaration.saved("attention.out", Shape::activation, widths.q);
  parts.lse = declaration.saved("attention.lse", Shape::planes, model.num_attention_heads);
  parts.d_qkv = declaration.scratch("attention.d_qkv", qkv_width, PassPhase::attention_backward);
  parts.d_attended =
      declaration.scratch("attention.d_out", widths.q, PassPhase::attention_backward);
  declaration.writes_residual(parts.o.base);
  for (AdaptedLinear* linear : {&parts.qkv, &parts.o}) {
    *linear = adapted(declaration, model, linear->base, PassPhase::attention,
                      PassPhase::attention_backward);
  }
  return parts;
}

LinearId declare_up(Declaration& declaration, const ModelConfig& model,
                    const FeedForwardSpec& spec) {
  const std::int64_t f = model.intermediate_size;
  const auto linear = [&](const char* name, std::vector<OutputGroup> outputs) {
    return declaration.linear(name, model.hidden_size, std::move(outputs), spec.bias,
                              model.initializer_range);
  };
  if (!is_gated(spec.kind)) return linear("mlp.up", {{"", f}});
  const LinearId up = linear("mlp.gate_up", {{"gate", f}, {"up", f}});
  declaration.gate_and_up(up, {0, f, f});
  return up;
}

/// Begins with alpha_p = alpha_n = 0.8 (FOG).
XieluParts declare_xielu(Declaration& declaration) {
  constexpr double kAlpha = 0.8, kBeta = 0.5;
  const auto inverse_softplus = [](double y) { return std::log(std::expm1(y)); };
  const auto number = [&](const char* name, double value) {
    return declaration.parameter(
        {std::string("mlp.") + name + ".weight", 1, 1, true, false, {value, 0.0}, {}});
  };
  XieluParts parts;
  parts.p = number("xielu_p", inverse_softplus(kAlpha));
  parts.n = number("xielu_n", inverse_softplus(kAlpha - kBeta));
  parts.terms = declaration.f32_scratch("mlp.xielu_terms", 2, PassPhase::feed_forward_backward);
  return parts;
}

FeedForwardParts declare_feed_forward(Declaration& declaration, const ModelConfig& model,
                                      const FeedForwardSpec& spec) {
  FeedForwardParts parts;
  parts.kind = spec.kind;
  parts.up.base = declare_up(declaration, model, spec);
  parts.inner =
      declaration.saved("mlp.inner", Shape::activation, declaration.linear(parts.up.base).out);
  parts.down.base = declaration.recomputed_from(Recompute::feed_forward)
                        .linear("mlp.down", model.intermediate_size, {{"", model.hidden_size}},
                                spec.bias, residual_deviation(model));
  parts.activated = declaration.saved("mlp.activated", Shape::activation, model.intermediate_size);
  declaration.remakeable(parts.down.base, parts.activated, parts.inner);
  declaration.writes_residual(parts.down.base);
  parts.d_activated = declaration.scratch("mlp.d_activated", model.intermediate_size,
                                          PassPhase::feed_forward_backward);
  if (spec.kind == FeedForwardKind::xielu) parts.xielu = declare_xielu(declaration);
  declaration.recomputed_from(Recompute::none);  // what adapters save is small
  for (AdaptedLinear* linear : {&parts.up, &parts.down}) {
    *linear = adapted(declaration, model, linear->base, PassPhase::feed_forward,
                      PassPhase::feed_forward_backward);
  }
  if (parts.down.adapters.empty()) declaration.own_x(parts.down.base, parts.activated);
  return parts;
}

/// The linear layer `first` reads the output of `norm`, and nothing else does unless it has
/// adapters.
void declare_normed(Declaration& declaration, const std::optional<NormParts>& norm,
                    const AdaptedLinear& first) {
  if (!norm || !first.adapters.empty()) return;
  declaration.normed_linear(norm->vectors(), first.base);
  declaration.own_x(first.base, *norm->y);
}

LayerParts declare_layer(Declaration& declaration, const ModelConfig& model,
                         const LayerSpec& layer) {
  LayerParts parts;
  parts.residual = layer.residual;
  const std::string attention = "attention", mlp = "mlp";
  parts.input =
      declaration.in_block(Block::attention).saved("input", Shape::activation, model.hidden_size);
  declaration.stream_of(Block::attention, parts.input);
  declaration.recomputed_from(Recompute::layer);
  parts.attention_norms.before = declare_norm_before(declaration, model, layer, attention);
  parts.attention = declare_attention(declaration, model, layer.attention);
  parts.attention_norms.after = declare_norm_after(declaration, model, layer, attention);
  parts.middle = declaration.saved("middle", Shape::activation, model.hidden_size);
  declaration.stream_of(Block::feed_forward, parts.middle);
  declaration.in_block(Block::feed_forward).recomputed_from(Recompute::gate_up);
  parts.mlp_norms.before = declare_norm_before(declaration, model, layer, mlp);
  parts.mlp = declare_feed_forward(declaration, model, layer.feed_forward);
  // The last product of a layer is not repeated.
  declaration.recomputed_from(Recompute::none);
  parts.mlp_norms.after = declare_norm_after(declaration, model, layer, mlp);
  parts.branch = declaration.scratch(kBranch, model.hidden_size, kBranchRange, false);
  parts.d_branch = declaration.scratch(kBranchGradient, model.hidden_size, kGradientRange);
  declare_normed(declaration, parts.attention_norms.before, parts.attention.qkv);
  declare_normed(declaration, parts.mlp_norms.before, parts.mlp.up);
  for (const LinearId linear :
       {parts.attention.qkv.base, parts.attention.o.base, parts.mlp.up.base, parts.mlp.down.base}) {
    declaration.multiply_products(linear, model.linear_alpha);
  }
  return parts;
}

EmbeddingParts declare_embedding(Declaration& declaration, const ModelConfig& model) {
  EmbeddingParts parts{table(declaration, model, "embed.weight", model.vocab_size),
                       static_cast<float>(model.embedding_factor), std::nullopt,
                       declaration.scratch(kBranch, model.hidden_size, kBranchRange, false)};
  if (model.positions == PositionKind::learned) {
    parts.positions = table(declaration, model, "positions.weight", model.max_position_embeddings);
  }
  return parts;
}

}  // namespace

std::vector<ParameterId> NormParts::vectors() const {
  std::vector<ParameterId> all = {weight};
  if (bias) all.push_back(*bias);
  return all;
}

DecoderParts declare_decoder(Declaration& declaration, const ModelConfig& model) {
  DecoderParts parts;
  parts.embedding = declare_embedding(declaration, model);
  for (std::size_t i = 0; i < model.layers.size(); ++i) {
    declaration.enter_layer(static_cast<std::int64_t>(i));
    parts.layers.push_back(declare_layer(declaration, model, model.layers[i]));
  }
  declaration.enter_layer(std::nullopt);
  const std::int64_t width = model.hidden_size;
  parts.final_input =
      declaration.in_block(Block::head).saved("final_input", Shape::activation, width);
  if (model.has_final_norm) {
    parts.norm = declare_norm(declaration, model, model.final_norm, "norm", true);
  }
  parts.head = model.tie_word_embeddings
                   ? declaration.tied_linear("lm_head", parts.embedding.tokens)
                   : declaration.linear("lm_head", width, {{"", model.vocab_size}}, false,
                                        model.initializer_range);
  parts.logits = declaration.saved("logits", Shape::activation, model.vocab_size);
  parts.token_losses = declaration.saved("token_losses", Shape::row, 1);
  parts.chosen = declaration.scratch("chosen", width, PassPhase::head, false);
  parts.d_hidden = declaration.scratch(kHiddenGradient, width, kGradientRange);
  parts.d_branch = declaration.scratch(kBranchGradient, width, kGradientRange);
  if (parts.norm) declaration.own_x(parts.head, *parts.norm->y);
  declaration.multiply_products(parts.head, model.head_alpha);
  declaration.in_chunks(parts.head, parts.logits);
  return parts;
}

Declaration declaration_of(const ModelConfig& model) {
  Declaration declaration;
  declare_decoder(declaration, model);
  return declaration;
}

}  // namespace fp8lab
