// config.json of published models, and models through parameters and back.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <random>
#include <span>
#include <string>
#include <tuple>

#include "emulation/base/error.hpp"
#include "src/architecture/parts.hpp"
#include "src/backend/factory.hpp"
#include "src/config/families/family.hpp"
#include "src/config/reading/hugging_face.hpp"
#include "src/config/tables/model_table.hpp"
#include "src/io/tensors/tensor_store.hpp"
#include "src/model/weights/model_export.hpp"
#include "src/model/weights/weight_names.hpp"
#include "tests/scratch_directory.hpp"

using namespace fp8lab;

namespace {

// The fields of the files that their publishers offer.
constexpr const char* kQwen25 = R"({"architectures": ["Qwen2ForCausalLM"], "attention_dropout": 0.0,
  "bos_token_id": 151643, "eos_token_id": 151643, "hidden_act": "silu", "hidden_size": 896,
  "initializer_range": 0.02, "intermediate_size": 4864, "max_position_embeddings": 32768,
  "max_window_layers": 24, "model_type": "qwen2", "num_attention_heads": 14,
  "num_hidden_layers": 24, "num_key_value_heads": 2, "rms_norm_eps": 1e-06,
  "rope_theta": 1000000.0, "sliding_window": 32768, "tie_word_embeddings": true,
  "torch_dtype": "bfloat16", "transformers_version": "4.40.1", "use_cache": true,
  "use_mrope": false, "use_sliding_window": false, "vocab_size": 151936})";
constexpr const char* kLlama2 = R"({"_name_or_path": "meta-llama/Llama-2-7b-hf",
  "architectures": ["LlamaForCausalLM"], "bos_token_id": 1, "eos_token_id": 2,
  "hidden_act": "silu", "hidden_size": 4096, "initializer_range": 0.02,
  "intermediate_size": 11008, "max_position_embeddings": 4096, "model_type": "llama",
  "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 32,
  "pretraining_tp": 1, "rms_norm_eps": 1e-05, "rope_scaling": null,
  "tie_word_embeddings": false, "torch_dtype": "float16", "transformers_version": "4.31.0.dev0",
  "use_cache": true, "vocab_size": 32000})";
constexpr const char* kLlama32 = R"({"architectures": ["LlamaForCausalLM"],
  "attention_bias": false, "attention_dropout": 0.0, "bos_token_id": 128000,
  "eos_token_id": [128001, 128008, 128009], "head_dim": 64, "hidden_act": "silu",
  "hidden_size": 2048, "initializer_range": 0.02, "intermediate_size": 8192,
  "max_position_embeddings": 131072, "mlp_bias": false, "model_type": "llama",
  "num_attention_heads": 32, "num_hidden_layers": 16, "num_key_value_heads": 8,
  "pretraining_tp": 1, "rms_norm_eps": 1e-05, "rope_scaling": {"factor": 32.0,
  "high_freq_factor": 4.0, "low_freq_factor": 1.0, "original_max_position_embeddings": 8192,
  "rope_type": "llama3"}, "rope_theta": 500000.0, "tie_word_embeddings": true,
  "torch_dtype": "bfloat16", "transformers_version": "4.45.0.dev0", "use_cache": true,
  "vocab_size": 128256})";
constexpr const char* kQwen3Config = R"({"architectures": ["Qwen3ForCausalLM"],
  "attention_bias": false, "attention_dropout": 0.0, "bos_token_id": 151643,
  "eos_token_id": 151645, "head_dim": 128, "hidden_act": "silu", "hidden_size": 1024,
  "initializer_range": 0.02, "intermediate_size": 3072, "max_position_embeddings": 40960,
  "max_window_layers": 28, "model_type": "qwen3", "num_attention_heads": 16,
  "num_hidden_layers": 28, "num_key_value_heads": 8, "rms_norm_eps": 1e-06,
  "rope_scaling": null, "rope_theta": 1000000, "sliding_window": null,
  "tie_word_embeddings": true, "torch_dtype": "bfloat16", "transformers_version": "4.51.0",
  "use_cache": true, "use_sliding_window": false, "vocab_size": 151936})";

