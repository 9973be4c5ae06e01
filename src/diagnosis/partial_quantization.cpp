#include "src/diagnosis/partial_quantization.hpp"

#include <cmath>
#include <utility>

#include "emulation/numerics/format.hpp"
#include "emulation/ops/gemm_plan.hpp"
#include "emulation/ops/operand_statistics.hpp"
#include "emulation/reference/operand_decode.hpp"
#include "emulation/reference/transform.hpp"

namespace fp8lab {
namespace {

float element_of(const TensorView& view, std::int64_t row, std::int64_t column) {
  return view.dtype == DType::bf16 ? numerics::from_bf16(view.row<std::uint16_t>(row)[column])
                                   : view.row<float>(row)[column];
}

/// The values that a GEMM multiplies, (rows, k).
std::vector<float> values_of(const QuantizedOperand& operand) {
  std::vector<float> values(static_cast<std::size_t>(operand.rows * operand.k));
  if (!operand.has_rows_contiguous()) {
    reference::decode_operand(operand, false,
                              {values.data(), DType::f32, operand.rows, operand.k, operand.k});
    return values;
  }
  for (std::int64_t r = 0; r < operand.rows; ++r) {
    for (std::int64_t i = 0; i < operand.k; ++i) {
      values[static_cast<std::size_t>(r * operand.k + i)] = element_of(operand.codes, i, r);
    }
  }
  return values;
}

/// What is quantized, (rows, k): the source by the operand's transform, if values are compared with
/// what it makes of them.
std::vector<float> quantized_source(const ops::Quantize& op) {
  const QuantizedOperand& operand = op.operand;
  const Transform& transform = operand.spec.transform;
  reference::FloatMatrix matrix(0, 0);
  TensorView source = op.source;
  if (transform.is_linear() || transform.is_clamp()) {
    matrix = reference::transformed(op.source, op.transpose, operand);
    source = matrix.view();
  }
  std::vector<float> values;
  values.reserve(static_cast<std::size_t>(operand.rows * operand.k));
  for (std::int64_t r = 0; r < operand.rows; ++r) {
    for (std::int64_t i = 0; i < operand.k; ++i) {
      values.push_back(op.transpose ? element_of(source, i, r) : element_of(source, r, i));
    }
  }
  return values;
}

/// Whether `kept` has the error of an element that was `before` and is `after`; `limit` is the
/// largest magnitude of its tile that does not saturate.
bool keeps(const ElementErrors& kept, float before, float after, float limit) {
  if (std::abs(before) > limit || !std::isfinite(after)) return kept.saturation;
  if (before != 0.0f && after == 0.0f) return kept.underflow;
  return kept.cast;
}

std::vector<double> widened(const std::vector<float>& values) {
  return {values.begin(), values.end()};
}

}  // namespace

PartialQuantization::PartialQuantization(Backend& original,
                                         std::vector<PerSlot<ElementErrors>> kept, int threads)
    : PassThrough(original), kept_(std::move(kept)), exact_(threads) {
  FP8LAB_ASSERT(original.is_on_host());
}

void PartialQuantization::pass(const ops::Quantize& op) {
  original().run(op);
  const Tensor tensor = kTensors[op.key.tensor % kTensors.size()];
  const Slot slot =
      op.key.orientation == 0 ? first_orientation(tensor) : second_orientation(tensor);
  const ElementErrors& kept = kept_.at(op.key.tensor / kTensors.size())[slot];
  if (kept.all()) return;
  const QuantizedOperand& operand = op.operand;
  const bool saturates = !operand.spec.has_codebooks();
  const double qmax = numerics::max_finite(operand.spec.format);
  const std::vector<float> before = quantized_source(op);
  std::vector<float> values = values_of(operand);
  for (std::int64_t r = 0; r < operand.rows; ++r) {
    for (std::int64_t i = 0; i < operand.k; ++i) {
      const auto at = static_cast<std::size_t>(r * operand.k + i);
      const float limit = saturates ? saturation_limit(qmax, scale_at(operand, r, i))
                                    : std::numeric_limits<float>::max();
      if (!keeps(kept, before[at], values[at], limit)) values[at] = before[at];
    }
  }
  partial_[&operand] = std::move(values);
}

void PartialQuantization::pass(const ops::Dequantize& op) {
  const auto found = partial_.find(&op.operand);
  if (found == partial_.end()) return original().run(op);
  const QuantizedOperand& operand = op.operand;
  FP8LAB_ASSERT(!op.transpose);
  std::vector<float> values = found->second;
  const TensorView view{values.data(), DType::f32, operand.rows, operand.k, operand.k};
  if (operand.spec.transform.is_linear()) reference::undo_transform(view, false, operand);
  original().run(ops::Copy{view, op.destination});
}

std::vector<double> PartialQuantization::partial_values(const QuantizedOperand& operand) const {
  const auto found = partial_.find(&operand);
  return widened(found == partial_.end() ? values_of(operand) : found->second);
}

void PartialQuantization::pass(const ops::Gemm& op) {
  if (partial_.count(&op.a) + partial_.count(&op.b) == 0) return original().run(op);
  FP8LAB_ASSERT(!op.accumulate);
  const std::int64_t rows = op.a.rows, cols = op.b.rows, k = op.a.k;
  std::vector<double> a = partial_values(op.a), b = partial_values(op.b);
  std::vector<double> result = exact_.multiply(a, rows, b, cols, k);
  if (op.spec.accumulator != Accumulator::ideal_exact) {
    a = widened(values_of(op.a));
    b = widened(values_of(op.b));
    const std::vector<double> exact = exact_.multiply(a, rows, b, cols, k);
    GemmSpec spec = op.spec;
    spec.output = DType::f32;
    std::vector<float> emulated(result.size());
    original().run(
        ops::Gemm{spec, op.a, op.b, {}, false, {emulated.data(), DType::f32, rows, cols, cols}});
    for (std::size_t i = 0; i < result.size(); ++i) result[i] += double{emulated[i]} - exact[i];
  }
  if (!op.bias.empty()) {
    for (std::size_t i = 0; i < result.size(); ++i) {
      result[i] += element_of(op.bias, 0, static_cast<std::int64_t>(i) % cols);
    }
  }
  original().run(ops::Copy{{result.data(), DType::f64, rows, cols, cols}, op.d});
}

}  // namespace fp8lab
