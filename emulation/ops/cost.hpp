// The cost of an operation, for estimates of time.
//
// Every operation has a name `kName`, a class `kClass` under which its time is counted, and
// work(), with which its time grows: multiply-adds for products and attention, elements read
// and written for all others.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

#include "emulation/base/tensor_view.hpp"

namespace fp8lab {

/// Categories of an operation's time.
enum class WorkClass : std::uint8_t {
  gemm,
  attention,
  quantization,  ///< includes a norm or SwiGLU whose result is quantized as it is stored
  elementwise,   ///< norms, residuals, SwiGLU, rotations, embeddings and the loss
  optimizer,     ///< clears, clips and applies gradients
  measurement,   ///< statistics and hashes: logged steps only
};
inline constexpr std::array<WorkClass, 6> kWorkClasses = {
    WorkClass::gemm,        WorkClass::attention, WorkClass::quantization,
    WorkClass::elementwise, WorkClass::optimizer, WorkClass::measurement};

/// Returns the name in a plan: "GEMMs", "attention", ...
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

/// Returns the number of elements of all `views` together.
template <class... Views>
double elements(const Views&... views) {
  return (0.0 + ... + static_cast<double>(views.size()));
}

}  // namespace fp8lab
