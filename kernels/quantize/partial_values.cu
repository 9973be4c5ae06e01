// ops::PartialValues: one thread for eight neighbours of a row of the operand.
//
//   source --> transform, if the operand has one: FP32 in the context's memory for tensors
//   source, code --> kind of error --> the one or the other value
#include "emulation/numerics/codec.hpp"
#include "emulation/ops/quantize/operand_statistics.hpp"
#include "kernels/pointwise/rows.cuh"
#include "kernels/quantize/operand_decoder.cuh"
#include "kernels/runtime/operations.hpp"
#include "kernels/transform/transform.hpp"

namespace fp8lab::cuda {
namespace {

template <class T>
struct SelectValues {
  Rows<T> source;
  bool transpose;
  Decoder decoder;
  bool saturates;
  double qmax;
  ElementErrors kept;
  Rows<float> values;  ///< without data: only `found` is written
  std::int32_t* found;

  __device__ bool keeps(int kind) const {
    if (kind == ElementErrorKind::kSaturation) return kept.saturation;
    return kind == ElementErrorKind::kUnderflow ? kept.underflow : kept.cast;
  }
  __device__ float limit(std::int64_t row, std::int64_t col) const {
    if (!saturates) return numerics::bits_float(numerics::kF32MaxFinite);
    return saturation_limit(qmax, decoder.scales == nullptr ? 1.0f : *decoder.scale_of(row, col));
  }
  __device__ void operator()(std::int64_t row, std::int64_t col, int count) const {
    float selected[kGroup] = {};
    unsigned kinds = 0;
    for (int i = 0; i < count; ++i) {
      const float before = transpose ? source.load(col + i, row) : source.load(row, col + i);
      const float after = decoder(row, col + i);
      const int kind = element_error_kind(before, after, limit(row, col + i));
      if (!(before == after)) kinds |= 1u << kind;
      selected[i] = keeps(kind) ? after : before;
    }
    if (values.data != nullptr) values.store_group(row, col, count, selected);
    for (int kind = 0; kind < ElementErrorKind::kCount; ++kind) {
      // Every thread that writes writes the same.
      if ((kinds >> kind & 1u) != 0) found[kind] = 1;
    }
  }
};

}  // namespace

void run(Context& context, const ops::PartialValues& op) {
  op.check();
  const QuantizedOperand& operand = op.operand;
  const TensorView values =
      op.has_transform() ? transformed(context, op.source, op.transpose, operand) : op.source;
  check(cudaMemsetAsync(op.found.data, 0, ElementErrorKind::kCount * sizeof(std::int32_t),
                        context.stream()),
        "cudaMemsetAsync");
  with_rows(
      [&]<class T>(const Rows<T>& source) {
        launch_groups(context, operand.rows, operand.k,
                      SelectValues<T>{source, op.transpose, decoder_of(operand),
                                      !operand.spec.has_codebooks(),
                                      numerics::max_finite(operand.spec.format), op.kept,
                                      op.values.empty() ? Rows<float>{} : rows_of<float>(op.values),
                                      op.found.row<std::int32_t>(0)},
                      "partial_values");
      },
      values);
}

}  // namespace fp8lab::cuda
