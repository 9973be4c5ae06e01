// The function of a model whose layers differ, against plain loops over its weights: places and
// kinds of norms, norms of queries and keys, windows, biases, feed-forward kinds, factors.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "emulation/numerics/codec.hpp"
#include "src/architecture/layer_names.hpp"
#include "src/architecture/parts.hpp"
#include "tests/src/model/model_fixture.hpp"

using namespace fp8lab;
using fp8lab::test::ModelAtWork;

namespace {

using Vector = std::vector<double>;
using Rows = std::vector<Vector>;  // a vector for each token

class PlainModel {
 public:
  PlainModel(ModelAtWork& work, const ModelConfig& model) : model_(model), batch_(work.batch) {
    for (const Parameter& parameter : work.parameters.all()) {
      weights_[parameter.name()] = work.read(parameter.master());
    }
  }

  /// Mean loss of the trained tokens.
  double loss() const {
    Rows stream;
    for (const std::int32_t token : batch_[kTokens]) {
      stream.push_back(row("embed", token));
      for (double& value : stream.back()) value *= as_float(model_.embedding_factor);
    }
    for (std::size_t i = 0; i < model_.layers.size(); ++i) {
      const LayerSpec& layer = model_.layers[i];
      const std::string name = "layers." + std::to_string(i) + ".";
      add(stream, layer, name + "attention",
          [&](const Rows& x) { return attention(layer.attention, name + "attention.", x); });
      add(stream, layer, name + "mlp",
          [&](const Rows& x) { return feed_forward(layer.feed_forward, name + "mlp.", x); });
    }
    double sum = 0, trained = 0;
    for (std::size_t t = 0; t < stream.size(); ++t) {
      const double weight = batch_[kTargetWeights][t];
      if (weight == 0) continue;
      const Vector logits = linear(
          model_.tie_word_embeddings ? "embed" : "lm_head",
          model_.has_final_norm ? normalised(model_.final_norm, "norm", stream[t]) : stream[t],
          model_.head_alpha);
      double exponentials = 0;
      for (const double logit : logits) exponentials += std::exp(logit);
      const auto target = static_cast<std::size_t>(batch_[kTargets][t]);
      sum += weight * (std::log(exponentials) - logits[target]);
      trained += 1;
    }
    return sum / trained;
  }

 private:
  const Vector& weight(const std::string& name) const { return weights_.at(name); }

  Vector row(const std::string& module, std::int32_t index) const {
    const auto first = weight(module + ".weight").begin() + index * model_.hidden_size;
    return {first, first + model_.hidden_size};
  }

  /// The FP32 number that a factor is rounded to.
  static double as_float(double factor) { return static_cast<double>(static_cast<float>(factor)); }

  static double value_of(ProductFactor factor, std::size_t in) {
    const auto inputs = static_cast<double>(in);
    if (factor == ProductFactor::inverse_sqrt_in) return as_float(1.0 / std::sqrt(inputs));
    return factor == ProductFactor::inverse_in ? as_float(1.0 / inputs) : 1.0;
  }

