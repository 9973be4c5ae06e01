// Cosines of the gate and up weights of SwiGLU layers.
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
  std::int32_t channel = -1;  ///< channel with the largest magnitude
  double cosine = 0;          ///< largest magnitude of a cosine
  std::int64_t count = 0;     ///< channels whose magnitude is `level` or more
};

/// Measures all layers with gate and up weights on the backend; downloads one cosine a channel.
class SwigluAlignment {
 public:
  /// Allocates memory for the cosines. Both arguments must outlive this object.
  SwigluAlignment(Backend& backend, const Parameters& parameters);

  /// Measures the master weights (ops::RowCosines). Of equal channels the first is named.
  std::vector<Alignment> measure(double level) const;

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
