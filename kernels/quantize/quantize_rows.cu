#include "kernels/quantize/quantize_rows.hpp"

#include "kernels/quantize/quantize_rows.cuh"

namespace fp8lab::cuda {

void quantize_rows(Context& context, const TensorView& source, QuantizedOperand& operand) {
  const BlockOperand codes = block_factors(operand, nullptr, 0);
  const auto run = [&]<class T, class Cast>(const Rows<T>& rows, Cast) {
    launch_rows<RowScales::row, Cast>(context, StoredRows<T>{rows}, source.rows, source.cols, codes,
                                      nullptr, 0);
  };
  with_cast(source, operand.spec.format, operand.spec.scale.divides(), run);
}

}  // namespace fp8lab::cuda