  Vector linear(const std::string& module, const Vector& x, ProductFactor factor) const {
    const Vector& w = weight(module + ".weight");
    const double alpha = value_of(factor, x.size());
    const auto bias = weights_.find(module + ".bias");
    Vector y = bias == weights_.end() ? Vector(w.size() / x.size(), 0.0) : bias->second;
    for (std::size_t i = 0; i < w.size(); ++i) y[i / x.size()] += alpha * w[i] * x[i % x.size()];
    add_adapters(module, x, y);
    return y;
  }
  /// y += (alpha / rank) B (A x) for each output of the module that has an adapter.
  void add_adapters(const std::string& module, const Vector& x, Vector& y) const {
    const std::size_t dot = module.rfind('.') + 1;
    const std::string before = module.substr(0, dot), last = module.substr(dot);
    const auto d = static_cast<std::size_t>(model_.head_dim);
    const std::size_t q = static_cast<std::size_t>(model_.num_attention_heads) * d;
    const std::size_t kv = static_cast<std::size_t>(model_.num_key_value_heads) * d;
    std::vector<std::pair<std::string, std::size_t>> outputs = {{last, y.size()}};
    if (last == "qkv") outputs = {{"q", q}, {"k", kv}, {"v", kv}};
    if (last == "gate_up") outputs = {{"gate", y.size() / 2}, {"up", y.size() / 2}};
    std::size_t first = 0;
    for (const auto& [name, count] : outputs) {
      const auto a = weights_.find(before + name + ".lora_a.weight");
      if (a != weights_.end()) {
        const Vector& b = weight(before + name + ".lora_b.weight");
        const auto rank = static_cast<std::size_t>(model_.lora.rank);
        Vector hidden(rank, 0.0);
        for (std::size_t i = 0; i < a->second.size(); ++i) {
          hidden[i / x.size()] += a->second[i] * x[i % x.size()];
        }
        const double factor = as_float(model_.lora.alpha / static_cast<double>(rank));
        for (std::size_t i = 0; i < b.size(); ++i) {
          y[first + i / rank] += factor * b[i] * hidden[i % rank];
        }
      }
      first += count;
    }
  }
  /// A linear layer within a layer.
  Vector linear(const std::string& module, const Vector& x) const {
    return linear(module, x, model_.linear_alpha);
  }

  /// x / sqrt(mean(x^2) + epsilon) * w, of the part of a vector from `first` on that is as long as
  /// w.
  void scale(const Vector& w, double epsilon, std::size_t first, Vector& x) const {
    double squares = 0;
    for (std::size_t i = 0; i < w.size(); ++i) squares += x[first + i] * x[first + i];
    const double root = std::sqrt(squares / static_cast<double>(w.size()) + epsilon);
    for (std::size_t i = 0; i < w.size(); ++i) x[first + i] *= w[i] / root;
  }

  Vector normalised(NormKind kind, const std::string& module, Vector x) const {
    if (kind == NormKind::rmsnorm) {
      scale(weight(module + ".weight"), model_.rms_norm_eps, 0, x);
      return x;
    }
    double mean = 0;
    for (const double value : x) mean += value / static_cast<double>(x.size());
    for (double& value : x) value -= mean;
    scale(weight(module + ".weight"), model_.layer_norm_eps, 0, x);
    for (std::size_t i = 0; i < x.size(); ++i) x[i] += weight(module + ".bias")[i];
    return x;
  }

  template <class Block>
  void add(Rows& stream, const LayerSpec& layer, const std::string& name,
           const Block& block) const {
    const bool before = layer.norm_place == NormPlace::pre || layer.norm_place == NormPlace::both;
    const bool after = layer.norm_place == NormPlace::post || layer.norm_place == NormPlace::both;
    Rows x = stream;
    if (before) {
      for (Vector& token : x) token = normalised(layer.norm, name + ".norm", token);
    }
    x = block(x);
    for (std::size_t t = 0; t < stream.size(); ++t) {
      const Vector y = after ? normalised(layer.norm, name + ".post_norm", x[t]) : x[t];
      const ResidualFactors& factors = layer.residual;
      for (std::size_t c = 0; c < y.size(); ++c) {
        stream[t][c] = as_float(factors.stream) * stream[t][c] + as_float(factors.branch) * y[c];
      }
    }
  }

  void rotate(std::int32_t position, std::size_t first, Vector& x) const {
    const std::int64_t half = model_.head_dim / 2;
    for (std::int64_t i = 0; i < half; ++i) {
      const double angle = position * std::pow(model_.rope_theta,
                                               -static_cast<double>(i) / static_cast<double>(half));
      double& a = x[first + static_cast<std::size_t>(i)];
      double& b = x[first + static_cast<std::size_t>(i + half)];
      const double turned = a * std::cos(angle) - b * std::sin(angle);
      b = b * std::cos(angle) + a * std::sin(angle);
      a = turned;
    }
  }

