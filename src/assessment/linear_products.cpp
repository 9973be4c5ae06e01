#include "src/assessment/linear_products.hpp"

#include <utility>

namespace fp8lab {

void LinearProducts::watch(const std::vector<std::unique_ptr<Linear>>& linears, Visit visit,
                           VisitAttention visit_attention) {
  layers_.clear();
  for (std::size_t i = 0; i < linears.size(); ++i) layers_[linears[i]->name()] = i;
  visit_ = std::move(visit);
  visit_attention_ = std::move(visit_attention);
}

void LinearProducts::pass(const ops::Gemm& op) {
  const bool is_forward = label().gemm == gemm_role_name(GemmRole::fprop);
  const auto found = visit_ && is_forward ? layers_.find(label().layer) : layers_.end();
  if (found == layers_.end()) return original().run(op);
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
