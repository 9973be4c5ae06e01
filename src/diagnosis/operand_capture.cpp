#include "src/diagnosis/operand_capture.hpp"

namespace fp8lab {

void OperandCapture::watch(const std::vector<std::unique_ptr<Linear>>& linears,
                           const std::vector<std::size_t>& chosen, std::int64_t tokens,
                           DType activation, Visit visit) {
  for (const std::size_t index : chosen) {
    const Linear& linear = *linears.at(index);
    const TensorView x = allocate(activation, tokens, linear.in());
    by_layer_[linear.name()] = watched_.size();
    watched_.push_back({index, &linear, x});
  }
  visit_ = std::move(visit);
}

void OperandCapture::pass(const ops::MeasureOperand& op) {
  const auto found = by_layer_.find(label().layer);
  if (found == by_layer_.end()) return;
  const Watched& watched = watched_[found->second];
  if (op.operand.name == slot_name(Slot::fprop_x)) original().run(ops::Copy{op.source, watched.x});
  if (op.operand.name != slot_name(Slot::dgrad_dy)) return;
  visit_({watched.index, *watched.linear, watched.x, op.source});
}

void OperandCapture::pass(const ops::Product& op) {
  if (label().gemm != gemm_role_name(GemmRole::wgrad)) original().run(op);
}

}  // namespace fp8lab