// The config.json of openai-community/gpt2, without the parameters of its text-generation task.
constexpr const char* kGpt2Config = R"({
  "activation_function": "gelu_new", "architectures": ["GPT2LMHeadModel"], "attn_pdrop": 0.1,
  "bos_token_id": 50256, "embd_pdrop": 0.1, "eos_token_id": 50256, "initializer_range": 0.02,
  "layer_norm_epsilon": 1e-05, "model_type": "gpt2", "n_ctx": 1024, "n_embd": 768, "n_head": 12,
  "n_layer": 12, "n_positions": 1024, "resid_pdrop": 0.1, "summary_activation": null,
  "summary_first_dropout": 0.1, "summary_proj_to_labels": true, "summary_type": "cls_index",
  "summary_use_proj": true, "task_specific_params": {"text-generation": {"do_sample": true}},
  "vocab_size": 50257})";

constexpr const char* kGemmaConfig = R"({"architectures": ["GemmaForCausalLM"], "head_dim": 256,
  "hidden_size": 2048, "intermediate_size": 16384, "max_position_embeddings": 8192,
  "model_type": "gemma", "num_attention_heads": 8, "num_hidden_layers": 18,
  "num_key_value_heads": 1, "vocab_size": 256000})";
// Gemma 2 and 3 with what is supported of them.
constexpr const char* kGemma2Config = R"({"architectures": ["Gemma2ForCausalLM"], "head_dim": 256,
  "hidden_size": 2304, "intermediate_size": 9216, "max_position_embeddings": 8192,
  "model_type": "gemma2", "num_attention_heads": 8, "num_hidden_layers": 26,
  "num_key_value_heads": 4, "vocab_size": 256000, "attn_logit_softcapping": null,
  "final_logit_softcapping": null})";
constexpr const char* kGemma3Config = R"({"architectures": ["Gemma3ForCausalLM"], "head_dim": 256,
  "hidden_size": 640, "intermediate_size": 2048, "max_position_embeddings": 32768,
  "model_type": "gemma3_text", "num_attention_heads": 4, "num_hidden_layers": 2,
  "num_key_value_heads": 1, "vocab_size": 262144, "rope_theta": 10000.0})";
constexpr const char* kPhi3Config = R"({"architectures": ["Phi3ForCausalLM"],
  "hidden_size": 3072, "intermediate_size": 8192, "max_position_embeddings": 4096,
  "model_type": "phi3", "num_attention_heads": 32, "num_hidden_layers": 32,
  "vocab_size": 32064})";

ModelConfig parse(const std::string& text) { return parse_hugging_face_config(text, "c"); }

/// A small model of some family with everything else drawn.
ModelConfig draw(std::mt19937& random) {
  const auto below = [&](std::uint32_t count) {
    return static_cast<std::int64_t>(random() % count);
  };
  ModelConfig model;
  model.vocab_size = 3 + below(40);
  model.hidden_size = 8 * (1 + below(4));
  model.intermediate_size = 1 + below(30);
  model.set_layer_count(1 + below(3));
  model.num_key_value_heads = 1 + below(3);
  model.num_attention_heads = model.num_key_value_heads * (1 + below(3));
  model.head_dim = 2 * (1 + below(6));
  model.max_position_embeddings = 16 + below(1000);
  model.rope_theta = 10000.0 + static_cast<double>(below(1000)) / 3.0;
  model.tie_word_embeddings = below(2) == 0;
  if (below(4) == 0) {
    model.final_norm = NormKind::layernorm;
    model.edit_layers([](LayerSpec& layer) {
      layer.norm = NormKind::layernorm;
      layer.attention.o_bias = true;
      layer.feed_forward = {FeedForwardKind::gelu_tanh, true};
    });
    model.positions = PositionKind::learned;
    model.scaled_residual_init = true;
    model.rope_theta = ModelConfig().rope_theta;
    model.num_key_value_heads = model.num_attention_heads;
    model.hidden_size = model.num_attention_heads * model.head_dim;
    model.layer_norm_eps = 1e-5 + static_cast<double>(below(10)) * 1e-7;
    return model;
  }
  const std::int64_t family = below(8);  // Llama, Qwen2, Qwen3, OLMo 2, Phi-3, Gemma, 2, 3
  const bool is_phi3 = family == 4, is_gemma = family > 4;
  LayerSpec layer;
  if (family == 2) layer.attention.qk_norm = QkNorm::head;
  if (family == 3) {
    layer.norm_place = NormPlace::post;
    layer.attention.qk_norm = QkNorm::all_heads;
  }
  layer.attention.qkv_bias = !is_phi3 && (family == 1 || below(2) == 0);
  layer.attention.o_bias = family != 1 && layer.attention.qkv_bias;
  model.fused_projections = is_phi3;
  if (is_gemma) {
    layer.feed_forward.kind = FeedForwardKind::geglu_tanh;
    model.zero_centered_norms = true;
    model.embedding_factor = std::sqrt(static_cast<double>(model.hidden_size));
  }
  if (family > 5) {
    layer.norm_place = NormPlace::both;
    const auto scalar = static_cast<double>(model.head_dim + 1 + below(50));
    if (below(2) == 0) layer.attention.softmax_scale = 1.0 / std::sqrt(scalar);
  }
  if (family == 7) layer.attention.qk_norm = QkNorm::head;
  layer.feed_forward.bias = family == 0 && below(2) == 0;
  model.edit_layers([&](LayerSpec& each) { each = layer; });
  const std::int64_t window = is_phi3 || family == 6 ? below(20) : 0;
  for (LayerSpec& each : model.layers) {
    each.attention.window = is_phi3 || below(2) == 0 ? window : 0;
  }
  if (is_phi3) return model;
  RopeScaling& rope = model.rope_scaling;
  rope.type = static_cast<RopeType>(below(5));
  if (rope.type != RopeType::unscaled) rope.factor = 1.0 + static_cast<double>(below(100)) / 7.0;
  const bool by_parts = rope.type == RopeType::yarn || rope.type == RopeType::llama3;
  if (by_parts) rope.original_max_position_embeddings = 8 + below(100);
  if (rope.type == RopeType::llama3) rope.high_freq_factor = 2.5;
  if (rope.type == RopeType::yarn) {
    rope.beta_fast = 30.5;
    rope.truncate = below(2) == 0;
    rope.attention_factor = below(2) == 0 ? 0.0 : 1.25;
  }
  return model;
}

}  // namespace

