// How far the gate and up weights of SwiGLU layers are aligned.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "emulation/backend.hpp"
#include "src/model/parameters.hpp"

namespace fp8lab {

/// Of one layer.
struct Alignment {
  std::int32_t operand = -1;  ///< fprop.w of the layer, in the order of the statistics
  std::int32_t channel = -1;  ///< of the largest magnitude
  double cosine = 0;          ///< that magnitude
  std::int64_t count = 0;     ///< channels whose magnitude is `level` or more
};

/// Measures all layers that have gate and up weights, where the weights are: one cosine a channel
/// comes to the host.
class SwigluAlignment {
 public:
  /// Takes memory for the cosines; both arguments must outlive this.
  SwigluAlignment(Backend& backend, const Parameters& parameters);

  /// From the master weights (ops::RowCosines); of equal channels the first.
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
