#include "emulation/cpu/operations.hpp"
#include "emulation/reference/operand_hash.hpp"

namespace fp8lab::cpu {

void run(const ops::HashTensor& op) { reference::hash_tensor(op); }

}  // namespace fp8lab::cpu
