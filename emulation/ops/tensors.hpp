// The tensors of an operation as data.
//
// Every operation and composite has for_each_tensor(visit), which calls visit(OperationTensor) for
// its inputs, then for its outputs in the order of their computation. A composite that keeps the
// results of all its parts visits part after part. A backend accesses no other memory of the
// caller. Observers, traces and tests read this table.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "emulation/ops/quantize/operand.hpp"

namespace fp8lab {

enum class Access : std::uint8_t {
  read,
  write,   ///< the contents before the operation are not read
  update,  ///< read and written
};

/// One tensor of an operation.
struct OperationTensor {
  std::string_view name;  ///< "d", "codes", "dweight"
  Access access{};
  TensorView view;
  const QuantizedOperand* operand = nullptr;  ///< the operand of these codes, scales or bounds

  bool is_output() const { return access != Access::read; }
};

namespace ops {

constexpr OperationTensor reads(std::string_view name, const TensorView& view) {
  return {name, Access::read, view};
}
constexpr OperationTensor writes(std::string_view name, const TensorView& view) {
  return {name, Access::write, view};
}
constexpr OperationTensor updates(std::string_view name, const TensorView& view) {
  return {name, Access::update, view};
}

/// Visits the step number in memory, if `key` reads it there.
template <class Visit>
void visit_key(const Visit& visit, const RandomKey& key) {
  if (key.step_counter == nullptr) return;
  auto* const number = const_cast<std::uint32_t*>(key.step_counter);
  visit(reads("step number", {number, DType::i32, 1, 1, 1}));
}

/// Visits all tensors of an operand that a product or a decoder reads.
template <class Visit>
void visit_read_operand(const Visit& visit, const QuantizedOperand& operand) {
  visit(OperationTensor{"codes", Access::read, operand.codes, &operand});
  visit(OperationTensor{"scales", Access::read, operand.scales, &operand});
  visit(OperationTensor{"channel factors", Access::read, operand.channel_factors, &operand});
  visit(OperationTensor{"clamp bounds", Access::read, operand.clamp_bounds, &operand});
  visit(OperationTensor{"channel factors of rows", Access::read,
                        operand.source_space.channel_factors, &operand});
  visit_key(visit, operand.key);
}

/// Visits the tensors of an operand that its quantization reads.
template <class Visit>
void visit_quantizer_inputs(const Visit& visit, const QuantizedOperand& operand) {
  visit_key(visit, operand.key);
  visit(OperationTensor{"channel factors", Access::read, operand.channel_factors, &operand});
}

/// Visits the tensors of an operand that its quantization writes.
template <class Visit>
void visit_written_operand(const Visit& visit, const QuantizedOperand& operand) {
  visit(OperationTensor{"clamp bounds", Access::write, operand.clamp_bounds, &operand});
  visit(OperationTensor{"scales", Access::write, operand.scales, &operand});
  visit(OperationTensor{"codes", Access::write, operand.codes, &operand});
}

}  // namespace ops

/// Returns all tensors of `op` that are not empty.
template <class Op>
std::vector<OperationTensor> tensors_of(const Op& op) {
  std::vector<OperationTensor> tensors;
  op.for_each_tensor([&](const OperationTensor& tensor) {
    if (!tensor.view.empty()) tensors.push_back(tensor);
  });
  return tensors;
}

/// Returns the nonempty tensors that `op` writes. Tables of composites omit outputs that nothing
/// may read afterwards: the producer's output without ProduceQuantize::keeps_output, and dx of
/// NormBackwardAdd. A tensor that several parts write is listed once; its last contents count.
template <class Op>
std::vector<OperationTensor> outputs_of(const Op& op) {
  std::vector<OperationTensor> outputs;
  op.for_each_tensor([&](const OperationTensor& tensor) {
    if (tensor.is_output() && !tensor.view.empty()) outputs.push_back(tensor);
  });
  return outputs;
}

}  // namespace fp8lab
