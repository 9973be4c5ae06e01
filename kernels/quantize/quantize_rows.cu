#include "kernels/quantize/quantize_rows.hpp"

#include "kernels/quantize/quantize_rows.cuh"

namespace fp8lab::cuda {

void quantize_rows(Context& context, const TensorView& source, const QuantizedOperand& operand) {
  const BlockOperand codes = block_factors(operand, nullptr, 0);
  with_rows(
      [&]<class T>(const Rows<T>& rows) {
        with_cast(operand.spec, [&]<class Cast>() {
          launch_rows<RowScales::row, Cast>(context, StoredRows<T>{rows}, source.rows, source.cols,
                                            codes, nullptr, 0);
        });
      },
      source);
}

}  // namespace fp8lab::cuda