TEST_CASE("published configurations") {
  ModelConfig qwen;
  qwen.vocab_size = 151936;
  qwen.hidden_size = 896;
  qwen.intermediate_size = 4864;
  qwen.set_layer_count(24);
  qwen.num_attention_heads = 14;
  qwen.num_key_value_heads = 2;
  qwen.head_dim = 64;
  qwen.max_position_embeddings = 32768;
  qwen.rope_theta = 1e6;
  qwen.edit_layers([](LayerSpec& layer) { layer.attention.qkv_bias = true; });
  qwen.tie_word_embeddings = true;
  CHECK(parse(kQwen25) == qwen);

  const ModelConfig llama2 = parse(kLlama2);
  CHECK(llama2.head_dim == 128);
  CHECK(llama2.num_key_value_heads == 32);
  CHECK(llama2.rope_theta == 10000.0);
  CHECK(llama2.rms_norm_eps == 1e-5);
  CHECK_FALSE(llama2.layers.front().attention.qkv_bias);
  CHECK_FALSE(llama2.tie_word_embeddings);

  const ModelConfig llama3 = parse(kLlama32);
  CHECK(llama3.rope_scaling.type == RopeType::llama3);
  CHECK(llama3.rope_scaling.factor == 32.0);
  CHECK(llama3.rope_scaling.original_max_position_embeddings == 8192);
  CHECK_FALSE(llama3.layers.front().attention.qkv_bias);
  CHECK_FALSE(llama3.layers.front().attention.o_bias);

  const ModelConfig qwen3 = parse(kQwen3Config);
  CHECK(qwen3.layers.front().attention.qk_norm == QkNorm::head);
  CHECK_FALSE(qwen3.layers.front().attention.qkv_bias);
  CHECK(qwen3.head_dim == 128);
  const ModelConfig gpt2 = parse(kGpt2Config);
  CHECK(gpt2 == load_model("gpt2"));
  CHECK(declaration_of(gpt2).weights() == 124439808);
  CHECK(declaration_of(qwen3).weights() == 596049920);  // as transformers counts Qwen3-0.6B
  CHECK(declaration_of(llama3).weights() == 1235814400);
  CHECK(declaration_of(parse(kQwen25)).weights() == 494032768);
  CHECK(declaration_of(llama2).weights() == 6738415616);
}

