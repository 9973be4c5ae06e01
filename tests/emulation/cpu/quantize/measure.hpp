// The statistics of one operand, for tests.
#pragma once

#include "emulation/cpu/operations.hpp"

namespace fp8lab::test {

inline OperandStatistics measure(const TensorView& source, bool transpose,
                                 const QuantizedOperand& operand) {
  OperandStatistics statistics{};
  constexpr std::int64_t kBytes = sizeof statistics;
  cpu::run(
      ops::MeasureOperand{source, transpose, operand, {&statistics, DType::u8, 1, kBytes, kBytes}});
  return statistics;
}

}  // namespace fp8lab::test
