#include "emulation/spec/slot.hpp"

namespace fp8lab {

std::string tensor_name(Tensor tensor) {
  constexpr PerTensor<const char*> kNames = {"x", "w", "dy"};
  return kNames[tensor];
}

std::string gemm_role_name(GemmRole role) {
  constexpr PerGemm<const char*> kNames = {"fprop", "dgrad", "wgrad"};
  return kNames[role];
}

std::optional<Tensor> tensor_from_name(std::string_view name) {
  for (const Tensor tensor : kTensors) {
    if (name == tensor_name(tensor)) return tensor;
  }
  return std::nullopt;
}

std::string slot_name(Slot slot) {
  return gemm_role_name(gemm_role(slot)) + "." + tensor_name(tensor_of(slot));
}

}  // namespace fp8lab
