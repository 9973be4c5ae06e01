#include "src/train/plan.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "emulation/base/machine.hpp"
#include "src/evaluation/generator.hpp"
#include "src/model/parameters.hpp"
#include "src/model/transformer.hpp"
#include "src/train/time_estimate.hpp"

namespace fp8lab {
namespace {

/// Bytes of the tensors that a backend would allocate.
class ByteCount {
 public:
  explicit ByteCount(const Backend& backend) : backend_(backend) {}

  std::int64_t of(DType dtype, std::int64_t rows, std::int64_t cols) const {
    return rows * cols * static_cast<std::int64_t>(size_of(backend_.storage(dtype)));
  }

 private:
  const Backend& backend_;
};

/// What Transformer::allocate_activations and build_rope_tables allocate.
std::int64_t activation_bytes(const ModelConfig& model, const StageConfig& stage, DType activation,
                              const ByteCount& bytes) {
  const std::int64_t tokens = stage.micro_batch_sequences * stage.sequence_length;
  const std::int64_t c = model.hidden_size, f = model.intermediate_size;
  const std::int64_t heads = model.num_attention_heads, kv = model.num_key_value_heads;
  const std::int64_t q = heads * model.head_dim, qkv = q + 2 * kv * model.head_dim;
  std::int64_t layer = bytes.of(activation, tokens, 4 * c + qkv + q + 3 * f) +
                       bytes.of(DType::f32, tokens, 2 + heads);
  if (model.qk_norm) {
    layer += bytes.of(activation, tokens, q + kv * model.head_dim) +
             bytes.of(DType::f32, tokens, heads + kv);
  }
  // Six vectors of integers, the weights of targets in f32, losses and a norm.
  const std::int64_t vectors = tokens * 28 + bytes.of(DType::f32, tokens, 2);
  return model.num_hidden_layers * layer + vectors +
         bytes.of(activation, tokens, 5 * c + model.vocab_size + qkv + q + 3 * f) +
         bytes.of(DType::f32, stage.sequence_length, model.head_dim);
}

/// What Linear::reserve allocates for all layers, and the buffers that they share.
class OperandBytes {
 public:
  OperandBytes(DType activation, const ByteCount& bytes) : activation_(activation), bytes_(bytes) {}

  void add(Slot slot, const LinearRecipe& recipe, std::int64_t rows, std::int64_t k) {
    const QuantSpec& spec = recipe.slot(slot);
    const std::int64_t codes = bytes_.of(spec.storage(), rows, k);
    const bool kept_x = slot == Slot::fprop_x && recipe.slot(Slot::wgrad_x).orientation_source !=
                                                     OrientationSource::high_precision;
    const bool is_source = slot == Slot::fprop_w && !spec.is_cast() && !spec.transform &&
                           spec.storage() == activation_;
    if (!(is_weight(slot) || kept_x)) {
      shared_[slot_name(slot)] = std::max(shared_[slot_name(slot)], codes);
    } else if (!is_source) {
      own_ += codes;
    }
    if (spec.has_scale()) {
      own_ += bytes_.of(DType::f32, spec.tile_rows(rows), spec.scale_cols(k));
    }
    if (is_second_orientation(slot) &&
        spec.orientation_source != OrientationSource::high_precision) {
      shared_["dequantized"] = std::max(shared_["dequantized"], bytes_.of(DType::f32, rows, k));
    }
    own_ += static_cast<std::int64_t>(sizeof(OperandStatistics));
  }

  std::int64_t total() const {
    std::int64_t sum = own_;
    for (const auto& [name, size] : shared_) sum += size;
    return sum;
  }

