// Cosines of the gate and up weights of SwiGLU layers, and how far they have moved since the start.
//
// Trained models have aligned channels: of the 46 080 of SmolLM2-135M two have a cosine of 0.85 or
// more, the largest 0.96. A level of the cosine alone therefore says nothing about a run.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "emulation/backend.hpp"
#include "src/model/weights/parameters.hpp"

namespace fp8lab {

/// Alignment of one layer.
struct Alignment {
  std::int32_t operand = -1;  ///< fprop.w of the layer, in the order of the statistics
  std::int32_t channel = -1;  ///< channel with the largest `moved`
  double moved = 0;           ///< largest alignment_since() of a channel
  std::int64_t count = 0;     ///< channels for which it is `level` or more
};

/// Returns the share of the way from `start` to 1 that a magnitude of a cosine has moved:
/// (now - start) / (1 - start); 0 for a channel that started at `level` or above. Both are
/// from 0 to 1; negative if the magnitude fell.
double alignment_since(double start, double now, double level);

/// Measures all layers with gate and up weights on the backend; downloads one cosine a channel.
class SwigluAlignment {
 public:
  /// Allocates memory for the cosines. Both arguments must outlive this object.
  SwigluAlignment(Backend& backend, const Parameters& parameters);

  /// Returns the magnitude of the cosine of every channel of the master weights (ops::RowCosines),
  /// all layers one after another; empty without such layers.
  std::vector<float> measure() const;
  /// Compares the master weights with `start`, a result of measure(), by layer. Of equal channels
  /// the first is named.
  std::vector<Alignment> compare(const std::vector<float>& start, double level) const;

 private:
  struct Layer {
    std::int32_t operand = -1;
    const Parameter* weight = nullptr;
    GateAndUp rows;
  };

  Backend& backend_;
  std::vector<Layer> layers_;
  TensorView cosines_;  ///< of all layers, one after another
};

}  // namespace fp8lab