  /// The norms of queries, or of keys, `heads` of them from `first` on.
  void normalise_heads(QkNorm kind, const std::string& module, std::size_t first,
                       std::int64_t heads, Vector& x) const {
    if (kind == QkNorm::none) return;
    const Vector& w = weight(module + ".weight");
    if (kind == QkNorm::elements) {
      REQUIRE(w.size() == 1);
      const auto count = static_cast<std::size_t>(heads * model_.head_dim);
      for (std::size_t i = first; i < first + count; ++i) x[i] = std::tanh(w[0] * x[i]);
      return;
    }
    const std::int64_t together = kind == QkNorm::head ? 1 : heads;
    REQUIRE(w.size() == static_cast<std::size_t>(together * model_.head_dim));
    const auto end = first + static_cast<std::size_t>(heads * model_.head_dim);
    for (; first < end; first += w.size()) scale(w, model_.rms_norm_eps, first, x);
  }

  Rows attention(const AttentionSpec& spec, const std::string& name, const Rows& x) const {
    const auto d = static_cast<std::size_t>(model_.head_dim);
    const auto heads = static_cast<std::size_t>(model_.num_attention_heads);
    const auto kv_heads = static_cast<std::size_t>(model_.num_key_value_heads);
    Rows qkv;
    for (std::size_t t = 0; t < x.size(); ++t) {
      Vector one = linear(name + "qkv", x[t]);
      normalise_heads(spec.qk_norm, name + "q_norm", 0, model_.num_attention_heads, one);
      normalise_heads(spec.qk_norm, name + "k_norm", heads * d, model_.num_key_value_heads, one);
      for (std::size_t h = 0; h < heads + kv_heads; ++h) {
        rotate(batch_[kPositions][t], h * d, one);
      }
      qkv.push_back(one);
    }
    Rows out;
    const double scale = spec.softmax_scale > 0 ? as_float(spec.softmax_scale)
                                                : 1 / std::sqrt(static_cast<double>(d));
    const auto length = static_cast<std::size_t>(batch_.sequence_length);
    for (std::size_t t = 0; t < x.size(); ++t) {
      const std::size_t sequence = t / length * length;
      auto first = sequence + static_cast<std::size_t>(batch_[kDocumentStarts][t]);
      if (spec.window > 0) {
        first = std::max(first, t + 1 - std::min(t + 1, static_cast<std::size_t>(spec.window)));
      }
      Vector attended(heads * d, 0.0);
      for (std::size_t h = 0; h < heads; ++h) {
        const std::size_t k = (heads + h / (heads / kv_heads)) * d, v = k + kv_heads * d;
        double sum = 0;
        for (std::size_t s = first; s <= t; ++s) {
          double score = 0;
          for (std::size_t i = 0; i < d; ++i) score += qkv[t][h * d + i] * qkv[s][k + i];
          const double share = std::exp(score * scale);
          sum += share;
          for (std::size_t i = 0; i < d; ++i) attended[h * d + i] += share * qkv[s][v + i];
        }
        for (std::size_t i = 0; i < d; ++i) attended[h * d + i] /= sum;
      }
      out.push_back(linear(name + "o", attended));
    }
    return out;
  }

  static double gelu(double u) {
    const double root = std::sqrt(2 / std::acos(-1.0));
    return 0.5 * u * (1 + std::tanh(root * (u + 0.044715 * u * u * u)));
  }

