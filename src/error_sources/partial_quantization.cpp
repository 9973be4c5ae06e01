#include "src/error_sources/partial_quantization.hpp"

#include <cmath>
#include <deque>
#include <limits>
#include <utility>

#include "emulation/numerics/format.hpp"
#include "emulation/ops/gemm/gemm_plan.hpp"
#include "emulation/ops/quantize/operand_statistics.hpp"
#include "emulation/reference/operand_decode.hpp"
#include "emulation/reference/transform.hpp"
#include "src/model/linear/linear.hpp"

namespace fp8lab {
namespace {

float element_of(const TensorView& view, std::int64_t row, std::int64_t column) {
  return view.dtype == DType::bf16 ? numerics::from_bf16(view.row<std::uint16_t>(row)[column])
                                   : view.row<float>(row)[column];
}

/// Returns the values that a GEMM multiplies, (rows, k).
std::vector<float> values_of(const QuantizedOperand& operand) {
  std::vector<float> values(static_cast<std::size_t>(operand.rows * operand.k));
  if (!operand.has_rows_contiguous()) {
    reference::decode_operand(operand, false,
                              {values.data(), DType::f32, operand.rows, operand.k, operand.k});
    return values;
  }
#pragma omp parallel for schedule(static)
  for (std::int64_t r = 0; r < operand.rows; ++r) {
    for (std::int64_t i = 0; i < operand.k; ++i) {
      values[static_cast<std::size_t>(r * operand.k + i)] = element_of(operand.codes, i, r);
    }
  }
  return values;
}

/// Returns the values before quantization, (rows, k): the source after the operand's transform, if
/// the transform changes the values that are quantized.
std::vector<float> quantized_source(const ops::Quantize& op) {
  const QuantizedOperand& operand = op.operand;
  const Transform& transform = operand.spec.transform;
  reference::FloatMatrix matrix(0, 0);
  TensorView source = op.source;
  if (transform.is_linear() || transform.is<Clamp>()) {
    matrix = reference::transformed(op.source, op.transpose, operand);
    source = matrix.view();
  }
  std::vector<float> values(static_cast<std::size_t>(operand.rows * operand.k));
#pragma omp parallel for schedule(static)
  for (std::int64_t r = 0; r < operand.rows; ++r) {
    for (std::int64_t i = 0; i < operand.k; ++i) {
      values[static_cast<std::size_t>(r * operand.k + i)] =
          op.transpose ? element_of(source, i, r) : element_of(source, r, i);
    }
  }
  return values;
}

/// Wraps `values` (rows, k) as an unquantized FP32 operand.
QuantizedOperand fp32_operand(std::vector<float>& values, std::int64_t rows, std::int64_t k) {
  QuantSpec spec;
  spec.format = numerics::kFP32;
  spec.scale_source = ScaleSource::none;
  QuantizedOperand operand = QuantizedOperand::without_memory(spec, rows, k);
  operand.codes = {values.data(), DType::f32, rows, k, k};
  return operand;
}

/// Returns whether `kept` includes the error of an element with value `before` quantization and
/// `after` it; `limit` is the largest magnitude in its tile that does not saturate.
bool keeps(const ElementErrors& kept, float before, float after, float limit) {
  if (std::abs(before) > limit || !std::isfinite(after)) return kept.saturation;
  if (before != 0.0f && after == 0.0f) return kept.underflow;
  return kept.cast;
}

/// Gives tensors of a backend to the host: views of host memory as they are, others as copies that
/// live as long as this.
class OnHost {
 public:
  explicit OnHost(Backend& backend) : backend_(backend) {}

  TensorView view(const TensorView& source) {
    if (backend_.is_on_host() || !source.has_memory() || source.size() == 0) return source;
    TensorView copy = buffer(source.dtype, source.rows, source.cols);
    backend_.download(copy.data, source);
    return copy;
  }
  /// Returns contiguous host memory.
  TensorView buffer(DType dtype, std::int64_t rows, std::int64_t cols) {
    std::vector<std::byte>& bytes =
        buffers_.emplace_back(static_cast<std::size_t>(rows * cols) * size_of(dtype));
    return {bytes.data(), dtype, rows, cols, cols};
  }
  QuantizedOperand operand(const QuantizedOperand& original) {
    if (backend_.is_on_host()) return original;
    QuantizedOperand copy = original;
    copy.codes = view(original.codes);
    copy.scales = view(original.scales);
    copy.channel_factors = view(original.channel_factors);
    copy.clamp_bounds = view(original.clamp_bounds);
    copy.source_space.channel_factors = view(original.source_space.channel_factors);
    return copy;
  }