TEST_CASE("what a config.json leaves out") {
  nlohmann::ordered_json config = nlohmann::ordered_json::parse(kQwen3Config);
  config.erase("head_dim");
  CHECK(parse(config.dump()).head_dim == 128);  // Qwen3 does not divide hidden_size
  config = nlohmann::ordered_json::parse(kLlama32);
  config["head_dim"] = nullptr;
  config.erase("num_key_value_heads");
  config.erase("rms_norm_eps");
  config.erase("tie_word_embeddings");
  const ModelConfig llama = parse(config.dump());
  CHECK(llama.head_dim == 64);
  CHECK(llama.num_key_value_heads == 32);
  CHECK(llama.rms_norm_eps == 1e-6);
  CHECK_FALSE(llama.tie_word_embeddings);
  config["rope_scaling"] = {{"type", "yarn"}, {"factor", 4.0}};
  const RopeScaling yarn = parse(config.dump()).rope_scaling;
  CHECK(yarn.original_max_position_embeddings == 131072);
  CHECK(yarn.beta_fast == 32.0);
  CHECK(yarn.attention_factor == 0.0);
}

TEST_CASE("two fields of a config.json about one thing must agree") {
  using Json = nlohmann::ordered_json;
  const Json llama = Json::parse(kLlama32);
  const auto with = [&](const char* key, const Json& value) {
    Json config = llama;
    config[key] = value;
    return config.dump();
  };
  Json both = llama["rope_scaling"];
  both["rope_theta"] = 500000.0;
  CHECK(parse(with("rope_parameters", both)) == parse(kLlama32));
  const Json unscaled = {{"rope_type", "default"}, {"rope_theta", 500000.0}};
  CHECK_THROWS_WITH(parse(with("rope_parameters", unscaled)),
                    Catch::Contains("'rope_scaling' contradicts 'rope_parameters'"));
  both["rope_theta"] = 10000.0;
  for (const char* key : {"rope_parameters", "rope_scaling"}) {
    CHECK_THROWS_WITH(parse(with(key, both)),
                      Catch::Contains(key) && Catch::Contains("contradicts 'rope_theta'"));
  }
  both = llama["rope_scaling"];
  both["type"] = "linear";
  CHECK_THROWS_WITH(parse(with("rope_scaling", both)), Catch::Contains("contradicts 'rope_type'"));
}

TEST_CASE("fields that change nothing, under the values that change nothing") {
  using Json = nlohmann::ordered_json;
  const auto read = [](const char* base, const char* key, const Json& value) {
    Json config = Json::parse(base);
    config[key] = value;
    return parse(config.dump());
  };
  for (const auto& [base, key, harmless, harmful] :
       {std::tuple<const char*, const char*, Json, Json>{kLlama2, "is_llama_config", true, false},
        {kLlama2, "rope_interleaved", false, true},
        {kLlama2, "max_sequence_length", 4096, 2048},
        {kGpt2Config, "n_special", 0, 3},
        {kGpt2Config, "predict_special_tokens", true, false},
        {kGpt2Config, "n_ctx", 1024, 512},
        {kGpt2Config, "hidden_size", 768, 512}}) {
    INFO(key);
    CHECK(read(base, key, harmless) == parse(base));
    CHECK_THROWS_WITH(read(base, key, harmful), Catch::Contains(key));
  }
}

TEST_CASE("every row of the tables of idle fields is read, and its value counts") {
  using Json = nlohmann::ordered_json;
  const auto base_of = [](const Family& family) {
    const std::string type = family.model_type;
    return type == "gpt2"          ? kGpt2Config
           : type == "gemma"       ? kGemmaConfig
           : type == "gemma2"      ? kGemma2Config
           : type == "gemma3_text" ? kGemma3Config
           : type == "phi3"        ? kPhi3Config
           : type == "qwen3"       ? kQwen3Config
           : type == "qwen2"       ? kQwen25
                                   : kLlama2;
  };
  for (const Family* family : families()) {
    const char* const base = base_of(*family);
    const ModelConfig plain = parse(base);
    for (const std::span<const IdleField> table : {idle_fields(), family->idle}) {
      REQUIRE_FALSE(table.empty());
      for (const IdleField& field : table) {
        INFO(family->model_type << " " << field.key << " " << field.value);
        const bool any = std::string(field.value) == "*";
        Json config = Json::parse(base);
        config[field.key] = any ? Json(77) : Json::parse(field.value);
        CHECK(parse(config.dump()) == plain);
        config[field.key] = nullptr;
        CHECK(parse(config.dump()) == plain);
        if (any) continue;
        config[field.key] = 77;
        CHECK_THROWS_WITH(parse(config.dump()),
                          Catch::Contains(field.key) && Catch::Contains("is not supported"));
      }
    }
  }
}

