// A small model, a batch with packed documents and masked tokens, and its gradients.
#pragma once

#include <cmath>
#include <string>
#include <vector>

#include "src/backend/factory.hpp"
#include "src/data/dataset.hpp"
#include "src/data/tokenizer.hpp"
#include "src/model/transformer.hpp"
#include "src/model/weights/parameters.hpp"
#include "src/objectives/objective.hpp"

namespace fp8lab::test {

inline ModelConfig small_model() {
  ModelConfig model;
  model.vocab_size = 272;
  model.hidden_size = 64;
  model.intermediate_size = 96;
  model.set_layer_count(2);
  model.num_attention_heads = 4;
  model.num_key_value_heads = 2;
  model.head_dim = 16;
  model.initializer_range = 0.08;
  return model;
}

/// Heads wider than their share of the hidden size, normalised, and an odd vocabulary.
inline ModelConfig qwen3_model() {
  ModelConfig model = small_model();
  model.vocab_size = 269;
  model.head_dim = 22;
  model.edit_layers([](LayerSpec& layer) {
    layer.attention.qkv_bias = false;
    layer.attention.qk_norm = QkNorm::head;
  });
  model.rope_theta = 100.0;
  model.rope_scaling.type = RopeType::llama3;
  model.rope_scaling.factor = 8.0;
  model.rope_scaling.original_max_position_embeddings = 16;
  return model;
}

/// A bias on every linear layer but the head, and cosines and sines that are scaled.
inline ModelConfig biased_model() {
  ModelConfig model = small_model();
  model.edit_layers([](LayerSpec& layer) {
    layer.attention.o_bias = true;
    layer.feed_forward.bias = true;
  });
  model.tie_word_embeddings = false;
  model.rope_scaling.type = RopeType::yarn;
  model.rope_scaling.factor = 4.0;
  model.rope_scaling.original_max_position_embeddings = 16;
  model.rope_scaling.beta_fast = 2.0;
  model.rope_scaling.beta_slow = 0.1;
  return model;
}

/// LayerNorm, GELU, learned positions, a bias on every layer, and heads without pairs of channels.
inline ModelConfig gpt2_model() {
  ModelConfig model = small_model();
  model.final_norm = NormKind::layernorm;
  model.edit_layers([](LayerSpec& layer) {
    layer.norm = NormKind::layernorm;
    layer.attention.o_bias = true;
    layer.feed_forward = {FeedForwardKind::gelu_tanh, true};
  });
  model.positions = PositionKind::learned;
  model.max_position_embeddings = 32;
  model.num_key_value_heads = 4;
  model.scaled_residual_init = true;
  return model;
}

/// Norms behind the blocks, and of all queries and all keys.
inline ModelConfig olmo2_model() {
  ModelConfig model = small_model();
  model.edit_layers([](LayerSpec& layer) {
    layer.norm_place = NormPlace::post;
    layer.attention.qkv_bias = false;
    layer.attention.qk_norm = QkNorm::all_heads;
  });
  return model;
}

/// Products, streams and embeddings with factors, and squared ReLU: munit Scaling's rules
/// (arXiv:2502.05967) with another activation in the second layer.
inline ModelConfig munit_model() {
  ModelConfig model = small_model();
  model.final_norm = NormKind::layernorm;
  model.edit_layers([](LayerSpec& layer) {
    layer.norm = NormKind::layernorm;
    layer.norm_place = NormPlace::post;
    layer.residual = {std::sqrt(0.6), std::sqrt(0.4)};
    layer.attention.qkv_bias = false;
    layer.feed_forward = {FeedForwardKind::gelu_tanh, false};
  });
  model.layers[1].feed_forward.kind = FeedForwardKind::relu2;
  model.initializer_range = 1.0;
  model.embedding_factor = 1.25;
  model.linear_alpha = ProductFactor::inverse_sqrt_in;
  model.head_alpha = ProductFactor::inverse_in;
  model.tie_word_embeddings = false;
  return model;
}

/// FOG's block (arXiv:2505.20524), and GEGLU in the second layer: small norms behind the blocks,
/// norms of queries and keys under a fixed factor of scores, no norm in front of the head.
inline ModelConfig fog_model() {
  ModelConfig model = small_model();
  model.edit_layers([](LayerSpec& layer) {
    layer.norm_place = NormPlace::post;
    layer.attention.qkv_bias = false;
    layer.attention.qk_norm = QkNorm::head;
    layer.attention.softmax_scale = 0.4;
    layer.attention.qk_norm_frozen = true;
    layer.feed_forward.kind = FeedForwardKind::xielu;
  });
  model.layers[1].feed_forward.kind = FeedForwardKind::geglu_tanh;
  model.scaled_norm_init = true;
  model.has_final_norm = false;
  model.embedding_factor = 8.0;
  return model;
}

/// Queries and keys behind tanh(alpha x), FOG's other block, and RMSNorms of them in the second
/// layer.
inline ModelConfig tanh_model() {
  ModelConfig model = small_model();
  model.layers[0].attention.qk_norm = QkNorm::elements;
  model.layers[1].attention.qk_norm = QkNorm::head;
  return model;
}

/// Low-rank adapters of some outputs of fused and of whole layers.
inline ModelConfig lora_model() {
  ModelConfig model = small_model();
  model.layers[1].feed_forward = {FeedForwardKind::gelu_tanh, true};
  model.lora = {8, 12.0, {"attention.q", "attention.v", "attention.o", "mlp.up", "mlp.down"}};
  return model;
}

/// `model` with the norms of all layers at `place`.
inline ModelConfig with_norms(ModelConfig model, NormPlace place) {
  model.edit_layers([&](LayerSpec& layer) { layer.norm_place = place; });
  return model;
}

/// Layers that differ in everything that a layer can say of itself.
inline ModelConfig mixed_model() {
  ModelConfig model = small_model();
  model.set_layer_count(4);
  model.layers[1] = olmo2_model().layers.front();
  model.layers[1].attention.window = 5;
  model.layers[2].norm = NormKind::layernorm;
  model.layers[2].norm_place = NormPlace::both;
  model.layers[2].attention.o_bias = true;
  model.layers[2].feed_forward = {FeedForwardKind::gelu_tanh, true};
  model.layers[3].norm_place = NormPlace::none;
  model.layers[3].attention.qk_norm = QkNorm::head;
  return model;
}

inline std::vector<Document> sample_documents() {
  std::vector<Document> documents;
  for (const std::string text : {"the sum of 2 and 3", "is 5, and then", "a third document!"}) {
    Document document;
    document.tokens = ByteTokenizer::encode(text);
    document.tokens.insert(document.tokens.begin(), ByteTokenizer::kBegin);
    document.tokens.push_back(ByteTokenizer::kEnd);
    document.prompt_length = 4;  // the first three bytes are a masked prompt
    documents.push_back(document);
  }
  return documents;
}

/// Model, batch and scalars on one backend.
class ModelAtWork {
 public:
  ModelAtWork(const std::string& backend_name, const ModelConfig& model, const Recipe& recipe,
              std::int64_t sequence_length = 24, std::int64_t sequences = 2)
      : backend(make_backend(backend_name, 2)),
        parameters(*backend, model, OptimizerConfig{}, recipe.activation_dtype) {
    parameters.initialize(7);
    for (const Parameter& parameter : parameters.all()) {
      if (!parameter.name().ends_with(".lora_b.weight")) continue;  // zeros: A has no gradient
      std::vector<float> values(static_cast<std::size_t>(parameter.master().size()));
      for (std::size_t i = 0; i < values.size(); ++i) {
        values[i] = 0.05f * std::sin(static_cast<float>(i + parameter.index));
      }
      parameters.upload(parameter, 0, values);
    }
    scalars = backend->allocate(backend->storage(DType::f32), 1, StepScalar::kCount);
    transformer = std::make_unique<Transformer>(*backend, parameters, model, recipe,
                                                BatchShape{sequences, sequence_length, {}});
    Dataset dataset(make_corpus(sample_documents()), DataForm::running_text, 3, 0);
    batch = dataset.next(sequences, sequence_length);
    load(batch);
  }

