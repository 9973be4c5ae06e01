#include "src/assessment/linear_products.hpp"

#include <utility>

namespace fp8lab {

void LinearProducts::watch(const std::vector<std::unique_ptr<Linear>>& linears, Visit visit,
                           VisitAttention visit_attention) {
  weights_.clear();
  for (std::size_t i = 0; i < linears.size(); ++i) {
    weights_[linears[i]->weight_source(Slot::fprop_w).data] = i;
  }
  visit_ = std::move(visit);
  visit_attention_ = std::move(visit_attention);
}

void LinearProducts::pass(const ops::Gemm& op) {
  const auto found = visit_ ? weights_.find(op.b.codes.data) : weights_.end();
  if (found == weights_.end()) return original().run(op);
  visit_(original(), found->second, op);
}

void LinearProducts::pass(const ops::Product& op) {
  if (!visit_) return original().run(op);
  op.for_each_part([this](const auto& part) { pass(part); });
}

void LinearProducts::pass(const ops::AttentionForward& op) {
  if (visit_attention_) visit_attention_(op);
  original().run(op);
}

}  // namespace fp8lab
