// What an operation costs, for estimates of time.
//
// Every operation says under `kName` what it is called, under `kClass` what its time counts as, and
// with work() what that time grows with: multiply-adds for products and attention, elements read
// and written for all others.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

#include "emulation/base/tensor_view.hpp"

namespace fp8lab {

/// What the time of an operation counts as.
enum class WorkClass : std::uint8_t {
  gemm,
  attention,
  quantization,  ///< also of a norm or SwiGLU that is quantized as it is made
  elementwise,   ///< norms, residuals, SwiGLU, rotations, embeddings and the loss
  optimizer,     ///< gradients cleared, clipped and applied
  measurement,   ///< statistics and hashes: logged steps only
};
inline constexpr std::array<WorkClass, 6> kWorkClasses = {
    WorkClass::gemm,        WorkClass::attention, WorkClass::quantization,
    WorkClass::elementwise, WorkClass::optimizer, WorkClass::measurement};

/// As a plan names it: "GEMMs", "attention", ...
constexpr std::string_view name_of(WorkClass work_class) {
  switch (work_class) {
    case WorkClass::gemm: return "GEMMs";
    case WorkClass::attention: return "attention";
    case WorkClass::quantization: return "quantization";
    case WorkClass::elementwise: return "elementwise";
    case WorkClass::optimizer: return "optimizer";
    case WorkClass::measurement: return "measurement";
  }
  return "?";
}

/// Elements of all `views` together.
template <class... Views>
double elements(const Views&... views) {
  return (0.0 + ... + static_cast<double>(views.size()));
}

}  // namespace fp8lab
