#include "src/assessment/sensitivity.hpp"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "emulation/numerics/host_device.hpp"

namespace fp8lab {
namespace {

/// Quantizes `source` (rows, k) by `spec`, dequantizes it and rounds it to `destination`. Delayed
/// scales are replaced by current ones. Releases the memory of the codes.
void quantize_and_read_back(Backend& backend, QuantSpec spec, bool is_right, const RandomKey& key,
                            const TensorView& source, const TensorView& destination) {
  const std::size_t mark = backend.memory_mark();
  if (spec.scale_source == ScaleSource::delayed) spec.scale_source = ScaleSource::current;
  QuantizedOperand operand = QuantizedOperand::without_memory(spec, source.rows, source.cols);
  operand.is_right = is_right;
  operand.codes = backend.allocate(backend.storage(spec.storage()), source.rows, source.cols);
  if (spec.has_scale()) {
    operand.scales =
        backend.allocate(DType::f32, spec.tile_rows(source.rows), spec.scale_cols(source.cols));
  }
  if (spec.transform.is<Clamp>()) operand.clamp_bounds = backend.allocate(DType::f32, 1, 2);
  operand.key = key;
  backend.run(ops::Quantize{.source = source, .operand = operand});
  backend.run(ops::Dequantize{operand, false, destination});
  backend.release_to(mark);
}

bool is_quantized_alone(const QuantSpec& spec) {
  return spec.is_cast() && !spec.transform.is<Smoothing>();
}

/// A visitor that replaces one operand of the baseline's GEMM of layer `linear` by its quantized
/// and dequantized values.
class OneOperand {
 public:
  OneOperand(std::size_t linear, Slot slot, const QuantSpec& spec, std::uint64_t seed)
      : linear_(linear), slot_(slot), spec_(spec) {
    key_.seed = seed;
    key_.tensor = static_cast<std::uint32_t>(linear);
    key_.rotation = static_cast<std::uint32_t>(linear) * 3;
  }

  void operator()(Backend& backend, std::size_t linear, const ops::Gemm& op) const {
    if (linear != linear_) return backend.run(op);
    const std::size_t mark = backend.memory_mark();
    QuantizedOperand replaced = slot_ == Slot::fprop_x ? op.a : op.b;
    const TensorView source = replaced.codes;
    replaced.codes = backend.allocate(source.dtype, source.rows, source.cols);
    quantize_and_read_back(backend, spec_, slot_ == Slot::fprop_w, key_, source, replaced.codes);
    backend.run(ops::Gemm{.spec = op.spec,
                          .a = slot_ == Slot::fprop_x ? replaced : op.a,
                          .b = slot_ == Slot::fprop_w ? replaced : op.b,
                          .bias = op.bias,
                          .accumulate = op.accumulate,
                          .d = op.d});
    backend.release_to(mark);
  }

 private:
  std::size_t linear_;
  Slot slot_;
  QuantSpec spec_;
  RandomKey key_;
};

/// During its lifetime, every weight of a layer's first output is replaced by the next BF16 number
/// away from zero.
class MovedWeights {
 public:
  MovedWeights(AssessedModel& model, std::size_t linear)
      : model_(model),
        parameter_(model.parameters()[model.linears()[linear].weight]),
        before_(static_cast<std::size_t>(model.linears()[linear].in)) {
    model_.parameters().download(parameter_, 0, before_);
    std::vector<float> moved = before_;
    for (float& weight : moved) {
      const std::uint32_t bits = numerics::float_bits(weight) & 0xffff0000u;
      weight = numerics::bits_float(bits + 0x10000u);
    }
    model_.upload(parameter_, moved);
  }
  MovedWeights(const MovedWeights&) = delete;
  MovedWeights& operator=(const MovedWeights&) = delete;
  ~MovedWeights() { model_.upload(parameter_, before_); }

