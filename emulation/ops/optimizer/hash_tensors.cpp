#include "emulation/ops/optimizer/hash_tensors.hpp"

#include "emulation/ops/checks.hpp"

namespace fp8lab::ops {

void HashTensors::check() const {
  const Checks checks("hash_tensors");
  for (const TensorView& tensor : tensors) {
    checks.require(tensor.has_memory(), "a tensor is missing");
  }
  checks.vector("sum", sum, sizeof(std::uint64_t), {DType::u8});
}

}  // namespace fp8lab::ops