  Rows feed_forward(const FeedForwardSpec& spec, const std::string& name, const Rows& x) const {
    Rows out;
    for (const Vector& token : x) {
      Vector inner;
      if (spec.kind == FeedForwardKind::swiglu) {
        const Vector both = linear(name + "gate_up", token);
        for (std::size_t i = 0; i < both.size() / 2; ++i) {
          inner.push_back(both[i] / (1 + std::exp(-both[i])) * both[both.size() / 2 + i]);
        }
      } else if (spec.kind == FeedForwardKind::geglu_tanh) {
        const Vector both = linear(name + "gate_up", token);
        for (std::size_t i = 0; i < both.size() / 2; ++i) {
          inner.push_back(gelu(both[i]) * both[both.size() / 2 + i]);
        }
      } else if (spec.kind == FeedForwardKind::xielu) {
        const auto softplus = [&](const std::string& number) {
          return std::log1p(std::exp(weight(name + number + ".weight")[0]));
        };
        const double alpha_p = softplus("xielu_p"), alpha_n = 0.5 + softplus("xielu_n");
        for (const double u : linear(name + "up", token)) {
          inner.push_back((u > 0 ? alpha_p * u * u : alpha_n * (std::expm1(u) - u)) + 0.5 * u);
        }
      } else if (spec.kind == FeedForwardKind::relu2) {
        for (const double u : linear(name + "up", token)) {
          inner.push_back(u > 0 ? u * u : 0.0);
        }
      } else {
        for (const double u : linear(name + "up", token)) inner.push_back(gelu(u));
      }
      out.push_back(linear(name + "down", inner));
    }
    return out;
  }

  ModelConfig model_;
  Batch batch_;
  std::map<std::string, Vector> weights_;
};

double loss_of(const ModelConfig& model) {
  ModelAtWork work("truth", model, load_recipe("fp32"));
  return PlainModel(work, model).loss();
}

}  // namespace

TEST_CASE("the loss of a model is that of plain loops over its layers") {
  const NormPlace place =
      GENERATE(NormPlace::pre, NormPlace::post, NormPlace::both, NormPlace::none);
  for (const ModelConfig& model :
       {test::with_norms(test::small_model(), place), test::with_norms(test::olmo2_model(), place),
        test::with_norms(test::mixed_model(), place), test::mixed_model(),
        test::with_norms(test::munit_model(), place), test::with_norms(test::fog_model(), place),
        test::with_norms(test::tanh_model(), place), test::with_norms(test::lora_model(), place)}) {
    ModelAtWork work("truth", model, load_recipe("fp32"));
    const double plain = PlainModel(work, model).loss();
    INFO("place " << static_cast<int>(place) << " plain " << plain);
    CHECK(std::abs(work.loss() - plain) <= 1e-9 * plain);
  }
}

TEST_CASE("each part of a layer's specification changes the function") {
  const ModelConfig model = test::mixed_model();
  ModelConfig wider = model, elsewhere = model, of_heads = model;
  wider.layers[1].attention.window = 9;
  elsewhere.layers[2].norm_place = NormPlace::pre;
  of_heads.layers[1].attention.qk_norm = QkNorm::head;
  ModelConfig bounded = of_heads;
  bounded.layers[1].attention.qk_norm = QkNorm::elements;
  CHECK(std::abs(loss_of(bounded) - loss_of(of_heads)) > 1e-6);
  for (const ModelConfig& other : {wider, elsewhere, of_heads, bounded}) {
    CHECK(std::abs(loss_of(other) - loss_of(model)) > 1e-6);
  }
  const ModelConfig munit = test::munit_model();
  ModelConfig stream = munit, branch = munit, embedding = munit, products = munit, head = munit,
              gelu = munit;
  stream.layers[0].residual.stream = 1.0;
  branch.layers[1].residual.branch = 1.0;
  embedding.embedding_factor = 1.0;
  products.linear_alpha = ProductFactor::inverse_in;
  head.head_alpha = ProductFactor::inverse_sqrt_in;
  gelu.layers[1].feed_forward.kind = FeedForwardKind::gelu_tanh;
  for (const ModelConfig& other : {stream, branch, embedding, products, head, gelu}) {
    CHECK(std::abs(loss_of(other) - loss_of(munit)) > 1e-6);
  }
}