 private:
  DType activation_;
  const ByteCount& bytes_;
  std::int64_t own_ = 0;
  std::map<std::string, std::int64_t> shared_;
};

std::int64_t operand_bytes(const ModelConfig& model, const StageConfig& stage, const Recipe& recipe,
                           const ByteCount& bytes) {
  const std::int64_t tokens = stage.micro_batch_sequences * stage.sequence_length;
  OperandBytes operands(recipe.activation_dtype, bytes);
  for (const LinearShape& layer : linear_shapes(model)) {
    const LinearRecipe& linear =
        recipe.for_layer(layer.name, static_cast<int>(model.num_hidden_layers));
    for (const Slot slot : kSlots) {
      const auto [rows, k] = operand_shape(slot, tokens, layer.in, layer.out);
      operands.add(slot, linear, rows, k);
    }
  }
  return operands.total();
}

/// What the generators of Evaluator allocate at most: sequences as long as those of training.
std::int64_t cache_bytes(const ModelConfig& model, const StageConfig& stage, DType activation,
                         const ByteCount& bytes) {
  if (!stage.eval) return 0;
  const EvalConfig& eval = *stage.eval;
  const bool own = eval.rollout && !eval.rollout->recipe.empty();
  const bool shared = eval.exact_match > 0 || eval.pass_at_k || (eval.rollout && !own);
  const std::int64_t sequences =
      std::clamp<std::int64_t>(kCachedTokens / stage.sequence_length, 1, kDecodedTogether);
  const std::int64_t generators = (own ? 1 : 0) + (shared ? 1 : 0);
  return generators * model.num_hidden_layers *
         bytes.of(activation, sequences * stage.sequence_length,
                  2 * model.num_key_value_heads * model.head_dim);
}

/// What Trainer holds of a token of the step: four integers and a weight.
constexpr std::int64_t kBytesOfToken = 20;

std::string braced(const std::vector<std::string>& words) {
  return words.size() == 1 ? words.front() : fmt::format("{{{}}}", fmt::join(words, ","));
}

/// The pattern, as recipes write it, that stands for layers such as "layers.3.mlp.down" of a model
/// with `count` layers.
std::string layer_pattern(const std::vector<std::string>& names, int count) {
  std::vector<std::string> parts, linears;
  std::map<std::string, std::vector<std::string>> indices_of;  // of "mlp.down"
  for (const std::string& name : names) {
    const std::size_t dot = name.find('.'), end = name.find('.', dot + 1);
    if (dot == std::string::npos || end == std::string::npos) {
      parts.push_back(name);
      continue;
    }
    const std::string linear = name.substr(end + 1);
    if (indices_of[linear].empty()) linears.push_back(linear);
    indices_of[linear].push_back(name.substr(dot + 1, end - dot - 1));
  }
  std::vector<std::string> indices;  // in the order in which they appear
  std::map<std::string, std::vector<std::string>> linears_of;
  for (const std::string& linear : linears) {
    const std::vector<std::string>& of = indices_of[linear];
    const std::string text = static_cast<int>(of.size()) == count ? "*" : braced(of);
    if (linears_of[text].empty()) indices.push_back(text);
    linears_of[text].push_back(linear);
  }
  for (const std::string& text : indices) {
    parts.push_back(fmt::format("layers.{}.{}", text, braced(linears_of[text])));
  }
  return fmt::format("{}", fmt::join(parts, ", "));
}

/// Throws Error when `backend` lacks the GEMM or the quantization of one of its operands.
void require_support(const LinearRecipe& linear, GemmRole role, const Backend& backend,
                     const std::string& where) {
  for (const Slot slot : {a_slot(role), b_slot(role)}) {
    if (const Support support = backend.supports(linear.slot(slot)); !support) {
      throw Error(fmt::format("{}: {}: {}", where, slot_name(slot), support.reason));
    }
  }
  const Support support = backend.supports(linear.gemm(role), linear.a(role), linear.b(role));
  if (!support) {
    throw Error(fmt::format("{}: {}: {}", where, gemm_role_name(role), support.reason));
  }
}

}  // namespace

MemoryPlan plan_memory(const RunConfig& config, const StageConfig& stage, const Recipe& recipe,
                       const Backend& backend) {
  const ByteCount bytes(backend);
  const OptimizerConfig& optimizer = config.optimizer;
  const DType master = backend.storage(DType::f32);
  const DType working = backend.storage(recipe.activation_dtype);
  MemoryPlan plan;
  plan.parameters =
      ParameterLayout(config.model).count() *
      (bytes.of(DType::f32, 2, 1) +
       (working == master ? 0 : bytes.of(recipe.activation_dtype, 1, 1)) +
       bytes.of(optimizer.first_moment, 1, 1) + bytes.of(optimizer.second_moment, 1, 1));
  plan.activations = activation_bytes(config.model, stage, recipe.activation_dtype, bytes);
  plan.operands = operand_bytes(config.model, stage, recipe, bytes);
  plan.caches = cache_bytes(config.model, stage, recipe.activation_dtype, bytes);
  return plan;
}

void validate_stage(const RunConfig& config, const StageConfig& stage, const Recipe& recipe,
                    const Backend& backend) {
  if (backend.name() == "truth" && config.logging.statistics_every_steps > 0) {
    throw Error("backend 'truth' quantizes nothing: set logging.statistics_every_steps=0");
  }
  const std::int64_t tokens = stage.micro_batch_sequences * stage.sequence_length;
  const int layers = static_cast<int>(config.model.num_hidden_layers);
  for (const LinearShape& layer : linear_shapes(config.model)) {
    const LinearRecipe& linear = recipe.for_layer(layer.name, layers);
    const std::string where =
        fmt::format("stage {}, recipe {}, {}", stage.name, recipe.name, layer.name);
    validate_shape(linear, tokens, layer.in, layer.out, where);
    for (const GemmRole role : kGemmRoles) require_support(linear, role, backend, where);
  }
  if (!stage.eval || !stage.eval->rollout || stage.eval->rollout->recipe.empty()) return;
  const Recipe rollout = load_recipe(stage.eval->rollout->recipe);
  for (const LinearShape& layer : linear_shapes(config.model)) {
    const LinearRecipe& linear = rollout.for_layer(layer.name, layers);
    const std::string where =
        fmt::format("stage {}, rollout recipe {}, {}", stage.name, rollout.name, layer.name);
    validate_shape(linear, GemmRole::fprop, tokens, layer.in, layer.out, where);
    require_support(linear, GemmRole::fprop, backend, where);
  }
}

void require_memory_of(const RunConfig& config, const Backend& backend) {
  for (const StageConfig& stage : config.stages) {
    const Recipe recipe = load_recipe(stage.recipe.empty() ? config.recipe : stage.recipe);
    const MemoryPlan plan = plan_memory(config, stage, recipe, backend);
    const bool on_host = backend.name() != "cuda";
    const auto text = [](std::int64_t bytes) { return memory_text(static_cast<double>(bytes)); };
    const std::int64_t data = stage.batch_sequences * stage.sequence_length * kBytesOfToken;
    const std::string parts =
        on_host
            ? fmt::format("parameters and optimizer {}, activations {}, operands {}, caches {}, ",
                          text(plan.parameters), text(plan.activations), text(plan.operands),
                          text(plan.caches))
            : std::string();
    require_memory(
        static_cast<double>((on_host ? plan.total() : 0) + data),
        fmt::format("stage {}: steps of {} x {} tokens, {} x {} at once ({}tokens {})", stage.name,
                    stage.batch_sequences, stage.sequence_length, stage.micro_batch_sequences,
                    stage.sequence_length, parts, text(data)));
  }
}

std::vector<std::string> stage_warnings(const RunConfig& config, const StageConfig& stage,
                                        const Recipe& recipe) {
  const std::int64_t tokens = stage.micro_batch_sequences * stage.sequence_length;
  const int layers = static_cast<int>(config.model.num_hidden_layers);
  std::vector<std::string> texts;
  std::map<std::string, std::vector<std::string>> layers_of;
  for (const LinearShape& layer : linear_shapes(config.model)) {
    const LinearRecipe& linear = recipe.for_layer(layer.name, layers);
    for (const std::string& warning : warnings(linear, tokens, layer.in, layer.out)) {
      if (layers_of[warning].empty()) texts.push_back(warning);
      layers_of[warning].push_back(layer.name);
    }
  }
  std::vector<std::string> lines;
  for (const std::string& text : texts) {
    const std::vector<std::string>& names = layers_of[text];
    const std::string pattern = layer_pattern(names, layers);
    lines.push_back(names.size() == 1
                        ? fmt::format("{}: {}", pattern, text)
                        : fmt::format("{} ({} layers): {}", pattern, names.size(), text));
  }
  return lines;
}

std::string describe_plan(const RunConfig& config, Backend& backend,
                          const std::function<void(const std::string&)>& phase) {
  const auto mib = [](std::int64_t bytes) { return static_cast<double>(bytes) / 1048576.0; };
  std::string text = fmt::format("run {} on {} ({}), configuration {}\n", config.name,
                                 backend.name(), backend.device(), config.hash);
  text += fmt::format("parameters {}\n", ParameterLayout(config.model).count());
  double total = 0;
  for (const StageConfig& stage : config.stages) {
    const Recipe recipe = load_recipe(stage.recipe.empty() ? config.recipe : stage.recipe);
    text += fmt::format("\nstage {}: {} steps of {} x {} tokens, recipe {} ({})\n", stage.name,
                        stage.steps, stage.batch_sequences, stage.sequence_length, recipe.name,
                        recipe.hash);
    text += describe(recipe);
    validate_stage(config, stage, recipe, backend);
    for (const std::string& warning : stage_warnings(config, stage, recipe)) {
      text += fmt::format("warning: {}\n", warning);
    }
    const MemoryPlan memory = plan_memory(config, stage, recipe, backend);
    text += fmt::format(
        "memory {:.1f} MiB: parameters and optimizer {:.1f}, activations {:.1f}, operands {:.1f}, "
        "caches {:.1f}\n",
        mib(memory.total()), mib(memory.parameters), mib(memory.activations), mib(memory.operands),
        mib(memory.caches));
    phase(fmt::format("timing the operations of stage {}", stage.name));
    const TimePlan time = estimate_step(config, stage, recipe, backend);
    total += time.total() * static_cast<double>(stage.steps);
    text += fmt::format(
        "time about {:.3g} s a step, from timed operations: GEMMs {:.3g}, attention {:.3g}, "
        "quantization {:.3g}, elementwise {:.3g}, optimizer {:.3g}\n",
        time.total(), time.gemms, time.attention, time.quantization, time.elementwise,
        time.optimizer);
  }
  return text + fmt::format("\ntime of all stages about {:.0f} s, without evaluations\n", total);
}

}  // namespace fp8lab
