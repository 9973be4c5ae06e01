#include "src/diagnosis/operand_capture.hpp"

namespace fp8lab {

void OperandCapture::watch(const std::vector<std::unique_ptr<Linear>>& linears,
                           const std::vector<std::size_t>& chosen, std::int64_t tokens,
                           DType activation, Visit visit) {
  for (const auto& linear : linears) gradients_.insert(linear->weight_gradient().data);
  for (const std::size_t index : chosen) {
    const Linear& linear = *linears.at(index);
    const TensorView x = allocate(activation, tokens, linear.in());
    for (const Slot slot : {Slot::fprop_x, Slot::dgrad_dy}) {
      const TensorView record = linear.statistics().row_range(static_cast<std::int64_t>(slot), 1);
      records_[record.data] = {watched_.size(), slot};
    }
    watched_.push_back({index, &linear, x});
  }
  visit_ = std::move(visit);
}

void OperandCapture::pass(const ops::MeasureOperand& op) {
  const auto found = records_.find(op.record.data);
  if (found == records_.end()) return;
  const auto [index, slot] = found->second;
  const Watched& watched = watched_[index];
  if (slot == Slot::fprop_x) return original().run(ops::Copy{op.source, watched.x});
  visit_({watched.index, *watched.linear, watched.x, op.source});
}

void OperandCapture::pass(const ops::Product& op) {
  if (gradients_.count(op.gemm.d.data) == 0) original().run(op);
}

}  // namespace fp8lab