  void load(const Batch& data) {
    transformer->load(data);
    set_scalar(StepScalar::kInverseTokens, 1.0 / static_cast<double>(data.trained_tokens));
  }

  /// Mean loss of the batch, as a double.
  double loss(bool gradient = false) {
    set_scalar(StepScalar::kLossSum, 0.0);
    const StepContext context;
    transformer->prepare_weights(context);
    transformer->forward(context);
    likelihood().run(*transformer, scalars, gradient ? Leaves::gradient : Leaves::logits);
    return scalar(StepScalar::kLossSum) * scalar(StepScalar::kInverseTokens);
  }

  /// Loss, with every parameter's gradient left in place.
  double loss_and_gradients() {
    parameters.zero_gradients();
    const double value = loss(true);
    transformer->backward(StepContext{});
    return value;
  }

  std::vector<double> gradient(const Parameter& parameter) { return read(parameter.gradient()); }

  std::vector<double> read(const TensorView& view) {
    const auto count = static_cast<std::size_t>(view.size());
    if (view.dtype == DType::f64) {
      std::vector<double> values(count);
      backend->download(values.data(), view);
      return values;
    }
    std::vector<float> values(count);
    backend->download(values.data(), view);
    return {values.begin(), values.end()};
  }

  double scalar(std::int64_t index) { return read(scalars.columns(index, 1))[0]; }

  void set_scalar(std::int64_t index, double value) {
    const TensorView view = scalars.columns(index, 1);
    const auto single = static_cast<float>(value);
    backend->upload(view, view.dtype == DType::f64 ? static_cast<const void*>(&value)
                                                   : static_cast<const void*>(&single));
  }

  std::unique_ptr<Backend> backend;
  Parameters parameters;
  std::unique_ptr<Transformer> transformer;
  TensorView scalars;
  Batch batch;
};

}  // namespace fp8lab::test