TEST_CASE("Gemma's rounding: the embedding's factor as activations, the weights of norms in FP32") {
  const auto loss = [](const ModelConfig& model, const char* recipe, float norm) {
    ModelAtWork work("cpu", model, load_recipe(recipe));
    for (const Parameter& parameter : work.parameters.all()) {
      if (parameter.name().find("norm") == std::string::npos) continue;
      work.parameters.upload(
          parameter,
          std::vector<float>(static_cast<std::size_t>(parameter.declaration.cols), norm));
    }
    return work.loss();
  };
  ModelConfig model = test::small_model();
  model.embedding_factor = std::sqrt(48.0);
  ModelConfig rounded = model;
  rounded.embedding_factor =
      static_cast<double>(numerics::from_bf16(numerics::to_bf16(std::sqrt(48.0f))));
  CHECK(loss(model, "bf16", 1.0f) == loss(rounded, "bf16", 1.0f));
  CHECK(loss(model, "fp32", 1.0f) != loss(rounded, "fp32", 1.0f));

  constexpr float kBelowBf16 = 1.0f + 0x1p-10f;  // BF16 rounds it to 1
  CHECK(loss(model, "bf16", kBelowBf16) == loss(model, "bf16", 1.0f));
  model.zero_centered_norms = true;
  CHECK(loss(model, "bf16", kBelowBf16) != loss(model, "bf16", 1.0f));
}

TEST_CASE("a model without a last norm, with small norms, xIELU, GEGLU and a factor of scores") {
  const ModelConfig fog = test::fog_model();
  ModelConfig normed = fog, large = fog, root = fog, silu = fog, gelu = fog;
  normed.has_final_norm = true;
  large.scaled_norm_init = false;
  root.layers[0].attention.softmax_scale = 0.0;
  silu.layers[1].feed_forward.kind = FeedForwardKind::swiglu;
  gelu.layers[0].feed_forward.kind = FeedForwardKind::gelu_tanh;
  for (const ModelConfig& other : {normed, large, root, silu, gelu}) {
    CHECK(std::abs(loss_of(other) - loss_of(fog)) > 1e-6);
  }
  const Declaration declaration = declaration_of(fog);
  std::map<std::string, double> initial;
  for (const ParameterDeclaration& parameter : declaration.parameters()) {
    initial[parameter.name] = parameter.initialization.value;
  }
  CHECK(initial.count("norm.weight") == 0);
  CHECK(initial.at("layers.1.mlp.post_norm.weight") == 1.0 / std::sqrt(2.0));
  CHECK(initial.at("layers.0.attention.q_norm.weight") == 1.0);
  CHECK(std::log1p(std::exp(initial.at("layers.0.mlp.xielu_p.weight"))) == Approx(0.8));
  CHECK(0.5 + std::log1p(std::exp(initial.at("layers.0.mlp.xielu_n.weight"))) == Approx(0.8));
  CHECK(initial.count("layers.1.mlp.xielu_p.weight") == 0);
  const std::unique_ptr<Backend> backend = make_backend("cpu", 1);
  OptimizerConfig grouped;
  grouped.groups.push_back({.match = "layers", .learning_rate = 2.0f});
  const Parameters parameters(*backend, fog, grouped, DType::bf16);
  for (const Parameter& parameter : parameters.all()) {
    INFO(parameter.name());
    const bool is_qk_norm = parameter.name().find("_norm.weight") != std::string::npos &&
                            parameter.name().find("post_norm") == std::string::npos;
    CHECK(parameter.is_trained() == !is_qk_norm);
  }
  OptimizerConfig idle;
  idle.groups.push_back({.match = "layers.*.attention.q_norm", .learning_rate = 2.0f});
  CHECK_THROWS_WITH(Parameters(*backend, fog, idle, DType::bf16),
                    Catch::Contains("the model freezes all of its parameters"));
  idle.groups.front().frozen = true;
  CHECK_NOTHROW(Parameters(*backend, fog, idle, DType::bf16));
  // The head reads the stream, which the last layer has written for no other reader.
  for (const LinearDeclaration& linear : declaration.linears()) {
    if (linear.name == "lm_head") CHECK_FALSE(linear.own_x.has_value());
  }
}

