// The choice of the kernels that measure an operand (kernels/quantize/statistics).
#pragma once

#include <cstdint>
#include <string_view>

#include "emulation/ops/quantize/operand_statistics.hpp"

namespace fp8lab::cuda {

/// How the kernel reads the values of an operand.
enum class StatisticsReader : std::uint8_t {
  tiled_rows,      ///< TiledRows
  straight,        ///< StraightCodes
  turned,          ///< TurnedCodes
  source_rows,     ///< SourceHash of rows
  source_columns,  ///< SourceHash of columns
  careful,         ///< all others, including values of more than eight bits that are not the source
};

/// Returns true if the operand was quantized in another space than that of the unquantized tensor.
bool is_moved(const QuantizedOperand& operand);

/// Returns the reader for an operand, or the transpose of one, that was quantized from `source`,
/// which has elements.
StatisticsReader plan_measure(const TensorView& source, bool transpose,
                              const QuantizedOperand& operand);

/// Returns true if one pass over the source measures both operands: if both are the source itself,
/// or hold codes of one format, the first in rows of the source and the second in columns. Operands
/// of which is_moved() is true are measured one by one, and so are those of an empty source, which
/// the parts refuse.
bool is_one_pass(const ops::MeasureBoth& op);

}  // namespace fp8lab::cuda
