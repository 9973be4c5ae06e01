#include "src/error_sources/partial_quantization.hpp"

#include <algorithm>
#include <utility>

#include "emulation/numerics/format.hpp"
#include "src/model/linear/linear.hpp"

namespace fp8lab {
namespace {

/// Wraps f32 `values` (rows, k) as an operand without quantization.
QuantizedOperand fp32_operand(const TensorView& values) {
  QuantSpec spec;
  spec.format = numerics::kFP32;
  spec.scale_source = ScaleSource::none;
  QuantizedOperand operand = QuantizedOperand::without_memory(spec, values.rows, values.cols);
  operand.codes = values;
  return operand;
}

/// Returns the first rows * cols elements of `memory`, one row, as a matrix.
TensorView shaped(const TensorView& memory, std::int64_t rows, std::int64_t cols) {
  return {memory.data, DType::f32, rows, cols, cols};
}

Slot slot_of(const QuantizedOperand& operand) {
  const Tensor tensor = tensor_of(operand.key);
  return operand.key.orientation == 0 ? first_orientation(tensor) : second_orientation(tensor);
}

}  // namespace

PartialQuantization::PartialQuantization(Backend& original, Switches switches, bool records_all)
    : PassThrough(original),
      switches_(std::move(switches)),
      records_all_(records_all),
      found_(switches_.layers.size()) {}

void PartialQuantization::release_to(std::size_t mark) {
  partial_.clear();
  spare_.clear();
  temporaries_ = {};
  flags_ = {};
  original().release_to(mark);
}

bool PartialQuantization::is_of_linear_layer(const QuantizedOperand& operand) const {
  // Behind the numbers of linear layers are those of saved activations, whose error is of storage.
  return linear_of(operand.key) < switches_.layers.size();
}

ElementErrors PartialQuantization::kept(const QuantizedOperand& operand) const {
  if (!switches_.storage && !operand.spec.is_cast()) return {false, false, false};
  if (!is_of_linear_layer(operand)) return {};
  return switches_.layers.at(linear_of(operand.key)).operands[slot_of(operand)];
}

TensorView PartialQuantization::memory_for(const QuantizedOperand& operand) {
  const std::int64_t size = operand.rows * operand.k;
  const auto known = partial_.find(&operand);
  if (known != partial_.end() && known->second.size() == size) {
    const TensorView memory = known->second;
    partial_.erase(known);
    return shaped(memory, operand.rows, operand.k);
  }
  const auto spare = std::find_if(spare_.begin(), spare_.end(),
                                  [&](const TensorView& view) { return view.size() == size; });
  if (spare == spare_.end()) return original().allocate(DType::f32, operand.rows, operand.k);
  const TensorView memory = *spare;
  spare_.erase(spare);
  return shaped(memory, operand.rows, operand.k);
}

TensorView PartialQuantization::temporary(Temporary which, std::int64_t rows, std::int64_t cols) {
  TensorView& memory = temporaries_[static_cast<std::size_t>(which)];
  if (memory.size() < rows * cols) memory = original().allocate(DType::f32, 1, rows * cols);
  return shaped(memory, rows, cols);
}

bool PartialQuantization::measure(const ops::Quantize& op, const ElementErrors& kept,
                                  const TensorView& values) {
  if (!flags_.has_memory()) flags_ = original().allocate(DType::i32, 1, ElementErrorKind::kCount);
  original().run(ops::PartialValues{.source = op.source,
                                    .transpose = op.transpose,
                                    .operand = op.operand,
                                    .kept = kept,
                                    .values = values,
                                    .found = flags_});
  std::array<std::int32_t, ElementErrorKind::kCount> flags{};
  original().download(flags.data(), flags_);
  const FoundErrors found = {flags[0] != 0, flags[1] != 0, flags[2] != 0};
  if (is_of_linear_layer(op.operand)) {
    FoundErrors& all = found_[linear_of(op.operand.key)][slot_of(op.operand)];
    for (std::size_t kind = 0; kind < all.size(); ++kind) all[kind] = all[kind] || found[kind];
  }
  return (found[ElementErrorKind::kCast] && !kept.cast) ||
         (found[ElementErrorKind::kUnderflow] && !kept.underflow) ||
         (found[ElementErrorKind::kSaturation] && !kept.saturation);
}

void PartialQuantization::pass(const ops::Quantize& op) {
  original().run(op);
  const QuantizedOperand& operand = op.operand;
  const ElementErrors kept = this->kept(operand);
  if (kept.all()) {
    if (const auto known = partial_.find(&operand); known != partial_.end()) {
      spare_.push_back(known->second);
      partial_.erase(known);
    }
    if (records_all_ && is_of_linear_layer(operand)) measure(op, kept, {});
    return;
  }
  const TensorView values = memory_for(operand);
  if (measure(op, kept, values)) {
    partial_[&operand] = values;
  } else {
    spare_.push_back(values);
  }
}

void PartialQuantization::pass(const ops::Dequantize& op) {
  const auto found = partial_.find(&op.operand);
  if (found == partial_.end()) return original().run(op);
  FP8LAB_ASSERT(!op.transpose);
  QuantizedOperand values = fp32_operand(found->second);
  values.spec.transform = op.operand.spec.transform;
  values.key = op.operand.key;
  values.channel_factors = op.operand.channel_factors;
  values.is_right = op.operand.is_right;
  values.source_space = op.operand.source_space;
  original().run(ops::Dequantize{values, false, op.destination, op.keeps_space});
}

QuantizedOperand PartialQuantization::own_values(const QuantizedOperand& operand,
                                                 Temporary memory) {
  const QuantizedOperand values = fp32_operand(temporary(memory, operand.rows, operand.k));
  if (operand.has_rows_contiguous()) {
    original().run(
        ops::Quantize{.source = operand.codes, .transpose = true, .state = {}, .operand = values});
  } else {
    original().run(ops::Dequantize{operand, false, values.codes, true});
  }
  return values;
}

QuantizedOperand PartialQuantization::partial_operand(const QuantizedOperand& operand,
                                                      Temporary memory) {
  const auto found = partial_.find(&operand);
  return found == partial_.end() ? own_values(operand, memory) : fp32_operand(found->second);
}

TensorView PartialQuantization::multiply_exactly(const QuantizedOperand& a,
                                                 const QuantizedOperand& b, float alpha,
                                                 Temporary memory) {
  GemmSpec exact;
  exact.accumulator = Accumulator::ideal_exact;
  exact.output = DType::f32;
  exact.alpha = alpha;
  const TensorView product = temporary(memory, a.rows, b.rows);
  original().run(ops::Gemm{.spec = exact, .a = a, .b = b, .bias = {}, .d = product});
  return product;
}

void PartialQuantization::pass(const ops::Compensate& op) {
  const auto found = partial_.find(&op.other());
  if (!op.takes_codes() || found == partial_.end()) return original().run(op);
  const QuantizedOperand other = fp32_operand(found->second);
  original().run(ops::Compensate{.a = op.is_left() ? op.a : other,
                                 .a_source = op.a_source,
                                 .transpose_a = op.transpose_a,
                                 .b = op.is_left() ? other : op.b,
                                 .b_source = op.b_source,
                                 .transpose_b = op.transpose_b,
                                 .d = op.d});
}

void PartialQuantization::pass(const ops::Gemm& op) {
  if (partial_.count(&op.a) + partial_.count(&op.b) == 0) return original().run(op);
  ops::JoinProducts join{.partial = {}, .bias = op.bias, .accumulate = op.accumulate, .d = op.d};
  {
    const QuantizedOperand a = partial_operand(op.a, Temporary::left);
    QuantizedOperand b = partial_operand(op.b, Temporary::right);
    b.is_right = true;
    join.partial = multiply_exactly(a, b, op.spec.alpha, Temporary::partial);
  }
  if (op.spec.accumulator != Accumulator::ideal_exact) {
    const QuantizedOperand a = own_values(op.a, Temporary::left);
    QuantizedOperand b = own_values(op.b, Temporary::right);
    b.is_right = true;
    join.exact = multiply_exactly(a, b, op.spec.alpha, Temporary::exact);
    GemmSpec spec = op.spec;
    spec.output = DType::f32;
    join.emulated = temporary(Temporary::emulated, op.a.rows, op.b.rows);
    original().run(ops::Gemm{.spec = spec, .a = op.a, .b = op.b, .bias = {}, .d = join.emulated});
  }
  original().run(join);
}

}  // namespace fp8lab
