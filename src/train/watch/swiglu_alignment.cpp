#include "src/train/watch/swiglu_alignment.hpp"

#include <optional>

#include "emulation/base/error.hpp"
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

double alignment_since(double start, double now, double level) {
  return start >= level ? 0.0 : (now - start) / (1.0 - start);
}

std::vector<float> SwigluAlignment::measure() const {
  if (layers_.empty()) return {};
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
  return cosines;
}

std::vector<Alignment> SwigluAlignment::compare(const std::vector<float>& start,
                                                double level) const {
  const std::vector<float> now = measure();
  FP8LAB_ASSERT(start.size() == now.size());
  std::vector<Alignment> found;
  std::size_t first = 0;
  for (const Layer& layer : layers_) {
    Alignment largest{layer.operand};
    for (std::int32_t channel = 0; channel < layer.rows.count; ++channel) {
      const std::size_t at = first + static_cast<std::size_t>(channel);
      const double moved = alignment_since(start[at], now[at], level);
      if (moved >= level) ++largest.count;
      if (largest.channel >= 0 && !(moved > largest.moved)) continue;
      largest.moved = moved;
      largest.channel = channel;
    }
    found.push_back(largest);
    first += static_cast<std::size_t>(layer.rows.count);
  }
  return found;
}

}  // namespace fp8lab