TEST_CASE("configurations survive being written") {
  std::mt19937 random(5);
  for (int i = 0; i < 300; ++i) {
    const ModelConfig model = draw(random);
    const std::string text = hugging_face_config(model, "float32").dump();
    INFO(text);
    CHECK(parse(text) == model);
    CHECK(parse_model_table(model_table_text(model), "table") == model);
  }
  ModelConfig model;
  model.edit_layers([](LayerSpec& layer) { layer.feed_forward.bias = true; });
  CHECK_THROWS_WITH(hugging_face_config(model, "float32"), Catch::Contains("no family"));
}

TEST_CASE("models survive parameters and files") {
  const ScratchDirectory scratch;
  std::mt19937 random(7);
  const char* const backends[] = {"cpu", "truth"};
  for (int i = 0; i < 12; ++i) {
    const ModelConfig model = draw(random);
    const auto backend = make_backend(backends[i % 2], 1);
    Parameters first(*backend, model, {}, DType::f32), second(*backend, model, {}, DType::bf16);
    first.initialize(static_cast<std::uint64_t>(i));
    for (const Parameter& parameter : first.all()) {
      std::vector<float> values = first.download(parameter);
      for (float& value : values) value += static_cast<float>(random() % 1000) * 0x1p-12f;
      first.upload(parameter, values);
    }
    ExportOptions options;
    options.dtype = StoredType::f32;
    options.shard_bytes = 2000;
    const auto folder = scratch / ("model" + std::to_string(i));
    export_model(*backend, *tensors_of(first), model, options, folder);
    CHECK(read_hugging_face_config(folder) == model);
    load_parameters(*open_model_tensors(folder), "model", second);
    CHECK(second.hash() == first.hash());
    for (std::size_t p = 0; p < second.all().size(); ++p) {
      const TensorView& working = second.all()[p].tensors.working;
      const bool has_copies = backend->storage(DType::bf16) == DType::bf16;
      CHECK(working.empty() == (!has_copies || second.all()[p].declaration.is_zero_centered));
      if (working.empty()) continue;
      const TensorView expected = backend->allocate(working.dtype, working.rows, working.cols);
      backend->run(ops::Copy{second.all()[p].master(), expected});
      std::vector<std::byte> a(static_cast<std::size_t>(working.size()) * size_of(working.dtype));
      std::vector<std::byte> b(a.size());
      backend->download(a.data(), working);
      backend->download(b.data(), expected);
      CHECK(a == b);
    }
  }
}

TEST_CASE("GPT-2 keeps the weights of linear layers as (in, out), in files alone") {
  const ScratchDirectory scratch;
  std::mt19937 random(3);
  ModelConfig model = draw(random);
  while (model.positions != PositionKind::learned || model.tie_word_embeddings) {
    model = draw(random);
  }
  const auto backend = make_backend("cpu", 1);
  Parameters parameters(*backend, model, {}, DType::f32), read(*backend, model, {}, DType::f32);
  parameters.initialize(1);
  ExportOptions options;
  options.dtype = StoredType::f32;
  export_model(*backend, *tensors_of(parameters), model, options, scratch / "model");
  const TensorStore store(scratch / "model");
  const auto& list = parameters.all();
  const auto up = std::find_if(list.begin(), list.end(), [](const Parameter& parameter) {
    return parameter.name() == "layers.0.mlp.up.weight";
  });
  REQUIRE(up != list.end());
  const std::vector<float> ours = parameters.download(*up);
  const StoredTensor& stored = store.at("transformer.h.0.mlp.c_fc.weight");
  const std::int64_t f = model.intermediate_size, c = model.hidden_size;
  REQUIRE(stored.shape == std::vector<std::int64_t>{c, f});
  std::vector<float> values(ours.size());
  read_elements(stored, 0, values);
  std::size_t different = 0;
  for (std::int64_t row = 0; row < f; ++row) {
    for (std::int64_t col = 0; col < c; ++col) {
      different += values[static_cast<std::size_t>(col * f + row)] !=
                   ours[static_cast<std::size_t>(row * c + col)];
    }
  }
  CHECK(different == 0);
  CHECK(store.at("transformer.wte.weight").shape == std::vector<std::int64_t>{model.vocab_size, c});
  // In pieces of any size the same weights come back.
  const auto tensors = open_model_tensors(scratch / "model");
  for (std::size_t i = 0; i < tensors->headers().size(); ++i) {
    const TensorHeader& header = tensors->headers()[i];
    std::vector<float> whole(static_cast<std::size_t>(header.size())), pieces(whole.size());
    tensors->read(i, 0, whole);
    for (std::size_t first = 0; first < pieces.size();) {
      const std::size_t count = std::min<std::size_t>(1 + random() % 50, pieces.size() - first);
      tensors->read(i, static_cast<std::int64_t>(first), std::span(pieces).subspan(first, count));
      first += count;
    }
    CHECK(whole == pieces);
  }
  options.recipe = load_recipe("infir2");
  CHECK_THROWS_WITH(
      export_model(*backend, *tensors_of(parameters), model, options, scratch / "quantized"),
      Catch::Contains("transposed"));
}

