#include "src/train/plan.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <chrono>

#include "src/model/parameters.hpp"
#include "src/model/transformer.hpp"

namespace fp8lab {
namespace {

std::int64_t bytes_per_code(const QuantSpec& spec) {
  return static_cast<std::int64_t>(size_of(spec.storage()));
}

constexpr std::int64_t kCalibrationSize = 384;

/// Multiply-adds a second of one GEMM of the given numerics on this backend.
double measure_rate(Backend& backend, const GemmSpec& spec, const QuantSpec& a,
                    const QuantSpec& b) {
  const auto operand = [&](const QuantSpec& quant) {
    QuantizedOperand result{quant, kCalibrationSize, kCalibrationSize, {}, {}};
    result.spec.transform = {};  // of the operands, which are made before the GEMM
    const DType dtype = backend.storage(quant.storage());
    result.codes = backend.allocate(dtype, kCalibrationSize, kCalibrationSize);
    if (quant.has_scale()) {
      result.scales = backend.allocate(DType::f32, quant.tile_rows(kCalibrationSize),
                                       quant.scale_cols(kCalibrationSize));
    }
    return result;
  };
  const QuantizedOperand left = operand(a), right = operand(b);
  const TensorView d =
      backend.allocate(backend.storage(spec.output), kCalibrationSize, kCalibrationSize);
  backend.gemm(spec, left, right, {}, false, d);
  backend.synchronize();
  const auto began = std::chrono::steady_clock::now();
  int repeats = 0;
  double seconds = 0;
  while (seconds < 0.1) {
    backend.gemm(spec, left, right, {}, false, d);
    backend.synchronize();
    ++repeats;
    seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
  }
  const double size = static_cast<double>(kCalibrationSize);
  return repeats * size * size * size / seconds;
}

/// The high-precision rate serves attention, the head and every layer that is kept.
double estimate_step_seconds(const RunConfig& config, const StageConfig& stage,
                             const Recipe& recipe, Backend& backend) {
  const std::size_t mark = backend.memory_mark();
  const LinearRecipe& quantized = recipe.linear;
  const LinearRecipe& high = recipe.high_precision;
  const double rate = measure_rate(backend, quantized.gemm(GemmRole::fprop),
                                   quantized.slot(Slot::fprop_x), quantized.slot(Slot::fprop_w));
  const double high_rate = measure_rate(backend, high.gemm(GemmRole::fprop),
                                        high.slot(Slot::fprop_x), high.slot(Slot::fprop_w));
  backend.release_to(mark);
  const WorkPlan work = plan_work(config, stage);
  return work.linear / rate + work.attention / high_rate;
}

}  // namespace

MemoryPlan plan_memory(const RunConfig& config, const StageConfig& stage, const Recipe& recipe) {
  const ModelConfig& model = config.model;
  MemoryPlan plan;
  const std::int64_t tokens = stage.micro_batch_sequences * stage.sequence_length;
  const auto width = static_cast<std::int64_t>(size_of(recipe.activation_dtype));
  const auto moments = static_cast<std::int64_t>(size_of(config.optimizer.first_moment) +
                                                 size_of(config.optimizer.second_moment));
  plan.parameters = ParameterLayout(model).count() * (8 + (width == 2 ? 2 : 0) + moments);
  const std::int64_t attention = model.num_attention_heads * model.head_dim;
  const std::int64_t qkv = attention + 2 * model.num_key_value_heads * model.head_dim;
  const std::int64_t per_layer =
      4 * model.hidden_size + qkv + attention + 3 * model.intermediate_size;
  const std::int64_t shared =
      5 * model.hidden_size + model.vocab_size + qkv + attention + 3 * model.intermediate_size;
  plan.activations = tokens * width * (per_layer * model.num_hidden_layers + shared) +
                     tokens * 4 * model.num_hidden_layers * (model.num_attention_heads + 2);
  std::int64_t largest[4] = {};
  for (const LinearShape& layer : linear_shapes(model)) {
    const LinearRecipe& linear =
        recipe.for_layer(layer.name, static_cast<int>(model.num_hidden_layers));
    for (const Slot slot : {Slot::fprop_w, Slot::dgrad_w}) {
      plan.operands += layer.in * layer.out * bytes_per_code(linear.slot(slot));
    }
    const std::int64_t extents[4] = {layer.in, layer.out, layer.out, layer.in};
    const Slot slots[4] = {Slot::fprop_x, Slot::dgrad_dy, Slot::wgrad_dy, Slot::wgrad_x};
    for (int i = 0; i < 4; ++i) {
      largest[i] =
          std::max(largest[i], tokens * extents[i] * bytes_per_code(linear.slot(slots[i])));
    }
  }
  for (const std::int64_t bytes : largest) plan.operands += bytes;
  return plan;
}

WorkPlan plan_work(const RunConfig& config, const StageConfig& stage) {
  const ModelConfig& model = config.model;
  const auto tokens = static_cast<double>(stage.batch_sequences * stage.sequence_length);
  WorkPlan work;
  for (const LinearShape& layer : linear_shapes(model)) {
    work.linear += 3.0 * tokens * static_cast<double>(layer.in * layer.out);
  }
  // Two products forward, seven backward (scores and dP twice); half of the scores are masked.
  work.attention =
      9.0 * tokens * 0.5 * static_cast<double>(stage.sequence_length) *
      static_cast<double>(model.num_attention_heads * model.head_dim * model.num_hidden_layers);
  return work;
}

void validate_stage(const RunConfig& config, const StageConfig& stage, const Recipe& recipe,
                    const Backend& backend) {
  const std::int64_t tokens = stage.micro_batch_sequences * stage.sequence_length;
  for (const LinearShape& layer : linear_shapes(config.model)) {
    const LinearRecipe& linear =
        recipe.for_layer(layer.name, static_cast<int>(config.model.num_hidden_layers));
    const std::string where =
        fmt::format("stage {}, recipe {}, {}", stage.name, recipe.name, layer.name);
    validate_shape(linear, tokens, layer.in, layer.out, where);
    for (const Slot slot : kSlots) {
      if (const Support support = backend.supports(linear.slot(slot)); !support) {
        throw Error(fmt::format("{}: {}: {}", where, slot_name(slot), support.reason));
      }
    }
  }
}

std::string describe_plan(const RunConfig& config, Backend& backend) {
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
    const std::int64_t tokens = stage.micro_batch_sequences * stage.sequence_length;
    for (const LinearShape& layer : linear_shapes(config.model)) {
      const LinearRecipe& linear =
          recipe.for_layer(layer.name, static_cast<int>(config.model.num_hidden_layers));
      for (const std::string& warning : warnings(linear, tokens, layer.in, layer.out)) {
        text += fmt::format("warning: {}: {}\n", layer.name, warning);
      }
    }
    const MemoryPlan memory = plan_memory(config, stage, recipe);
    text += fmt::format(
        "memory {:.1f} MiB: parameters and optimizer {:.1f}, activations {:.1f}, operands {:.1f}\n",
        mib(memory.parameters + memory.activations + memory.operands), mib(memory.parameters),
        mib(memory.activations), mib(memory.operands));
    const double seconds = estimate_step_seconds(config, stage, recipe, backend);
    total += seconds * static_cast<double>(stage.steps);
    text += fmt::format("time {:.2f} s a step in GEMMs at least, from timed GEMMs\n", seconds);
  }
  return text + fmt::format("\ntime of all stages {:.0f} s in GEMMs at least\n", total);
}

}  // namespace fp8lab