 private:
  Backend& backend_;
  std::deque<std::vector<std::byte>> buffers_;
};

}  // namespace

PartialQuantization::PartialQuantization(Backend& original, Backend& host, Switches switches)
    : PassThrough(original), host_(host), switches_(std::move(switches)) {
  FP8LAB_ASSERT(host.is_on_host());
}

void PartialQuantization::write(const TensorView& values, const TensorView& destination) {
  if (original().is_on_host()) return original().run(ops::Copy{values, destination});
  OnHost host(original());
  const TensorView rounded = host.buffer(destination.dtype, values.rows, values.cols);
  host_.run(ops::Copy{values, rounded});
  original().upload(destination, rounded.data);
}

void PartialQuantization::release_to(std::size_t mark) {
  partial_.clear();
  original().release_to(mark);
}

ElementErrors PartialQuantization::kept(const ops::Quantize& op) const {
  if (!switches_.storage && !op.operand.spec.is_cast()) return {false, false, false};
  // Behind the numbers of linear layers are those of saved activations, whose error is of storage.
  if (linear_of(op.operand.key) >= switches_.layers.size()) return {};
  const Tensor tensor = tensor_of(op.operand.key);
  const Slot slot =
      op.operand.key.orientation == 0 ? first_orientation(tensor) : second_orientation(tensor);
  return switches_.layers.at(linear_of(op.operand.key)).operands[slot];
}

void PartialQuantization::pass(const ops::Quantize& op) {
  original().run(op);
  const QuantizedOperand& operand = op.operand;
  const ElementErrors kept = this->kept(op);
  if (kept.all()) {
    partial_.erase(&operand);
    return;
  }
  OnHost host(original());
  const QuantizedOperand written = host.operand(operand);
  const bool saturates = !operand.spec.has_codebooks();
  const double qmax = numerics::max_finite(operand.spec.format);
  const std::vector<float> before = quantized_source(
      {.source = host.view(op.source), .transpose = op.transpose, .state = {}, .operand = written});
  std::vector<float> values = values_of(written);
  bool differs = false;
#pragma omp parallel for schedule(static) reduction(|| : differs)
  for (std::int64_t r = 0; r < operand.rows; ++r) {
    for (std::int64_t i = 0; i < operand.k; ++i) {
      const auto at = static_cast<std::size_t>(r * operand.k + i);
      const float limit = saturates ? saturation_limit(qmax, scale_at(written, r, i))
                                    : std::numeric_limits<float>::max();
      if (keeps(kept, before[at], values[at], limit)) continue;
      differs = differs || values[at] != before[at];
      values[at] = before[at];
    }
  }
  if (differs) {
    partial_[&operand] = std::move(values);
  } else {
    partial_.erase(&operand);
  }
}

void PartialQuantization::pass(const ops::Dequantize& op) {
  const auto found = partial_.find(&op.operand);
  if (found == partial_.end()) return original().run(op);
  const QuantizedOperand& operand = op.operand;
  FP8LAB_ASSERT(!op.transpose);
  std::vector<float> values = found->second;
  const TensorView view{values.data(), DType::f32, operand.rows, operand.k, operand.k};
  OnHost host(original());
  if (op.leaves_space()) reference::undo_transform(view, false, host.operand(operand));
  write(view, op.destination);
}

std::vector<float> PartialQuantization::partial_values(const QuantizedOperand& operand) {
  const auto found = partial_.find(&operand);
  return found == partial_.end() ? values_on_host(operand) : found->second;
}

std::vector<float> PartialQuantization::values_on_host(const QuantizedOperand& operand) {
  OnHost host(original());
  return values_of(host.operand(operand));
}

std::vector<float> PartialQuantization::multiply_exactly(std::vector<float> a, std::int64_t rows_a,
                                                         std::vector<float> b, std::int64_t rows_b,
                                                         std::int64_t k, float alpha) {
  GemmSpec exact;
  exact.accumulator = Accumulator::ideal_exact;
  exact.output = DType::f32;
  exact.alpha = alpha;
  QuantizedOperand left = fp32_operand(a, rows_a, k), right = fp32_operand(b, rows_b, k);
  right.is_right = true;
  std::vector<float> d(static_cast<std::size_t>(rows_a * rows_b));
  TensorView product{d.data(), DType::f32, rows_a, rows_b, rows_b};
  const std::size_t mark = original().memory_mark();
  const bool on_host = original().is_on_host();
  if (!on_host) {
    product = original().allocate(DType::f32, rows_a, rows_b);
    for (QuantizedOperand* operand : {&left, &right}) {
      const void* values = operand->codes.data;
      operand->codes = original().allocate(DType::f32, operand->rows, k);
      original().upload(operand->codes, values);
    }
  }
  Backend& backend = on_host ? host_ : original();
  backend.run(ops::Gemm{.spec = exact, .a = left, .b = right, .bias = {}, .d = product});
  if (!on_host) {
    original().download(d.data(), product);
    original().release_to(mark);
  }
  return d;
}

void PartialQuantization::pass(const ops::Compensate& op) {
  const auto found = partial_.find(&op.other());
  if (!op.takes_codes() || found == partial_.end()) return original().run(op);
  std::vector<float> values = found->second;
  QuantizedOperand other = fp32_operand(values, op.other().rows, op.other().k);
  const std::size_t mark = original().memory_mark();
  if (!original().is_on_host()) {
    other.codes = original().allocate(DType::f32, other.rows, other.k);
    original().upload(other.codes, values.data());
  }
  original().run(ops::Compensate{.a = op.is_left() ? op.a : other,
                                 .a_source = op.a_source,
                                 .transpose_a = op.transpose_a,
                                 .b = op.is_left() ? other : op.b,
                                 .b_source = op.b_source,
                                 .transpose_b = op.transpose_b,
                                 .d = op.d});
  if (original().is_on_host()) return;
  original().synchronize();
  original().release_to(mark);
}

std::vector<float> PartialQuantization::emulated_product(const ops::Gemm& op) {
  GemmSpec spec = op.spec;
  spec.output = DType::f32;
  const std::int64_t rows = op.a.rows, cols = op.b.rows;
  std::vector<float> values(static_cast<std::size_t>(rows * cols));
  const std::size_t mark = original().memory_mark();
  const bool on_host = original().is_on_host();
  const TensorView d = on_host ? TensorView{values.data(), DType::f32, rows, cols, cols}
                               : original().allocate(DType::f32, rows, cols);
  original().run(ops::Gemm{.spec = spec, .a = op.a, .b = op.b, .bias = {}, .d = d});
  if (on_host) return values;
  original().download(values.data(), d);
  original().release_to(mark);
  return values;
}

void PartialQuantization::pass(const ops::Gemm& op) {
  if (partial_.count(&op.a) + partial_.count(&op.b) == 0) return original().run(op);
  const std::int64_t rows = op.a.rows, cols = op.b.rows, k = op.a.k;
  const std::vector<float> partial =
      multiply_exactly(partial_values(op.a), rows, partial_values(op.b), cols, k, op.spec.alpha);
  std::vector<float> exact, emulated;  // empty where the accumulator makes no error
  if (op.spec.accumulator != Accumulator::ideal_exact) {
    exact =
        multiply_exactly(values_on_host(op.a), rows, values_on_host(op.b), cols, k, op.spec.alpha);
    emulated = emulated_product(op);
  }
  OnHost host(original());
  const TensorView bias = host.view(op.bias);
  const TensorView before = op.accumulate ? host.view(op.d) : TensorView{};
  std::vector<double> result(partial.size());
#pragma omp parallel for schedule(static)
  for (std::int64_t row = 0; row < rows; ++row) {
    for (std::int64_t column = 0; column < cols; ++column) {
      const auto at = static_cast<std::size_t>(row * cols + column);
      double sum = partial[at];
      if (!exact.empty()) sum += double{emulated[at]} - exact[at];
      if (!bias.empty()) sum += element_of(bias, 0, column);
      if (op.accumulate) sum += element_of(before, row, column);
      result[at] = sum;
    }
  }
  write({result.data(), DType::f64, rows, cols, cols}, op.d);
}

}  // namespace fp8lab