TEST_CASE("adapters begin as no change, are alone trained, and keep their products in bf16") {
  const ModelConfig model = test::lora_model();
  const std::unique_ptr<Backend> backend = make_backend("cpu", 1);
  Parameters parameters(*backend, model, OptimizerConfig{}, DType::bf16);
  parameters.initialize(3);
  std::size_t adapters = 0;
  for (const Parameter& parameter : parameters.all()) {
    INFO(parameter.name());
    CHECK(parameter.is_trained() == parameter.declaration.is_adapter);
    adapters += parameter.declaration.is_adapter ? 1 : 0;
    if (!parameter.name().ends_with(".lora_b.weight")) continue;
    std::vector<float> values(static_cast<std::size_t>(parameter.master().size()));
    parameters.download(parameter, 0, values);
    CHECK(std::all_of(values.begin(), values.end(), [](float value) { return value == 0.0f; }));
  }
  CHECK(adapters == 20);  // five outputs of two layers, A and B each
  const Recipe infir2 = load_recipe("infir2");
  CHECK(infir2.for_layer("layers.0.attention.qkv", 2) == infir2.linear);
  CHECK(infir2.for_layer("layers.0.attention.q.lora_a", 2) == infir2.high_precision);
  OptimizerConfig grouped;
  grouped.groups.push_back({.match = "layers.*.mlp.down", .learning_rate = 2.0f});
  CHECK_THROWS_WITH(Parameters(*backend, model, grouped, DType::bf16),
                    Catch::Contains("only adapters are trained"));
  ModelConfig nothing = model;
  nothing.layers[0].feed_forward.kind = FeedForwardKind::gelu_tanh;
  nothing.lora.targets = {"mlp.gate"};
  CHECK_THROWS_WITH(Parameters(*backend, nothing, OptimizerConfig{}, DType::bf16),
                    Catch::Contains("all parameters of the model are frozen"));
}

TEST_CASE("a mixed model declares what its layers say") {
  const Declaration declaration = declaration_of(test::mixed_model());
  std::map<std::string, const LinearDeclaration*> linears;
  for (const LinearDeclaration& linear : declaration.linears()) linears[linear.name] = &linear;
  CHECK(linears.count("layers.1.mlp.gate_up") == 1);
  CHECK(linears.count("layers.2.mlp.gate_up") == 0);
  CHECK(linears.at("layers.2.mlp.up")->bias.has_value());
  CHECK_FALSE(linears.at("layers.1.mlp.down")->bias.has_value());
  // A block without a norm in front reads the stream, which others read as well.
  CHECK(linears.at("layers.0.attention.qkv")->own_x.has_value());
  CHECK_FALSE(linears.at("layers.1.attention.qkv")->own_x.has_value());
  CHECK_FALSE(linears.at("layers.3.mlp.gate_up")->own_x.has_value());
  CHECK(declaration.normed_linears().size() == 4);  // both blocks of layers 0 and 2
  const std::optional<GateAndUp>& rows =
      declaration.parameter(linears.at("layers.0.mlp.gate_up")->weight).gate_and_up;
  REQUIRE(rows);
  CHECK((rows->gate == 0 && rows->up == 96 && rows->count == 96));
  CHECK_FALSE(declaration.parameter(linears.at("layers.2.mlp.up")->weight).gate_and_up);
  CHECK(layer_names(declaration).linears ==
        std::vector<std::string>{"layers.N.attention.qkv", "layers.N.attention.o",
                                 "layers.N.mlp.gate_up", "layers.N.mlp.down", "layers.N.mlp.up",
                                 "lm_head"});
}
