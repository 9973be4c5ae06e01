#include "emulation/cpu/operations.hpp"
#include "emulation/reference/operand_hash.hpp"

namespace fp8lab::cpu {

void run(const ops::HashTensors& op) { reference::hash_tensors(op); }

}  // namespace fp8lab::cpu
