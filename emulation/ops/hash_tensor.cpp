#include "emulation/ops/hash_tensor.hpp"

#include "emulation/ops/checks.hpp"

namespace fp8lab::ops {

void HashTensor::check() const {
  const Checks checks("hash_tensor");
  checks.require(!tensor.empty(), "the tensor is missing");
  checks.vector("sum", sum, sizeof(std::uint64_t), {DType::u8});
}

}  // namespace fp8lab::ops