 private:
  AssessedModel& model_;
  const Parameter& parameter_;
  std::vector<float> before_;
};

/// Returns the indices of the linear layers with a forward operand that the recipe quantizes.
std::vector<std::size_t> quantized_layers(const AssessedModel& model, const Recipe& recipe) {
  const auto count = static_cast<int>(model.model().layer_count());
  std::vector<std::size_t> quantized;
  for (std::size_t i = 0; i < model.linears().size(); ++i) {
    const LinearRecipe& layer = recipe.for_layer(model.linears()[i].name, count);
    if (layer.slot(Slot::fprop_x).is_cast() || layer.slot(Slot::fprop_w).is_cast()) {
      quantized.push_back(i);
    }
  }
  return quantized;
}

}  // namespace

double SensitivityMap::baseline_loss() const {
  double sum = baseline.loss();
  for (const DocumentLosses& one : replicates) sum += one.loss();
  return sum / static_cast<double>(1 + replicates.size());
}

std::size_t map_passes(const AssessedModel& model, const Recipe& recipe) {
  const auto count = static_cast<int>(model.model().layer_count());
  const std::vector<std::size_t> quantized = quantized_layers(model, recipe);
  std::size_t passes = 2 + std::min(kReplicates, quantized.size()) + quantized.size();
  for (const std::size_t i : quantized) {
    const LinearRecipe& layer = recipe.for_layer(model.linears()[i].name, count);
    for (const Slot slot : {Slot::fprop_x, Slot::fprop_w}) {
      passes += is_quantized_alone(layer.slot(slot)) ? 1 : 0;
    }
  }
  return passes;
}

SensitivityMap map_sensitivity(
    AssessedModel& model, const Recipe& baseline, const Recipe& recipe, const DataSources& data,
    std::int64_t sequences,
    const std::function<void(const std::string&, std::size_t, std::size_t)>& progress) {
  SensitivityMap map;
  const auto losses_under = [&](const Recipe& one) {
    DocumentLosses losses;
    model.under(one, [&](Transformer& transformer) {
      losses = document_losses(model, transformer, data, sequences);
    });
    return losses;
  };
  const auto count = static_cast<int>(model.model().layer_count());
  const std::vector<std::size_t> quantized = quantized_layers(model, recipe);
  map.recipe = losses_under(recipe);
  const std::size_t replicates = std::min(kReplicates, quantized.size());
  const std::size_t parts = replicates + 2 * quantized.size();
  // Measures the operands first, all with one model under the baseline.
  model.under(baseline, [&](Transformer& transformer) {
    map.baseline = document_losses(model, transformer, data, sequences);
    for (std::size_t n = 0; n < replicates; ++n) {
      const std::size_t linear = quantized[n * quantized.size() / replicates];
      progress("the baseline, " + model.linears()[linear].name + " moved", n, parts);
      const MovedWeights moved(model, linear);
      map.replicates.push_back(document_losses(model, transformer, data, sequences));
    }
    for (std::size_t n = 0; n < quantized.size(); ++n) {
      const std::string& name = model.linears()[quantized[n]].name;
      progress(name, replicates + n, parts);
      LayerSensitivity entry;
      entry.linear = quantized[n];
      const LinearRecipe& layer = recipe.for_layer(name, count);
      for (const Slot slot : {Slot::fprop_x, Slot::fprop_w}) {
        const QuantSpec& spec = layer.slot(slot);
        if (!is_quantized_alone(spec)) continue;
        model.products().watch(transformer.linears(),
                               OneOperand(quantized[n], slot, spec, model.context().seed));
        (slot == Slot::fprop_x ? entry.x : entry.w) =
            document_losses(model, transformer, data, sequences);
        model.products().watch({}, {});
      }
      map.layers.push_back(std::move(entry));
    }
  });
  for (std::size_t n = 0; n < quantized.size(); ++n) {
    progress(model.linears()[quantized[n]].name, replicates + quantized.size() + n, parts);
    map.layers[n].layer = losses_under(
        model.mixed(recipe, baseline, [&](std::size_t i) { return i == quantized[n]; }));
  }
  return map;
}

}  // namespace fp8lab
