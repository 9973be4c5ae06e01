#include "src/train/watch/swiglu_alignment.hpp"

#include <optional>

#include "emulation/spec/slot.hpp"

namespace fp8lab {

SwigluAlignment::SwigluAlignment(Backend& backend, const Parameters& parameters)
    : backend_(backend) {
  const auto& linears = parameters.declaration().linears();
  std::int64_t channels = 0;
  for (std::size_t i = 0; i < linears.size(); ++i) {
    const Parameter& weight = parameters[linears[i].weight];
    const std::optional<GateAndUp>& rows = weight.declaration.gate_and_up;
    if (!rows) continue;
    const std::size_t operand = i * kSlots.size() + static_cast<std::size_t>(Slot::fprop_w);
    layers_.push_back({static_cast<std::int32_t>(operand), &weight, *rows});
    channels += rows->count;
  }
  if (channels > 0) cosines_ = backend.allocate(backend.storage(DType::f32), 1, channels);
}

std::vector<Alignment> SwigluAlignment::measure(double level) const {
  std::vector<Alignment> found;
  if (layers_.empty()) return found;
  std::int64_t first = 0;
  for (const Layer& layer : layers_) {
    const TensorView weight = layer.weight->master();
    const GateAndUp& rows = layer.rows;
    backend_.run(ops::RowCosines{.a = weight.row_range(rows.gate, rows.count),
                                 .b = weight.row_range(rows.up, rows.count),
                                 .cosines = cosines_.columns(first, rows.count)});
    first += rows.count;
  }
  std::vector<float> cosines(static_cast<std::size_t>(cosines_.cols));
  download_floats(backend_, cosines_, cosines);
  const float* of_layer = cosines.data();
  for (const Layer& layer : layers_) {
    Alignment largest{layer.operand};
    for (std::int32_t channel = 0; channel < layer.rows.count; ++channel) {
      const double cosine = of_layer[channel];
      if (cosine >= level) ++largest.count;
      if (largest.channel >= 0 && !(cosine > largest.cosine)) continue;
      largest.cosine = cosine;
      largest.channel = channel;
    }
    found.push_back(largest);
    of_layer += layer.rows.count;
  }
  return found;
}

}  // namespace fp8lab