TEST_CASE("old files of GPT-2 lack the prefix and hold the causal mask") {
  const ScratchDirectory scratch;
  std::mt19937 random(9);
  ModelConfig model = draw(random);
  while (model.positions != PositionKind::learned) model = draw(random);
  const auto backend = make_backend("cpu", 1);
  Parameters first(*backend, model, {}, DType::f32), second(*backend, model, {}, DType::f32);
  first.initialize(1);
  ExportOptions options;
  options.dtype = StoredType::f32;
  export_model(*backend, *tensors_of(first), model, options, scratch / "model");
  const TensorStore store(scratch / "model");
  std::vector<TensorHeader> headers;
  std::vector<const StoredTensor*> sources;
  for (const StoredTensor* tensor : store.tensors()) {
    headers.push_back(*tensor);
    const std::string prefix = "transformer.";
    if (tensor->name.starts_with(prefix)) headers.back().name.erase(0, prefix.size());
    sources.push_back(tensor);
  }
  headers.push_back({"h.0.attn.bias", StoredType::f32, {1, 1, 4, 4}});
  const auto folder = scratch / "old";
  std::filesystem::create_directory(folder);
  write_tensor_store(folder, 1 << 30, headers, [&](std::size_t i) {
    TensorBytes bytes(headers[i].bytes());
    if (i == sources.size()) return bytes;
    std::vector<float> values(static_cast<std::size_t>(headers[i].size()));
    read_elements(*sources[i], 0, values);
    std::memcpy(bytes.data(), values.data(), bytes.size());
    return bytes;
  });
  load_parameters(*open_model_tensors(folder), "old", second);
  CHECK(second.hash() == first.hash());
}

TEST_CASE("tensors of a file and the layers of recipes") {
  CHECK(layer_of_weight("transformer.h.11.attn.c_attn.weight") == "layers.11.attention.qkv");
  CHECK(layer_of_weight("h.0.mlp.c_fc.weight") == "layers.0.mlp.up");
  CHECK_FALSE(layer_of_weight("transformer.h.0.ln_1.weight").has_value());
  CHECK_FALSE(layer_of_weight("transformer.wte.weight").has_value());
  CHECK_FALSE(layer_of_weight("transformer.h.0.attn.c_attn.bias").has_value());
  CHECK(layer_of_weight("model.layers.12.self_attn.k_proj.weight") == "layers.12.attention.qkv");
  CHECK(layer_of_weight("model.layers.0.self_attn.o_proj.weight") == "layers.0.attention.o");
  CHECK(layer_of_weight("model.layers.3.mlp.up_proj.weight") == "layers.3.mlp.gate_up");
  CHECK(layer_of_weight("model.layers.3.mlp.down_proj.weight") == "layers.3.mlp.down");
  CHECK(layer_of_weight("lm_head.weight") == "lm_head");
  for (const char* name :
       {"model.embed_tokens.weight", "model.norm.weight", "model.layers.0.self_attn.q_proj.bias",
        "model.layers.x.mlp.up_proj.weight", "model.layers..mlp.up_proj.weight", "model.layers.0",
        "model.layers.0.weight", "model.layers.0.mlp.experts.0.up_proj.weight", "model.layers.",
        "model.layers.weight", "model.layers.0.self_attn.q_norm.weight", ""}) {
    INFO(name);
    CHECK_FALSE(layer_of_weight(name).has_value());
  }
}
